// The row kernel against the float64 reference: the same graphs, the same sums, whatever is beside an item.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/attention_draw.cuh"
#include "kernels/cuda/attention_kernels.h"
#include "kernels/reference.h"
#include "tests/cuda/device_case.h"
#include "tests/cuda/emulator/emulator.h"

namespace edgewise::cuda {
namespace {

using ::edgewise::testing::Case;
using ::edgewise::testing::LargestDifference;
using ::edgewise::testing::RunReference;
using ::edgewise::testing::SameBytes;
using ::edgewise::testing::Shape;
using testing::DeviceCase;
using testing::Get;

// What the device kept of a problem and head, ascending.
struct KeptEdge {
  int32_t query, key;
  int multiplicity;
  bool operator==(const KeptEdge&) const = default;
};
using Graph = std::vector<KeptEdge>;
void PrintTo(const KeptEdge& edge, std::ostream* out) {
  *out << edge.query << "->" << edge.key << "x" << edge.multiplicity;
}

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

// By problem and head.
std::vector<std::vector<Graph>> GraphsOf(const DeviceCase& device) {
  std::vector<std::vector<Graph>> graphs(device.problems.size());
  for (auto& graph : graphs) graph.resize(device.call.num_heads);
  const std::vector<RowItem> items = Get(device.call.row_items, device.call.num_row_items);
  int32_t most = 0;
  for (const DeviceProblem& problem : device.problems) most = std::max(most, problem.tokens);
  for (int32_t chunk = 0; chunk * kChunkKeys < most; ++chunk) {
    testing::DeviceMemory memory;
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

// Keys and values rounded as precision bf16 has them.
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

std::vector<float> Attend(DeviceCase& device, const Case& from) {
  EXPECT_EQ(AttendRows(nullptr, device.call), cudaSuccess);
  return Get(device.call.out, from.out_rows * device.call.out_stride);
}

std::vector<float> AttendCase(const Case& from, bool bf16) {
  DeviceCase device(from);
  if (bf16) RoundOperands(from, device);
  return Attend(device, from);
}

double LargestValue(std::span<const float> values) {
  double largest = 0.0;
  for (const float value : values) largest = std::max<double>(largest, std::abs(value));
  return largest;
}

// Graphs, outputs and counts.
void ExpectReference(const Case& from, bool graphs = true) {
  const auto want = RunReference(from);
  DeviceCase device(from);
  EXPECT_LE(LargestDifference(Attend(device, from), want.out), 1e-4);
  const std::vector<HeadCounts> counts = device.Counts();
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

DrawnRows Drawn(Law law, uint64_t seed = 7) {
  DrawnRows drawn;
  drawn.law = law;
  drawn.key.seed = seed;
  drawn.key.layer = 3;
  return drawn;
}

constexpr Law kLaws[] = {Law::kBernoulli, Law::kPoissonSet, Law::kPoissonMulti};

class AttentionRowsTest : public ::testing::Test {
 protected:
  void TearDown() override { emulator::SetOrder(emulator::kForward); }
};

TEST_F(AttentionRowsTest, EveryLengthAndLawMatchesTheReference) {
  for (const Law law : kLaws) {
    SCOPED_TRACE(static_cast<int>(law));
    Shape shape;
    shape.lengths = {1, 3, 33, 64, 65, 200};
    shape.mean_rate = 0.1;
    shape.rank = 16;
    Case made(shape);
    made.AddProblems(Drawn(law));
    ExpectReference(made);
  }
}

TEST_F(AttentionRowsTest, EveryDensityMatchesTheReference) {
  for (const double rate : {0.0, 0.004, 0.03, 0.3, 0.6, 1.0, 4.0}) {
    for (const Law law : kLaws) {
      SCOPED_TRACE(std::to_string(rate) + " " + std::to_string(static_cast<int>(law)));
      Shape shape;
      shape.lengths = {130};
      shape.heads = 1;
      shape.mean_rate = rate;
      shape.spread = rate == 4.0 ? 0.0 : 0.5;
      shape.rank = 48;
      Case made(shape);
      made.AddProblems(Drawn(law));
      ExpectReference(made);
    }
  }
}

TEST_F(AttentionRowsTest, ForcedEdgesGapsAndExplorationMatchTheReference) {
  for (const Law law : kLaws) {
    for (const double gaps : {0.0, 0.3}) {
      for (const int window : {0, 1, 8, 150}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(law)) + " " + std::to_string(gaps) + " " + std::to_string(window));
        Shape shape;
        shape.lengths = {100, 7};
        shape.mean_rate = 0.02;
        shape.gap_share = gaps;
        Case made(shape);
        DrawnRows drawn = Drawn(law);
        drawn.self_loops = window == 0;
        drawn.local_window = window;
        drawn.exploration = window == 8 ? 0.1f : 0.0f;
        made.AddProblems(drawn);
        ExpectReference(made);
      }
    }
  }
}

TEST_F(AttentionRowsTest, EveryDimensionMatchesTheReference) {
  const std::pair<int, int> dims[] = {{5, 5},   {16, 16},  {33, 33}, {64, 64}, {128, 128}, {256, 256},
                                      {32, 48}, {64, 200}, {16, 1},  {8, 96},  {1, 2},     {96, 40}};
  for (const auto& [head_dim, value_dim] : dims) {
    for (const double rate : {0.05, 0.6}) {
      SCOPED_TRACE(std::to_string(head_dim) + " " + std::to_string(value_dim) + " " + std::to_string(rate));
      Shape shape;
      shape.lengths = {70, 5};
      shape.head_dim = head_dim;
      shape.value_dim = value_dim;
      shape.mean_rate = rate;
      shape.spread = 0.2;
      shape.one_matrix = head_dim % 3 == 0;
      Case made(shape);
      made.AddProblems(Drawn(Law::kBernoulli));
      ExpectReference(made, false);
    }
  }
}

// Output rows without gaps, where problems have fewer queries than tokens.
void PackOutput(Case& made) {
  made.out_rows = 0;
  for (AttentionProblem& problem : made.problems) {
    problem.out_row = made.out_rows;
    made.out_rows += problem.tokens - problem.first_query;
  }
}

// Graphs that the reference drew, as given rows.
std::vector<std::vector<HeadEdges>> Given(const Case& from) {
  for (const auto& report : from.reports) report->want_graph = true;
  std::vector<std::vector<HeadEdges>> given;
  for (const AttentionReport& report : RunReference(from).reports) {
    given.emplace_back();
    for (const HeadReport& head : report.heads) given.back().push_back(head.graph);
  }
  return given;
}

TEST_F(AttentionRowsTest, DrawnGraphsGivenBackGiveTheSameBytes) {
  for (const Law law : kLaws) {
    for (const double rate : {0.01, 0.1, 0.5}) {
      for (const bool bf16 : {false, true}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(law)) + " " + std::to_string(rate) + (bf16 ? " bf16" : " fp32"));
        Shape shape;
        shape.lengths = {80, 33};
        shape.mean_rate = rate;
        shape.gap_share = 0.1;
        shape.head_dim = 32;
        Case made(shape);
        made.AddProblems(Drawn(law));
        const std::vector<float> want = AttendCase(made, bf16);
        const auto given = Given(made);
        for (size_t p = 0; p < given.size(); ++p) made.problems[p].pattern = ExplicitEdges{&given[p]};
        EXPECT_TRUE(SameBytes(AttendCase(made, bf16), want));
      }
    }
  }
}

TEST_F(AttentionRowsTest, GivenRowsMatchTheReference) {
  std::mt19937 random(5);
  Shape shape;
  shape.lengths = {90, 1, 40};
  Case made(shape);
  made.AddProblems(Drawn(Law::kBernoulli));
  std::vector<std::vector<HeadEdges>> given(shape.lengths.size());
  for (size_t p = 0; p < given.size(); ++p) {
    made.problems[p].first_query = p == 2 ? 25 : 0;
    for (int head = 0; head < shape.heads; ++head) {
      HeadEdges edges;
      edges.row_offsets.push_back(0);
      for (int i = made.problems[p].first_query; i < shape.lengths[p]; ++i) {
        const uint32_t share = i % 5 == 0 ? 0 : random() % 100;  // empty and full rows too
        for (int j = 0; j < shape.lengths[p]; ++j) {
          if (random() % 100 >= share && share < 95) continue;
          edges.keys.push_back(j);
          if (p != 1) edges.multiplicity.push_back(1 + static_cast<int>(random() % 4 == 0 ? random() % 90000 : 0));
        }
        edges.row_offsets.push_back(static_cast<int64_t>(edges.keys.size()));
      }
      given[p].push_back(edges);
    }
    made.problems[p].pattern = ExplicitEdges{&given[p]};
  }
  PackOutput(made);
  ExpectReference(made);
  for (auto& problem : given) {
    for (HeadEdges& edges : problem) edges.multiplicity.clear();
  }
  ExpectReference(made);
}

TEST_F(AttentionRowsTest, BiasesMatchTheReference) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (const double rate : {0.05, 0.6}) {
    for (const int kind : {0, 1, 2, 3}) {
      SCOPED_TRACE(std::to_string(rate) + " " + std::to_string(kind));
      Shape shape;
      shape.lengths = {60, 70};
      shape.mean_rate = rate;
      shape.gap_share = 0.2;
      Case made(shape);
      made.AddProblems(Drawn(Law::kBernoulli));
      const int32_t span = std::max(made.positions[0].back(), made.positions[1].back()) + 1;
      std::vector<float> distance, values, table;
      std::vector<uint8_t> buckets;
      for (int i = 0; i < shape.heads * (2 * span - 1); ++i) distance.push_back(normal(random));
      for (int i = 0; i < shape.heads * 256; ++i) table.push_back(normal(random));
      for (int i = 0; i < span * span; ++i) {
        values.push_back(normal(random));
        buckets.push_back(static_cast<uint8_t>(random()));
      }
      PairwiseBias bias;
      bias.length = span;
      if (kind == 1) bias.values = values.data();
      if (kind >= 2) bias.buckets = buckets.data(), bias.table = table.data();
      if (kind == 0 || kind == 3) {
        made.inputs.distance_bias = distance.data();
        made.inputs.distance_span = span;
      }
      if (kind > 0) made.problems[1].bias = &bias;
      ExpectReference(made, false);
    }
  }
}

