#include "server/handler/shadow.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "server/handler/request_bounds.h"
#include "server/models/repository.h"
#include "server/schedule/degrade.h"
#include "server/validate/validate.h"

namespace edgewise::server {
namespace {

constexpr uint64_t kPartOfMemory = 8;    // shadows hold at most an eighth of the memory for calls
constexpr double kPatienceOfWork = 2.0;  // times the predicted seconds: how long a shadow may take beyond max_delay

template <typename T>
uint64_t Mixed(uint64_t number, const std::vector<T>& values) {
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  number = (number ^ std::hash<std::string_view>()(bytes)) * 0x9E3779B97F4A7C15u;
  return number ^ number >> 32;
}

// From [0, 1), the same for the same seed, id and inputs.
double LotOf(const Request& request) {
  uint64_t number = Mixed(request.work.seed, std::vector<char>(request.ticket.id.begin(), request.ticket.id.end()));
  for (const ModelInput& input : request.work.inputs) {
    for (const ModelSequence& sequence : input.sequences) {
      number = Mixed(Mixed(number, sequence.token_ids), sequence.features);
    }
  }
  return static_cast<double>(number >> 11) * 0x1p-53;
}

// Whether both give the same answer.
bool Same(v1::Settings a, v1::Settings b) {
  for (v1::Settings* settings : {&a, &b}) {
    settings->clear_profile();
    settings->set_samples(std::max(1u, settings->samples()));
  }
  return google::protobuf::util::MessageDifferencer::Equals(a, b);
}

// The total variation distance of two distributions over labels; the mean of theirs of labelled tokens, or of the
// labels of a multi-label model.
double DistanceOf(const InputResult& a, const InputResult& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.probabilities.size(); ++i) {
    sum += std::abs(static_cast<double>(a.probabilities[i]) - b.probabilities[i]);
  }
  if (b.multi_label) return sum / static_cast<double>(a.probabilities.size());
  const auto rows = std::count_if(a.label_id.begin(), a.label_id.end(), [](int32_t label) { return label >= 0; });
  return rows == 0 ? 0.0 : 0.5 * sum / static_cast<double>(rows);
}

bool Differ(const InputResult& a, const InputResult& b) {
  if (!b.multi_label) return a.label_id != b.label_id;
  return !std::equal(a.probabilities.begin(), a.probabilities.end(), b.probabilities.begin(),
                     [](float one, float other) { return SaysYes(one) == SaysYes(other); });
}

// For want of memory or time, and no fault of the profile or of the model.
bool IsDropped(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status) ||
         absl::IsUnavailable(status);
}

}  // namespace

void Shadows::Prepare(const v1::PredictRequest& message, const ShadowConfig& config, Request& request) {
  const LoadedModel& loaded = *request.ticket.model;
  // A request that fits its deadline gets samples by the moment; a second computation would get others.
  if (request.work.fits_deadline || LotOf(request) >= config.share) return;
  MemoryHold preparing(memory_);
  const Ticket of_check = {.deadline = request.ticket.deadline,  // until it is computed
                           .stopping = loaded.leaving,
                           .memory = &preparing,
                           .apart = request.ticket.apart};
  RequestBounds bounds(
      of_check, [this, &of_check] { return CancelledOrExpired(of_check.stopping, of_check.deadline, queue_.now()); });
  const CallTerms terms = {.deadline = of_check.deadline, .stopping = of_check.stopping, .profile = config.profile};
  absl::StatusOr<Work> work = Validate(message, *loaded.model, loaded.profiles, options_.limits, terms, bounds);
  if (work.ok() && Same(*work->settings, *request.work.settings)) return;
  request.shadow = std::make_shared<Shadow>();
  if (!work.ok()) {
    if (!IsDropped(work.status()) && !bounds.exceeded()) request.shadow->refused = ShadowResult::kFailed;
    return;
  }
  if (!Hold(*request.shadow, work->held_bytes).ok()) return;
  work->may_degrade = work->fits_deadline = false;
  work->outputs = {};
  for (ModelInput& input : work->inputs) {
    input.seed = request.work.seed;
    input.wanted = {};
  }
  auto second = std::make_unique<Request>();
  second->ticket = {.stopping = loaded.leaving, .model = request.ticket.model, .background = true};
  second->work = *std::move(work);
  second->forecast = MakeForecast(loaded, second->work);
  request.shadow->request = std::move(second);
}

absl::Status Shadows::Hold(Shadow& shadow, uint64_t bytes) {
  part_.SetLimit(memory_.limit() / kPartOfMemory);
  shadow.part = MemoryHold(part_);
  shadow.whole = MemoryHold(memory_);
  RETURN_IF_ERROR(shadow.part.Resize(bytes));
  return shadow.whole.Resize(bytes);
}

void Shadows::Start(Request& answered) {
  const std::shared_ptr<Shadow> shadow = std::move(answered.shadow);
  RequestPtr second = std::move(shadow->request);
  const bool degraded = answered.forecast.reason != DegradedBy::kNothing;  // it is not what was asked for
  if (!second || degraded) {
    return answered.ticket.model->metrics->CountShadow(second ? ShadowResult::kDropped : shadow->refused, {}, 0);
  }
  for (InputResult& result : answered.outcome.results) {
    InputResult& kept = shadow->answer.emplace_back();
    kept.probabilities = std::move(result.probabilities);
    kept.label_id = std::move(result.label_id);
  }
  second->ticket.arrival = queue_.now();
  second->ticket.deadline = second->ticket.arrival + options_.queue.max_delay +
                            std::chrono::duration_cast<Clock::duration>(
                                std::chrono::duration<double>(kPatienceOfWork * second->forecast.seconds));
  second->done = [this, shadow, raw = second.get()](const absl::Status& status) { End(*shadow, *raw, status); };
  Request& started = *second;
  const absl::Status status = queue_.PushBackground(second);
  if (!status.ok()) End(*shadow, started, status);
}

void Shadows::End(const Shadow& shadow, const Request& request, const absl::Status& status) {
  LoadedMetrics& metrics = *request.ticket.model->metrics;
  if (!status.ok()) {
    return metrics.CountShadow(IsDropped(status) ? ShadowResult::kDropped : ShadowResult::kFailed, {}, 0);
  }
  std::vector<double> distances;
  uint64_t disagreements = 0;
  for (size_t i = 0; i < shadow.answer.size(); ++i) {
    distances.push_back(DistanceOf(shadow.answer[i], request.outcome.results[i]));
    if (Differ(shadow.answer[i], request.outcome.results[i])) ++disagreements;
  }
  metrics.CountShadow(ShadowResult::kCompared, distances, disagreements);
}

}  // namespace edgewise::server
