// edgewise predict: one input in full, or a file of inputs line by line.
#include <atomic>
#include <cmath>
#include <map>
#include <ostream>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/commands.h"
#include "client/cli/format.h"
#include "client/cli/render.h"
#include "client/cli/request/label_names.h"
#include "client/cli/request/options.h"

namespace edgewise::cli {
namespace {

struct PredictFlags {
  RequestFlags request;
  ConnectionFlags connection;
  bool logits = false;
  uint32_t dimensions = 0;
  bool each_sample = false;
  bool layer_stats = false;
  bool key_degrees = false;
  bool graph = false;
  bool json = false;
  std::string request_id;
  bool spread = false;
  uint32_t concurrency = 4;

  void Register(FlagSet& flags) {
    request.Register(flags);
    flags.Section("Output");
    flags.AddSwitch("logits", "also the logits", &logits);
    flags.Add("dimensions", "D", "the first D numbers of an embedding, normalised", &dimensions);
    flags.AddSwitch("each_sample", "also the answer of each sample", &each_sample);
    flags.AddSwitch("layer_stats", "also edges and expected edges of every layer and head", &layer_stats);
    flags.AddSwitch("key_degrees", "also how often each token is attended to (with --json)", &key_degrees);
    flags.AddSwitch("graph", "also what was attended to, with weights; one sample only", &graph);
    flags.AddSwitch("json", "print the answer as JSON, for a file one line per input", &json);
    flags.Add("request_id", "ID", "returned as it came, and logged by the server", &request_id);
    flags.AddSwitch("spread", "each server of --server computes its part of the samples", &spread);
    flags.Add("concurrency", "N", "calls at a time, for a file", &concurrency);
    connection.Register(flags);
  }

  absl::StatusOr<v1::PredictRequest> MakeRequest() const {
    if (concurrency < 1 || concurrency > 1024) {
      return absl::InvalidArgumentError(absl::StrCat("--concurrency is ", concurrency, "; expected 1 to 1024"));
    }
    absl::StatusOr<v1::PredictRequest> made = request.MakeRequest();
    if (!made.ok()) return made;
    v1::OutputOptions* outputs = made->mutable_outputs();
    outputs->set_logits(logits);
    outputs->set_dimensions(dimensions);
    outputs->set_each_sample(each_sample);
    outputs->set_layer_stats(layer_stats);
    outputs->set_key_degrees(key_degrees);
    outputs->set_graph(graph);
    made->set_request_id(request_id);
    return made;
  }
};

// The names of all labels, asked for once where an answer names only its most probable one. Empty where they are not
// known.
class LabelNames {
 public:
  explicit LabelNames(Client& client) : client_(client) {}

  std::span<const std::string> Of(const v1::PredictResponse& response) {
    if (!asked_ && response.predictions_size() > 0 && response.predictions(0).multi_label()) {
      asked_ = true;
      const absl::StatusOr<v1::ModelInfo> model = client_.GetModel(response.model(), response.version());
      if (model.ok()) names_.assign(model->labels().begin(), model->labels().end());
    }
    return names_;
  }

 private:
  Client& client_;
  bool asked_ = false;
  std::vector<std::string> names_;
};

int PredictOne(const PredictFlags& flags, Client& client, const v1::PredictRequest& request, const LabelledInput& input,
               std::ostream& out, std::ostream& err) {
  absl::StatusOr<v1::PredictResponse> response = AskOne(client, request, input.input, flags.spread);
  if (!response.ok()) return ReportServerError(response.status(), flags.connection, err);
  out << (flags.json ? ToJson(*response, true) : RenderAnswer(*response, LabelNames(client).Of(*response)))
      << std::flush;
  return kExitOk;
}

// Totals over the inputs of a file.
struct Summary {
  uint64_t answered = 0;
  uint64_t failed = 0;
  Accuracy accuracy;
  double density = 0, density_squares = 0, edges = 0;
  double queue_us = 0, compute_us = 0, total_us = 0;

  void Add(const v1::PredictResponse& response, const LabelledInput& input) {
    const v1::Prediction& prediction = response.predictions(0);
    ++answered;
    accuracy.Add(prediction, input);
    density += prediction.edges().density();
    density_squares += prediction.edges().density() * prediction.edges().density();
    edges += prediction.edges().edges();
    queue_us += static_cast<double>(response.timing().queue_us());
    compute_us += static_cast<double>(response.timing().compute_us());
    total_us += static_cast<double>(response.timing().total_us());
  }