// More keys than a chunk has; the last rows only, so that it takes little time.
TEST_F(AttentionRowsTest, SeveralChunksMatchTheReference) {
  std::mt19937 random(8);
  for (const int every : {1, 2, 97}) {  // keys of a row: all, half, few
    SCOPED_TRACE(every);
    Shape shape;
    shape.lengths = {2 * kChunkKeys + 70};
    shape.heads = 1;
    Case made(shape);
    made.AddProblems(Drawn(Law::kBernoulli));
    const int tokens = shape.lengths[0];
    made.problems[0].first_query = tokens - 40;
    std::vector<HeadEdges> given(1);
    given[0].row_offsets.push_back(0);
    for (int i = tokens - 40; i < tokens; ++i) {
      for (int j = i % 7 == 0 ? kChunkKeys : 0; j < tokens; j += 1 + static_cast<int>(random() % every)) {
        given[0].keys.push_back(j);
      }
      given[0].row_offsets.push_back(static_cast<int64_t>(given[0].keys.size()));
    }
    made.problems[0].pattern = ExplicitEdges{&given};
    PackOutput(made);
    ExpectReference(made);
  }
}

TEST_F(AttentionRowsTest, DrawsOverSeveralChunksMatchTheReference) {
  for (const double gaps : {0.0, 0.05}) {
    Shape shape;
    shape.lengths = {kChunkKeys + 600};
    shape.heads = 2;
    shape.rank = 16;
    shape.mean_rate = 0.02;
    shape.gap_share = gaps;
    Case made(shape);
    DrawnRows drawn = Drawn(Law::kPoissonMulti);
    drawn.local_window = 20;
    made.AddProblems(drawn);
    DeviceCase device(made);
    std::vector<RowItem> items = Get(device.call.row_items, device.call.num_row_items);
    items = {items[0], items[kChunkKeys / kRowsPerItem], items.back()};
    device.call.row_items = device.memory.Put(items);
    device.call.num_row_items = static_cast<int64_t>(items.size());
    const auto got = GraphsOf(device);
    for (const RowItem& item : items) {
      Graph want, kept;
      const Memberships& m = made.inputs.memberships;
      for (int32_t i = item.first_query; i < item.first_query + item.queries; ++i) {
        for (int32_t j = 0; j < shape.lengths[0]; ++j) {
          const int32_t query = made.positions[0][i], key = made.positions[0][j];
          const float rate = EdgeRate(
              MembershipDot(m.x + (item.head * m.rows + i) * m.rank, m.y + (item.head * m.rows + j) * m.rank, m.rank),
              0.0f);
          const uint64_t uniform = PairUniform(drawn.key, item.head, query, key);
          const int count = EdgeMultiplicity(uniform, rate);
          const bool forced = std::abs(query - key) <= 10;
          if (forced || uniform < EdgeThreshold(EdgeProbability(drawn.law, rate))) {
            want.push_back({i, j, std::max(1, count)});
          }
        }
      }
      for (const KeptEdge& edge : got[0][item.head]) {
        if (edge.query >= item.first_query && edge.query < item.first_query + item.queries) kept.push_back(edge);
      }
      ASSERT_EQ(kept, want);
    }
  }
}

