#include "tests/cuda/attention_rows_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>

#include "kernels/cuda/attention/draw.cuh"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/reference.h"

namespace edgewise::cuda::testing {
namespace {

using edgewise::testing::Case;
using edgewise::testing::LargestDifference;
using edgewise::testing::RunReference;

constexpr int kItemWords = kRowsPerItem * kChunkWords;

// Bits of every item in one chunk, and the multiplicities of edges with a bit in `parallel`.
__global__ void __launch_bounds__(kDrawThreads)
    DumpBits(const __grid_constant__ DeviceCall call, int32_t chunk, uint64_t* to, int32_t* multiplicity) {
  struct Shared {
    DrawScratch scratch;
    uint64_t bits[kItemWords], parallel[kItemWords];
  };
  Shared& shared = *reinterpret_cast<Shared*>(DynamicShared());
  const RowItem item = call.row_items[blockIdx.x];
  const DeviceProblem& problem = call.problems[item.problem];
  uint64_t* parallel = HasMultiplicity(problem) ? shared.parallel : nullptr;
  const double tau = TauOf(call, problem);
  DrawBits(call, problem, item, CutOf(call, problem), tau, chunk, shared.scratch, shared.bits, parallel);
  for (int i = static_cast<int>(threadIdx.x); i < kItemWords; i += kDrawThreads) {
    to[static_cast<int64_t>(blockIdx.x) * kItemWords + i] = shared.bits[i];
    for (int bit = 0; bit < 64; ++bit) {
      const bool is_edge = (shared.bits[i] >> bit & 1) != 0;
      const bool several = parallel != nullptr && (parallel[i] >> bit & 1) != 0;
      const int32_t key = chunk * kChunkKeys + i % kChunkWords * 64 + bit;
      int32_t count = is_edge ? 1 : 0;
      if (several) count = is_edge ? MultiplicityOf(call, problem, item, i / kChunkWords, key, tau) : -1;
      multiplicity[(static_cast<int64_t>(blockIdx.x) * kItemWords + i) * 64 + bit] = count;
    }
  }
}

std::vector<float> Attend(DeviceCase& device, const Case& from) {
  EXPECT_EQ(AttendRows(nullptr, device.call), cudaSuccess);
  return Get(device.call.out, from.out_rows * device.call.out_stride);
}

double LargestValue(std::span<const float> values) {
  double largest = 0.0;
  for (const float value : values) largest = std::max<double>(largest, std::abs(value));
  return largest;
}

}  // namespace

DrawnRows Drawn(Law law, uint64_t seed) {
  DrawnRows drawn;
  drawn.law = law;
  drawn.key.seed = seed;
  drawn.key.layer = 3;
  return drawn;
}

void PrintTo(const KeptEdge& edge, std::ostream* out) {
  *out << edge.query << "->" << edge.key << "x" << edge.multiplicity;
}

std::vector<std::vector<Graph>> GraphsOf(const DeviceCase& device) {
  std::vector<std::vector<Graph>> graphs(device.problems.size());
  for (auto& graph : graphs) graph.resize(device.call.num_heads);
  const std::vector<RowItem> items = Get(device.call.row_items, device.call.num_row_items);
  int32_t most = 0;
  for (const DeviceProblem& problem : device.problems) most = std::max(most, problem.tokens);
  for (int32_t chunk = 0; chunk * kChunkKeys < most; ++chunk) {
    DeviceCopies memory;
    uint64_t* bits = memory.Put(std::vector<uint64_t>(items.size() * kItemWords));
    int32_t* multiplicity = memory.Put(std::vector<int32_t>(items.size() * kItemWords * 64));
    EXPECT_EQ(Launch(nullptr, static_cast<int64_t>(items.size()), kDrawThreads,
                     sizeof(DrawScratch) + 2 * sizeof(uint64_t) * kItemWords, DumpBits, device.call, chunk, bits,
                     multiplicity),
              cudaSuccess);
    const std::vector<int32_t> counts = Get(multiplicity, static_cast<int64_t>(items.size()) * kItemWords * 64);
    for (size_t i = 0; i < items.size(); ++i) {
      for (int r = 0; r < kRowsPerItem; ++r) {
        for (int key = 0; key < kChunkKeys; ++key) {
          const int count = counts[(i * kRowsPerItem + r) * kChunkKeys + key];
          if (count == 0) continue;
          EXPECT_LT(r, items[i].queries);
          graphs[items[i].problem][items[i].head].push_back(
              {items[i].first_query + r, chunk * kChunkKeys + key, count});
        }
      }
    }
  }
  for (auto& problem : graphs) {
    for (Graph& graph : problem) {
      std::sort(graph.begin(), graph.end(), [](const KeptEdge& a, const KeptEdge& b) {
        return std::tie(a.query, a.key) < std::tie(b.query, b.key);
      });
    }
  }
  return graphs;
}

void RoundOperands(const Case& from, DeviceCase& device) {
  const auto rounded = [](const ConstMatrix& rows) {
    std::vector<__nv_bfloat16> to;
    for (int64_t r = 0; r < rows.rows; ++r) {
      for (int64_t c = 0; c < rows.columns; ++c) to.push_back(__float2bfloat16_rn(rows.row(r)[c]));
    }
    return to;
  };
  device.call.k16 = device.memory.Put(rounded(from.inputs.k));
  device.call.v16 = device.memory.Put(rounded(from.inputs.v));
}

std::vector<float> AttendCase(const Case& from, bool bf16) {
  DeviceCase device(from);
  if (bf16) RoundOperands(from, device);
  return Attend(device, from);
}

void ExpectReference(const Case& from, bool graphs) {
  const auto want = RunReference(from);
  DeviceCase device(from);
  EXPECT_LE(LargestDifference(Attend(device, from), want.out), 1e-4);
  const std::vector<DeviceHeadCounts> counts = device.Counts();
  for (size_t p = 0; p < device.problems.size(); ++p) {
    for (int h = 0; h < from.inputs.num_heads && device.problems[p].kind == PatternKind::kDrawn; ++h) {
      EXPECT_EQ(counts[device.problems[p].count + h].edges, want.reports[p].heads[h].edges);
      EXPECT_EQ(counts[device.problems[p].count + h].isolated, want.reports[p].heads[h].isolated);
    }
  }
  DeviceCase rounded(from);
  RoundOperands(from, rounded);
  EXPECT_LE(LargestDifference(Attend(rounded, from), want.out), 2e-2 * LargestValue(want.out));
  if (!graphs) return;
  const auto got = GraphsOf(device);
  for (size_t p = 0; p < got.size(); ++p) {
    for (int h = 0; h < from.inputs.num_heads; ++h) {
      Graph graph;
      for (const reference::Edge& edge : reference::DrawEdges(from.inputs, from.problems[p], h)) {
        graph.push_back({edge.query, edge.key, edge.multiplicity});
      }
      ASSERT_EQ(got[p][h], graph) << "problem " << p << " head " << h;
    }
  }
}

}  // namespace edgewise::cuda::testing
