#include "client/spread.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/merge_prediction.h"
#include "edgewise/client/ensemble.h"

namespace edgewise::internal {
namespace {

absl::Status CheckRequest(const v1::PredictRequest& request) {
  const auto refuse = [](const char* field, const char* why) {
    return absl::InvalidArgumentError(absl::StrCat(field, " does not go with an ensemble that is spread: ", why));
  };
  if (request.ensemble().samples() == 0) {
    return absl::InvalidArgumentError(
        "ensemble.samples is 0; an ensemble that is spread needs the number of its samples, 1 or more");
  }
  const uint64_t first = request.ensemble().first_sample(), samples = request.ensemble().samples();
  if (first + samples > uint64_t{1} << 32) {
    return absl::InvalidArgumentError(absl::StrCat("ensemble.first_sample is ", first, " with ", samples,
                                                   " samples; the last sample may be ", (uint64_t{1} << 32) - 1));
  }
  if (request.ensemble().tolerance() != 0) return refuse("ensemble.tolerance", "no part knows when it is met");
  if (request.budget().allow_degraded()) return refuse("budget.allow_degraded", "parts would give up samples");
  if (request.budget().fit_deadline()) return refuse("budget.fit_deadline", "parts would choose their samples");
  if (request.outputs().graph()) return refuse("outputs.graph", "a graph is of one sample");
  if (request.outputs().token_scores()) return refuse("outputs.token_scores", "parts have no scores of the whole");
  if (request.outputs().token_embeddings())
    return refuse("outputs.token_embeddings", "parts do not have each sample's");
  return absl::OkStatus();
}

uint64_t DrawSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// The fields that two answers must share to be parts of one.
using Origin = std::tuple<int64_t, std::string, std::string, std::string, std::string>;

// Version, device, build, weights; and the settings, which a profile changes that is reloaded.
Origin OriginOf(const v1::PredictResponse& response) {
  v1::Settings settings = response.settings();
  settings.clear_samples();
  return {response.version(), response.device(), response.build(), response.sha256(), settings.SerializeAsString()};
}

// An answer that ended, and whose it was.
struct Ended {
  size_t part = 0;
  size_t server = 0;
  absl::StatusOr<v1::PredictResponse> response;
};

// Answers in the order in which they came. Thread-safe.
class Line {
 public:
  void Add(Ended ended) {
    const absl::MutexLock lock(&mutex_);
    line_.push_back(std::move(ended));
  }
  Ended Take() {
    const auto any = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !line_.empty(); };
    const absl::MutexLock lock(&mutex_, absl::Condition(&any));
    Ended first = std::move(line_.front());
    line_.pop_front();
    return first;
  }

 private:
  absl::Mutex mutex_;
  std::deque<Ended> line_ ABSL_GUARDED_BY(mutex_);
};

struct Part {
  v1::PredictRequest request;
  std::optional<v1::PredictResponse> answer;
  size_t server = 0;  // that computed the answer, or does
  size_t tries = 0;
  bool running = false;
};

struct Server {
  bool lost = false;
  int running = 0;
  std::optional<Origin> origin;  // of its latest answer
};

// The parts under way. One thread; `done` of the calls only adds to the line.
class Spread {
 public:
  Spread(const v1::PredictRequest& request, size_t servers, const AskPart& ask) : servers_(servers), ask_(ask) {
    const uint32_t samples = request.ensemble().samples();
    const uint64_t number = std::min<uint64_t>(servers, samples);
    for (uint64_t i = 0; i < number; ++i) {
      const auto begin = static_cast<uint32_t>(samples * i / number);
      const auto end = static_cast<uint32_t>(samples * (i + 1) / number);
      Part& part = parts_.emplace_back();
      part.request = request;
      v1::Ensemble* ensemble = part.request.mutable_ensemble();
      ensemble->set_first_sample(request.ensemble().first_sample() + begin);
      ensemble->set_samples(end - begin);
      part.request.mutable_outputs()->set_each_sample(true);
    }
  }

  // All answers, in the order of the samples and of one origin. The calls have ended, or will after `cancel`.
  absl::StatusOr<std::vector<v1::PredictResponse>> Run(const std::function<void()>& cancel) {
    absl::Status status;
    while (status.ok() && !Complete()) {
      status = StartMissing();
      if (status.ok()) status = Handle(line_->Take());
    }
    if (!status.ok()) cancel();
    while (running_ > 0) {
      line_->Take();
      --running_;
    }
    if (!status.ok()) return status;
    std::vector<v1::PredictResponse> answers;
    for (Part& part : parts_) answers.push_back(*std::move(part.answer));
    return answers;
  }