TEST_F(AttentionRowsTest, CutsKeepWhatComesBefore) {
  for (const Law law : kLaws) {
    for (const double share : {0.0, 0.3, 0.9}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(law)) + " " + std::to_string(share));
      Shape shape;
      shape.lengths = {75};
      shape.mean_rate = 0.3;
      Case made(shape);
      DrawnRows drawn = Drawn(law);
      drawn.self_loops = true;
      made.AddProblems(drawn, 0);
      std::vector<AgedEdge> ages;
      for (int head = 0; head < shape.heads; ++head) {
        for (const reference::Edge& edge : reference::DrawEdges(made.inputs, made.problems[0], head)) {
          if (edge.forced) continue;
          ages.push_back({AgeBits(edge.age), EdgeOrder(0, 2, head, edge.query, edge.key)});
        }
      }
      std::sort(ages.begin(), ages.end(), IsBefore);
      const AgedEdge first_dropped = ages[static_cast<size_t>(share * static_cast<double>(ages.size()))];
      DeviceCase device(made, {testing::CapOf(1)});
      std::vector<DeviceCap> caps = device.Caps();
      caps[0].cut = {first_dropped.age_bits, first_dropped.order};
      caps[0].tau = AgeOfBits(first_dropped.age_bits);
      device.call.caps = device.memory.Put(caps);
      const auto got = GraphsOf(device);
      for (int head = 0; head < shape.heads; ++head) {
        Graph want;
        for (const reference::Edge& edge : reference::DrawEdges(made.inputs, made.problems[0], head)) {
          const AgedEdge aged = {AgeBits(edge.age), EdgeOrder(0, 2, head, edge.query, edge.key)};
          if (!edge.forced && !IsBefore(aged, first_dropped)) continue;
          const int count = EdgeMultiplicity(edge.uniform, caps[0].tau * edge.rate);
          want.push_back({edge.query, edge.key, law == Law::kPoissonMulti ? std::max(1, count) : 1});
        }
        ASSERT_EQ(got[0][head], want);
      }
    }
  }
}

