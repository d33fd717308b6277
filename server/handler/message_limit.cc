#include "server/handler/message_limit.h"

#include <algorithm>

#include "server/base/memory.h"

namespace edgewise::server {
namespace {

constexpr uint64_t kUsualMessage = uint64_t{4} << 20;
constexpr uint64_t kLeastMemory = uint64_t{64} << 20;
constexpr double kRest = 64 << 10;                      // names, options, the frames of fields
constexpr double kIdBytes = 5;                          // a token id on the wire, at most
constexpr double kHeadBytes = 32;                       // the frames of its fields
constexpr double kEdgeBytes = 3 + 4 + 3;                // a key, its weight and its multiplicity
constexpr uint64_t kParts = 3;                          // a message may take 1/kParts of the memory
constexpr uint64_t kLargest = (uint64_t{1} << 31) - 1;  // for Protobuf

// The rest is for what gRPC holds itself.
uint64_t PartOfCalls(uint64_t memory) { return memory / 4 * 3; }

}  // namespace

uint64_t LongestMessage(const ModelConfig& config, const RequestLimits& limits) {
  const double positions = config.max_position_embeddings;
  double input = positions * (config.feature_size > 0 ? config.feature_size * sizeof(float) : kIdBytes);
  if (config.pairwise_bias == PairwiseBiasKind::kValues) input += positions * positions * sizeof(float);
  if (config.pairwise_bias == PairwiseBiasKind::kBuckets) input += positions * positions;
  const double sequences = config.task == ModelTask::kPairClassification ? 2 : 1;
  input *= sequences;
  if (limits.allow_graphs) {
    const double heads = sequences * config.num_hidden_layers * config.num_attention_heads;
    const double edges = std::min(heads * positions * positions, static_cast<double>(limits.max_graph_edges));
    input += heads * (kHeadBytes + (positions + 1) * kIdBytes) + edges * kEdgeBytes;
  }
  return static_cast<uint64_t>(std::min(input + kRest, static_cast<double>(kLargest)));
}

uint64_t MemoryForCalls(const ServerOptions& options, const std::vector<ModelStatus>& models) {
  if (options.max_memory > 0) return PartOfCalls(options.max_memory);
  uint64_t weights = 0;
  for (const ModelStatus& model : models) {
    if (model.loaded) weights += model.loaded->model->parameters() * sizeof(float);
  }
  const uint64_t available = AvailableMemory();
  return PartOfCalls(std::max(kLeastMemory, (available - std::min(available, weights)) / 2));
}

uint64_t LargestMessageLimit(const ServerOptions& options, uint64_t memory) {
  return options.max_message_bytes > 0 ? options.max_message_bytes : std::min(memory / kParts, kLargest);
}

uint64_t MessageLimit(const ServerOptions& options, uint64_t memory, const std::vector<ModelStatus>& models) {
  const uint64_t most = LargestMessageLimit(options, memory);
  if (options.max_message_bytes > 0) return most;
  uint64_t limit = kUsualMessage;
  for (const ModelStatus& model : models) {
    if (model.loaded) limit = std::max(limit, LongestMessage(model.loaded->model->config(), options.limits));
  }
  return std::min(limit, most);
}

}  // namespace edgewise::server
