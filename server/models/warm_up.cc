#include "server/models/warm_up.h"

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "model/forward/pass.h"
#include "text/status_macros.h"

namespace edgewise::server {
namespace {

constexpr int32_t kShortest = 8;       // tokens
constexpr int32_t kLonger = 4;         // times the length before
constexpr size_t kTogether = 4;        // inputs of the batches of several
constexpr int32_t kMostTogether = 64;  // tokens of such an input

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Of any tokens; shorter where the model takes no more.
absl::StatusOr<ModelInput> InputOf(const Model& model, int32_t length) {
  const ModelConfig& config = model.config();
  ModelInput input;
  absl::StatusOr<ModelSequence> sequence;
  if (config.feature_size > 0) {
    const auto rows = static_cast<uint32_t>(length), columns = static_cast<uint32_t>(config.feature_size);
    sequence =
        model.PrepareFeatures(rows, columns, std::vector<float>(size_t{rows} * columns, 0.5f), TruncateMode::kTail);
  } else {
    std::vector<int32_t> ids;
    for (int32_t id = 0; ids.size() < static_cast<size_t>(length); id = (id + 1) % config.vocab_size) {
      if (id != config.pad_token_id && id != config.cls_token_id) ids.push_back(id);
    }
    sequence = model.Prepare(std::move(ids), TruncateMode::kTail);
  }
  RETURN_IF_ERROR(sequence.status());
  input.sequences.assign(config.task == ModelTask::kPairClassification ? 2 : 1, *sequence);
  return input;
}

// One pass; the seconds of its steps.
absl::StatusOr<double> Run(const Model& model, const std::vector<ModelInput>& inputs, const RunWork& use_backend,
                           CostModel& costs, bool observe) {
  std::optional<Pass> pass;
  double seconds = 0.0;
  const auto timed = [&](const std::function<absl::Status()>& work) {
    return use_backend([&] {
      const double start = Now();
      absl::Status status = work();
      seconds += Now() - start;
      return status;
    });
  };
  absl::Status status = timed([&] {
    pass.emplace(model, inputs, Pass::Options{});
    return absl::OkStatus();
  });
  while (status.ok() && !pass->done()) status = timed([&] { return pass->Step(); });
  Demand observed;
  for (size_t i = 0; i < inputs.size() && status.ok(); ++i) {
    const InputResult result = pass->TakeResult(static_cast<int64_t>(i));
    status = result.status;
    if (status.ok() && observe) observed += costs.Observed(inputs[i], result);
  }
  const absl::Status freed = use_backend([&] {
    pass.reset();
    return absl::OkStatus();
  });
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(freed);
  if (observe) costs.Observe(observed, seconds);
  return seconds;
}

}  // namespace

void WarmUp(const Model& model, double seconds, const RunWork& use_backend, CostModel& costs) {
  const int32_t longest = model.config().max_position_embeddings;
  double left = seconds;
  for (int32_t length = kShortest; left > 0.0; length *= kLonger) {
    const absl::StatusOr<ModelInput> input = InputOf(model, std::min(length, longest));
    if (!input.ok()) return;
    double took = 0.0;  // of one input
    for (size_t count : {size_t{1}, kTogether}) {
      if (count > 1 && length > kMostTogether) break;
      const std::vector<ModelInput> inputs(count, *input);
      for (bool observe : {false, true}) {  // the first one makes buffers
        const absl::StatusOr<double> run = Run(model, inputs, use_backend, costs, observe);
        if (!run.ok()) return;
        left -= *run;
        if (count == 1) took = *run;
      }
    }
    if (length >= longest || 2.0 * kLonger * kLonger * took > left) return;
  }
}

}  // namespace edgewise::server