TEST_F(AttentionRowsTest, OrderAndCompanyChangeNoBit) {
  for (const Law law : {Law::kBernoulli, Law::kPoissonMulti}) {
    for (const double rate : {0.05, 0.5}) {
      for (const bool bf16 : {false, true}) {
        Shape shape;
        shape.lengths = {70, 50};
        shape.mean_rate = rate;
        Case made(shape);
        made.AddProblems(Drawn(law));
        const std::vector<float> want = AttendCase(made, bf16);
        for (const emulator::Order order : {emulator::kBackward, emulator::Shuffled(3), emulator::Shuffled(4)}) {
          emulator::SetOrder(order);
          EXPECT_TRUE(SameBytes(AttendCase(made, bf16), want));
        }
        emulator::SetOrder(emulator::kForward);
        DeviceCase device(made);
        if (bf16) RoundOperands(made, device);
        const DeviceCall call = device.call;
        for (int64_t item = call.num_row_items - 1; item >= 0; --item) {
          device.call.row_items = call.row_items + item;
          device.call.num_row_items = 1;
          EXPECT_EQ(AttendRows(nullptr, device.call), cudaSuccess);
        }
        EXPECT_TRUE(SameBytes(Get(call.out, made.out_rows * call.out_stride), want));
      }
    }
  }
}

TEST_F(AttentionRowsTest, ScoresThatOverflowGiveNaNToTheirRowsOnly) {
  for (const double rate : {0.05, 0.6}) {
    for (const bool bf16 : {false, true}) {
      SCOPED_TRACE(std::to_string(rate) + (bf16 ? " bf16" : " fp32"));
      Shape shape;
      shape.lengths = {40};
      shape.heads = 1;
      shape.mean_rate = rate;
      Case made(shape);
      made.AddProblems(Drawn(Law::kBernoulli));
      const std::vector<float> want = RunReference(made).out;
      for (int c = 0; c < shape.head_dim; ++c) made.data[20 * shape.head_dim + c] = c % 2 == 0 ? 3e38f : -3e38f;
      const std::vector<float> out = AttendCase(made, bf16);
      const auto edges = reference::DrawEdges(made.inputs, made.problems[0], 0);
      for (int row = 0; row < 40; ++row) {
        const bool isolated =
            std::none_of(edges.begin(), edges.end(), [&](const reference::Edge& edge) { return edge.query == row; });
        for (int c = 0; c < shape.head_dim; ++c) {
          const float value = out[row * shape.head_dim + c];
          if (row == 20 && !isolated) {
            EXPECT_TRUE(std::isnan(value));
          } else {
            EXPECT_NEAR(value, want[row * shape.head_dim + c], bf16 ? 5e-2 : 1e-4);
          }
        }
      }
    }
  }
}

TEST_F(AttentionRowsTest, HeadsThatAreTooWideAreRefused) {
  DeviceCall call = {};
  call.head_dim = kTileKeys;
  call.value_dim = 257;
  call.num_row_items = 1;
  EXPECT_EQ(AttendRows(nullptr, call), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace edgewise::cuda