 private:
  bool Complete() const {
    return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.answer.has_value(); });
  }

  absl::Status StartMissing() {
    for (size_t i = 0; i < parts_.size(); ++i) {
      Part& part = parts_[i];
      if (part.answer || part.running) continue;
      std::optional<size_t> server = Choose();
      if (!server && std::any_of(servers_.begin(), servers_.end(), [](const Server& one) { return !one.lost; })) {
        // The servers of the first part's origin are lost. The others begin again.
        for (Part& other : parts_) other.answer.reset();
        server = Choose();
      }
      if (!server) return lost_;
      if (++part.tries > servers_.size() + 2) {
        return absl::AbortedError(
            absl::StrCat("the servers change while they compute the parts of the ensemble: ", difference_));
      }
      part.server = *server;
      part.running = true;
      ++servers_[*server].running;
      ++running_;
      ask_(*server, part.request,
           [line = line_, i, server = *server](const absl::StatusOr<v1::PredictResponse>& response) {
             line->Add({i, server, response});
           });
    }
    return absl::OkStatus();
  }

  // The idlest server that may compute a part: of the first part's origin, or of one that is not known yet.
  std::optional<size_t> Choose() const {
    const std::optional<v1::PredictResponse>& first = parts_[0].answer;
    std::optional<size_t> best;
    const auto rank = [&](size_t s) { return std::pair(first && !servers_[s].origin, servers_[s].running); };
    for (size_t s = 0; s < servers_.size(); ++s) {
      if (servers_[s].lost || (first && servers_[s].origin && *servers_[s].origin != OriginOf(*first))) continue;
      if (!best || rank(s) < rank(*best)) best = s;
    }
    return best;
  }

  absl::Status Handle(Ended ended) {
    Part& part = parts_[ended.part];
    Server& server = servers_[ended.server];
    part.running = false;
    --server.running;
    --running_;
    if (ended.response.status().code() == absl::StatusCode::kUnavailable) {
      server.lost = true;
      lost_ = ended.response.status();
      return absl::OkStatus();
    }
    if (!ended.response.ok()) return ended.response.status();
    if (absl::Status status = CheckAnswer(ended.part, *ended.response); !status.ok()) return status;
    server.origin = OriginOf(*ended.response);
    part.answer = *std::move(ended.response);
    if (!parts_[0].answer) return absl::OkStatus();
    for (size_t i = 1; i < parts_.size(); ++i) {
      std::optional<v1::PredictResponse>& answer = parts_[i].answer;
      if (!answer || OriginOf(*answer) == OriginOf(*parts_[0].answer)) continue;
      difference_ = Difference(i, *answer, *parts_[0].answer);
      answer.reset();
    }
    return absl::OkStatus();
  }

  // A profile of the model may set a tolerance.
  absl::Status CheckAnswer(size_t index, const v1::PredictResponse& response) const {
    const uint32_t asked = parts_[index].request.ensemble().samples();
    for (const v1::Prediction& prediction : response.predictions()) {
      if (prediction.samples() == asked && response.settings().tolerance() == 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("parts[", index, "] has ", prediction.samples(), " of ", asked, " samples",
                       response.settings().tolerance() > 0
                           ? absl::StrCat(" by the tolerance of profile \"", response.settings().profile(),
                                          "\", which does not go with an ensemble that is spread")
                           : ""));
    }
    return absl::OkStatus();
  }

  static std::string Difference(size_t index, const v1::PredictResponse& part, const v1::PredictResponse& first) {
    const std::string name = absl::StrCat("parts[", index, "].");
    absl::Status status = CheckSame(name + "version", part.version(), first.version());
    status.Update(CheckSame(name + "device", part.device(), first.device()));
    status.Update(CheckSame(name + "build", part.build(), first.build()));
    status.Update(CheckSame(name + "sha256", part.sha256(), first.sha256()));
    status.Update(
        CheckSame(name + "settings", part.settings().ShortDebugString(), first.settings().ShortDebugString()));
    return std::string(status.message());
  }

  std::vector<Part> parts_;  // stay where they are: calls refer to the requests
  std::vector<Server> servers_;
  const AskPart& ask_;
  const std::shared_ptr<Line> line_ = std::make_shared<Line>();
  int running_ = 0;
  absl::Status lost_;  // why the latest server that is lost is so
  std::string difference_;
};

// Whether the whole names a label that no part names, so that only the model knows its name.
bool LacksNames(const std::vector<v1::PredictResponse>& parts, const v1::PredictResponse& whole) {
  for (int input = 0; input < whole.predictions_size(); ++input) {
    std::set<int> known;
    for (const v1::PredictResponse& part : parts) {
      VisitLabels(part.predictions(input), [&](int id, const std::string&) { known.insert(id); });
    }
    bool lacks = false;
    VisitLabels(whole.predictions(input), [&](int id, const std::string&) { lacks |= known.count(id) == 0; });
    if (lacks) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<v1::PredictResponse> PredictSpread(const v1::PredictRequest& request, size_t servers, const AskPart& ask,
                                                  const std::function<void()>& cancel, const FindLabels& labels) {
  if (absl::Status status = CheckRequest(request); !status.ok()) return status;
  v1::PredictRequest seeded = request;
  if (!seeded.ensemble().has_seed()) seeded.mutable_ensemble()->set_seed(DrawSeed());
  Spread spread(seeded, servers, ask);
  absl::StatusOr<std::vector<v1::PredictResponse>> parts = spread.Run(cancel);
  if (!parts.ok()) return parts.status();
  absl::StatusOr<v1::PredictResponse> whole = MergeEnsembleParts(*parts);
  if (whole.ok() && LacksNames(*parts, *whole)) {
    const absl::StatusOr<std::vector<std::string>> names = labels(whole->model(), whole->version());
    if (!names.ok()) return names.status();
    whole = MergeEnsembleParts(*parts, *names);
  }
  if (!whole.ok() || request.outputs().each_sample()) return whole;
  for (v1::Prediction& prediction : *whole->mutable_predictions()) prediction.clear_sample_outputs();
  return whole;
}

}  // namespace edgewise::internal