  void Print(double seconds, uint32_t concurrency, std::ostream& out) const {
    out << absl::StrFormat("inputs       %s answered, %s failed, in %.2f s (%.1f inputs/s, %s at a time)\n",
                           WithCommas(answered), WithCommas(failed), seconds,
                           static_cast<double>(answered) / std::max(seconds, 1e-9), WithCommas(concurrency));
    if (accuracy.known > 0) {
      out << absl::StrFormat("accuracy     %s (%s of %s)\n",
                             Percent(static_cast<double>(accuracy.right) / static_cast<double>(accuracy.known)),
                             WithCommas(accuracy.right), WithCommas(accuracy.known));
    }
    if (accuracy.valued > 0) {
      out << absl::StrFormat("error        mean %.4f (absolute, of %s)\n",
                             accuracy.off / static_cast<double>(accuracy.valued), WithCommas(accuracy.valued));
    }
    if (answered == 0) return;
    const double n = static_cast<double>(answered);
    const double variance = n > 1 ? std::max(0.0, density_squares - density * density / n) / (n - 1) : 0.0;
    out << absl::StrFormat("density      mean %s, standard deviation over inputs %s\n", Percent(density / n),
                           Percent(std::sqrt(variance)));
    out << absl::StrFormat("edges        mean %s\n", MeanWithCommas(edges / n));
    out << absl::StrFormat("time         mean queue %s, compute %s, total %s\n", Milliseconds(queue_us / n),
                           Milliseconds(compute_us / n), Milliseconds(total_us / n));
  }
};

// Answers that have arrived and are not printed yet, by index of the input. Thread-safe.
class Arrived {
 public:
  using Answer = absl::StatusOr<v1::PredictResponse>;

  void Add(size_t input, Answer answer) {
    const absl::MutexLock lock(&mutex_);
    answers_.emplace(input, std::move(answer));
  }

  // Waits for the answer.
  Answer Take(size_t input) {
    const auto arrived = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return answers_.count(input) > 0; };
    const absl::MutexLock lock(&mutex_, absl::Condition(&arrived));
    return std::move(answers_.extract(input).mapped());
  }

 private:
  absl::Mutex mutex_;
  std::map<size_t, Answer> answers_ ABSL_GUARDED_BY(mutex_);
};

// One call per input, several at a time, so that the server batches them and an input that it refuses costs no other.
// Answers are printed in the order of the inputs.
int PredictFile(const PredictFlags& flags, Client& client, const v1::PredictRequest& request,
                const std::vector<LabelledInput>& inputs, std::ostream& out, std::ostream& err) {
  Arrived arrived;
  std::atomic<size_t> next = 0;
  auto work = [&] {
    for (size_t i = next++; i < inputs.size(); i = next++) {
      arrived.Add(i, AskOne(client, request, inputs[i].input, flags.spread));
    }
  };
  const absl::Time start = absl::Now();
  std::vector<std::jthread> workers;
  for (size_t w = 0; w < std::min<size_t>(flags.concurrency, inputs.size()); ++w) workers.emplace_back(work);

  Summary summary;
  LabelNames names(client);
  if (!flags.json) out << RenderHeading();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const absl::StatusOr<v1::PredictResponse> response = arrived.Take(i);
    const absl::Status& status = response.status();
    if (status.ok()) {
      summary.Add(*response, inputs[i]);
      out << (flags.json ? ToJson(*response, false) + "\n"
                         : RenderLine(i + 1, *response, inputs[i], names.Of(*response)))
          << std::flush;
      continue;
    }
    ++summary.failed;
    if (IsHopeless(status.code())) {
      next = inputs.size();
      return ReportServerError(status, flags.connection, err);
    }
    if (flags.json) {
      out << "{\"input\":" << i + 1 << ",\"error\":" << StatusToJson(status) << "}\n" << std::flush;
    } else {
      out << absl::StrFormat("%5d  ", i + 1) << CodeName(status.code()) << ": " << std::string(status.message())
          << std::endl;
    }
  }
  summary.Print(absl::ToDoubleSeconds(absl::Now() - start), flags.concurrency, flags.json ? err : out << "\n");
  return summary.failed == 0 ? kExitOk : kExitServer;
}

}  // namespace

int RunPredict(Arguments arguments, std::ostream& out, std::ostream& err) {
  PredictFlags values;
  FlagSet flags(
      "edgewise predict --model NAME (--text TEXT | --token_ids 1,2,3 | --image FILE | --input FILE.jsonl) [flags]",
      "Asks a model. Shows the prediction, what it cost in edges, how sure it is and how long it took.");
  values.Register(flags);
  int exit_code = kExitOk;
  if (!ParseOrHelp(flags, "predict", arguments, out, err, exit_code)) return exit_code;
  absl::StatusOr<v1::PredictRequest> request = values.MakeRequest();
  if (!request.ok()) return ReportUsageError(request.status(), "predict", err);
  absl::StatusOr<std::vector<LabelledInput>> inputs = values.request.ReadInputs();
  if (!inputs.ok()) return ReportUsageError(inputs.status(), "predict", err);
  absl::StatusOr<std::unique_ptr<Client>> client = values.connection.Connect();
  if (!client.ok()) return ReportUsageError(client.status(), "predict", err);
  if (HasLabelNames(*inputs)) {
    const absl::StatusOr<v1::ModelInfo> model = (*client)->GetModel(request->model(), request->version());
    if (!model.ok()) return ReportServerError(model.status(), values.connection, err);
    const absl::Status named = ResolveLabelNames(*model, *inputs);
    if (!named.ok()) return ReportUsageError(named, "predict", err);
  }
  if (!values.request.input) return PredictOne(values, **client, *request, inputs->front(), out, err);
  return PredictFile(values, **client, *request, *inputs, out, err);
}

}  // namespace edgewise::cli
