#include "kernels/cuda/attention/edge_graph.h"

#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/device/device_array.h"

namespace edgewise::cuda {
namespace {

// Arrays of all heads of a problem, one head behind the other.
struct Edges {
  std::vector<int64_t> row_offsets;  // [heads, queries + 1], into the next
  std::vector<int32_t> keys;
  std::vector<int32_t> multiplicity;  // empty: all 1
};

// A copy of `host` on the device; of at least one byte.
template <typename T>
absl::StatusOr<DeviceArray> Upload(Device& device, const std::vector<T>& host) {
  const auto bytes = static_cast<int64_t>(host.size() * sizeof(T));
  absl::StatusOr<DeviceArray> block = DeviceArray::Create(device, bytes);
  if (!block.ok() || bytes == 0) return block;
  const absl::Status status = device.staging().Upload(host.data(), bytes, block->data());
  if (!status.ok()) return status;
  return block;
}

template <typename T>
absl::Status Download(Device& device, const DeviceArray& block, std::vector<T>& host) {
  const Staging::ToHost copy = {host.data(), block.data(), static_cast<int64_t>(host.size() * sizeof(T))};
  return device.staging().Download({&copy, 1});
}

// Where the rows of a drawn problem begin.
absl::Status CountRows(Device& device, int32_t index, int64_t heads, int64_t queries, DrawRounds& rounds,
                       Edges& edges) {
  std::vector<int32_t> of_row(heads * queries);
  absl::StatusOr<DeviceArray> block =
      DeviceArray::Create(device, static_cast<int64_t>(of_row.size() * sizeof(int32_t)));
  if (!block.ok()) return block.status();
  const auto count = [&](const DeviceCall& round) {
    return CountRowEdges(device.stream(), round, index, block->as<int32_t>());
  };
  absl::Status status = CudaStatus(rounds.ForKept(count, index), "edges of rows");
  if (status.ok()) status = Download(device, *block, of_row);
  int64_t sum = 0;
  for (int64_t h = 0; h < heads; ++h) {
    edges.row_offsets.push_back(sum);
    for (int64_t i = 0; i < queries; ++i) edges.row_offsets.push_back(sum += of_row[h * queries + i]);
  }
  return status;
}

// The edges that a report has.
Edges EdgesOf(const AttentionReport& report) {
  Edges edges;
  bool multi = false;
  for (const HeadReport& head : report.heads) multi |= !head.graph.multiplicity.empty();
  for (const HeadReport& head : report.heads) {
    const HeadEdges& graph = head.graph;
    const auto before = static_cast<int64_t>(edges.keys.size());
    for (int64_t offset : graph.row_offsets) edges.row_offsets.push_back(before + offset);
    edges.keys.insert(edges.keys.end(), graph.keys.begin(), graph.keys.end());
    if (!multi) continue;
    edges.multiplicity.insert(edges.multiplicity.end(), graph.multiplicity.begin(), graph.multiplicity.end());
    edges.multiplicity.resize(edges.keys.size(), 1);
  }
  return edges;
}

}  // namespace

absl::Status FillGraph(Device& device, const AttentionProblem& problem, int32_t index, DrawRounds& rounds) {
  const DeviceCall& call = rounds.call();
  const int64_t heads = call.num_heads, queries = problem.tokens - problem.first_query;
  const auto* drawn = std::get_if<DrawnRows>(&problem.pattern);
  Edges edges;
  if (drawn == nullptr) {
    edges = EdgesOf(*problem.report);
  } else {
    const absl::Status status = CountRows(device, index, heads, queries, rounds, edges);
    if (!status.ok()) return status;
    edges.keys.resize(edges.row_offsets.back());
    if (drawn->law == Law::kPoissonMulti) edges.multiplicity.resize(edges.keys.size());
  }
  const bool multi = drawn != nullptr ? drawn->law == Law::kPoissonMulti : !edges.multiplicity.empty();
  absl::StatusOr<DeviceArray> offsets = Upload(device, edges.row_offsets);
  if (!offsets.ok()) return offsets.status();
  absl::StatusOr<DeviceArray> keys = Upload(device, edges.keys);
  if (!keys.ok()) return keys.status();
  absl::StatusOr<DeviceArray> multiplicity = Upload(device, edges.multiplicity);
  if (!multiplicity.ok()) return multiplicity.status();
  std::vector<float> weights(edges.keys.size());
  absl::StatusOr<DeviceArray> device_weights = Upload(device, weights);
  if (!device_weights.ok()) return device_weights.status();

  absl::Status status;
  int32_t* of_edges = multi ? multiplicity->as<int32_t>() : nullptr;
  if (drawn != nullptr) {
    const auto list = [&](const DeviceCall& round) {
      return ListEdges(device.stream(), round, index, offsets->as<int64_t>(), keys->as<int32_t>(), of_edges);
    };
    status = CudaStatus(rounds.ForKept(list, index), "list of edges");
    if (status.ok()) status = Download(device, *keys, edges.keys);
    if (status.ok() && multi) status = Download(device, *multiplicity, edges.multiplicity);
  }
  if (status.ok()) {
    status = CudaStatus(EdgeWeights(device.stream(), call, index, offsets->as<int64_t>(), keys->as<int32_t>(), of_edges,
                                    device_weights->as<float>()),
                        "softmax weights of edges");
  }
  if (status.ok()) status = Download(device, *device_weights, weights);
  if (!status.ok()) return status;

  for (int64_t h = 0; h < heads; ++h) {
    HeadEdges& graph = problem.report->heads[h].graph;
    const auto rows = std::span(edges.row_offsets).subspan(h * (queries + 1), queries + 1);
    const int64_t begin = rows.front(), end = rows.back();
    if (drawn != nullptr) {
      graph.row_offsets.clear();
      for (int64_t row : rows) graph.row_offsets.push_back(row - begin);
      graph.keys.assign(edges.keys.begin() + begin, edges.keys.begin() + end);
      if (multi) graph.multiplicity.assign(edges.multiplicity.begin() + begin, edges.multiplicity.begin() + end);
    }
    graph.weights.assign(weights.begin() + begin, weights.begin() + end);
  }
  return absl::OkStatus();
}

}  // namespace edgewise::cuda
