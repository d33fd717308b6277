#include "server/models/warm_up.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "model/forward/pass.h"

namespace edgewise::server {
namespace {

constexpr int32_t kShortest = 8;       // tokens
constexpr int32_t kLonger = 4;         // times the length before
constexpr size_t kTogether = 4;        // inputs of the batches of several
constexpr int32_t kMostTogether = 64;  // tokens of such an input
// Caps as shares of the model's own edges. Choosing one in two may cost more than it saves.
constexpr double kCaps[] = {1.0, 0.5, 0.125};

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Lengths in tokens; shorter where the model takes fewer.
absl::StatusOr<ModelInput> InputOf(const Model& model, int32_t length) {
  const ModelConfig& config = model.config();
  ModelInput input;
  absl::StatusOr<ModelSequence> sequence;
  if (config.feature_size > 0) {
    const auto rows = static_cast<uint32_t>(std::max(length, FewestRows(config)));
    const auto columns = static_cast<uint32_t>(config.feature_size);
    sequence =
        model.PrepareFeatures(rows, columns, std::vector<float>(size_t{rows} * columns, 0.5f), TruncateMode::kTail);
  } else {
    std::vector<int32_t> ids;
    if (config.task == ModelTask::kFillMask) ids.push_back(config.mask_token_id);
    for (int32_t id = 0; ids.size() < static_cast<size_t>(length); id = (id + 1) % config.vocab_size) {
      if (id != config.pad_token_id && id != config.cls_token_id) ids.push_back(id);
    }
    sequence = model.Prepare(std::move(ids), TruncateMode::kTail);
  }
  RETURN_IF_ERROR(sequence.status());
  input.sequences.assign(config.task == ModelTask::kPairClassification ? 2 : 1, *sequence);
  return input;
}

struct Measured {
  Demand demand;
  double seconds = 0.0;  // of the steps
};

// One pass.
absl::StatusOr<Measured> Run(const Model& model, const std::vector<ModelInput>& inputs, const RunWork& use_backend,
                             CostModel& costs) {
  std::optional<Pass> pass;
  Measured measured;
  const auto timed = [&](const std::function<absl::Status()>& work) {
    return use_backend([&] {
      const double start = Now();
      absl::Status status = work();
      measured.seconds += Now() - start;
      return status;
    });
  };
  absl::Status status = timed([&] {
    pass.emplace(model, inputs, Pass::Options{});
    return absl::OkStatus();
  });
  while (status.ok() && !pass->done()) status = timed([&] { return pass->Step(); });
  for (size_t i = 0; i < inputs.size() && status.ok(); ++i) {
    const InputResult result = pass->TakeResult(static_cast<int64_t>(i));
    status = result.status;
    if (status.ok()) measured.demand += costs.Observed(model, inputs[i], result);
  }
  const absl::Status freed = use_backend([&] {
    pass.reset();
    return absl::OkStatus();
  });
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(freed);
  return measured;
}

// Observes the faster one of two passes, since the first makes buffers; the seconds of both.
absl::StatusOr<double> Observe(const Model& model, const std::vector<ModelInput>& inputs, const RunWork& use_backend,
                               CostModel& costs) {
  ASSIGN_OR_RETURN(const Measured first, Run(model, inputs, use_backend, costs));
  ASSIGN_OR_RETURN(const Measured second, Run(model, inputs, use_backend, costs));
  const Measured& faster = first.seconds < second.seconds ? first : second;
  costs.Observe(faster.demand, faster.seconds);
  return first.seconds + second.seconds;
}

ModelInput Capped(const Model& model, const CostModel& costs, double cap, ModelInput input) {
  const auto edges = static_cast<uint64_t>(cap * costs.Expected(model, input).edges);
  if (cap < 1.0) input.max_edges = std::max({uint64_t{1}, edges, model.LeastEdges(input)});
  return input;
}

}  // namespace

void WarmUp(const Model& model, double seconds, const RunWork& use_backend, CostModel& costs) {
  const int32_t longest = model.config().max_position_embeddings;
  double left = seconds;
  for (int32_t length = kShortest; left > 0.0; length *= kLonger) {
    const absl::StatusOr<ModelInput> input = InputOf(model, std::min(length, longest));
    if (!input.ok()) return;
    double took = 0.0;
    for (const double cap : kCaps) {
      const absl::StatusOr<double> alone = Observe(model, {Capped(model, costs, cap, *input)}, use_backend, costs);
      if (!alone.ok()) return;
      took += *alone;
    }
    ModelInput summed = *input;
    summed.wanted.expected = true;
    if (costs.Expected(model, summed).summed > 0.0) {
      const absl::StatusOr<double> alone = Observe(model, {summed}, use_backend, costs);
      if (!alone.ok()) return;
      took += *alone;
    }
    left -= took;
    if (length <= kMostTogether) {
      const absl::StatusOr<double> together =
          Observe(model, std::vector<ModelInput>(kTogether, *input), use_backend, costs);
      if (!together.ok()) return;
      left -= *together;
    }
    if (length >= longest || kLonger * kLonger * took > left) return;
  }
}

}  // namespace edgewise::server
