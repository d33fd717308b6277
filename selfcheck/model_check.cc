#include "selfcheck/model_check.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/forward/pass.h"
#include "selfcheck/difference.h"

namespace edgewise::selfcheck {
namespace {

// Random tokens without pads, or random features; two of them for a model of pairs.
absl::StatusOr<ModelInput> RandomInput(const Model& model, int32_t tokens) {
  const ModelConfig& config = model.config();
  std::mt19937 random(3);
  ModelInput input;
  input.seed = 1;
  const int32_t length = std::max(1, std::min(tokens, config.max_position_embeddings));
  for (int sequence = 0; sequence < (config.task == ModelTask::kPairClassification ? 2 : 1); ++sequence) {
    absl::StatusOr<ModelSequence> prepared;
    if (config.feature_size > 0) {
      // An image has all its patches; other rows are as many as wanted.
      const int32_t rows = config.image.channels > 0 ? FewestRows(config) : std::max(length, FewestRows(config));
      std::normal_distribution<float> normal;
      std::vector<float> values(static_cast<size_t>(rows) * config.feature_size);
      for (float& value : values) value = normal(random);
      prepared = model.PrepareFeatures(rows, config.feature_size, std::move(values), TruncateMode::kHead);
    } else {
      std::vector<int32_t> ids;
      for (int32_t i = 0; i < length; ++i) {
        int32_t id = static_cast<int32_t>(random() % static_cast<uint32_t>(config.vocab_size));
        if (id == config.pad_token_id) id = (id + 1) % config.vocab_size;
        ids.push_back(id);
      }
      if (config.task == ModelTask::kFillMask) ids[0] = config.mask_token_id;
      prepared = model.Prepare(std::move(ids), TruncateMode::kHead);
    }
    if (!prepared.ok()) return prepared.status();
    input.sequences.push_back(*std::move(prepared));
  }
  return input;
}

// The second of two passes, timed. Its status: numbers that are not finite.
absl::StatusOr<InputResult> Run(const Model& model, const ModelInput& input, double& milliseconds) {
  for (int run = 0;; ++run) {
    const std::vector<ModelInput> inputs = {input};
    const auto start = std::chrono::steady_clock::now();
    Pass pass(model, inputs, {});
    while (!pass.done()) {
      const absl::Status status = pass.Step();
      if (!status.ok()) {
        return absl::Status(status.code(),
                            absl::StrCat(model.backend().device(), ": the model: ", std::string(status.message())));
      }
    }
    milliseconds = 1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    InputResult result = pass.TakeResult(0);
    if (run == 1) return result;
  }
}

}  // namespace

absl::StatusOr<std::vector<ModelRow>> CheckModel(const Model& on_device, const Model& on_cpu, int32_t tokens,
                                                 double tolerance) {
  absl::StatusOr<ModelInput> input = RandomInput(on_cpu, tokens);
  if (!input.ok()) return input.status();
  std::vector<ModelRow> rows;
  std::optional<Graph> drawn;
  for (const char* name : {"all pairs", "its own edges", "the CPU's edges"}) {
    ModelInput of_cpu = *input;
    of_cpu.dense = name == std::string("all pairs");
    of_cpu.wanted.graph = name == std::string("its own edges");
    ModelInput of_device = of_cpu;
    of_device.wanted.graph = false;
    if (name == std::string("the CPU's edges")) of_cpu.graph = of_device.graph = drawn;
    ModelRow row;
    row.name = name;
    const auto want = Run(on_cpu, of_cpu, row.cpu_ms);
    if (!want.ok()) return want.status();
    const auto got = Run(on_device, of_device, row.device_ms);
    if (!got.ok()) return got.status();
    if (want->graph.has_value()) drawn = want->graph;
    const bool finite = want->status.ok() && got->status.ok();
    row.error = finite ? RelativeError(got->logits, want->logits) : std::numeric_limits<double>::quiet_NaN();
    row.cpu_density = want->density;
    row.device_density = got->density;
    const bool near = std::abs(row.device_density - row.cpu_density) <= kDensityTolerance * row.cpu_density;
    row.judged_by_density = of_cpu.wanted.graph;
    row.passed = row.judged_by_density ? near && std::isfinite(row.error) : row.error <= tolerance;
    rows.push_back(row);
  }
  return rows;
}

}  // namespace edgewise::selfcheck
