// Every kernel of a GPU once, in small calls: what the GPU bundle runs under compute-sanitizer, where a launch takes
// seconds. Run on the emulator with EDGEWISE_EMULATED_EVERY_KERNEL=1, it fails where it has left out a kernel.
#include <algorithm>
#include <cmath>
#include <string>

#include "tests/kernels/attention_patterns.h"
#include "tests/kernels/decoder_case.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/paged_case.h"
#include "tests/kernels/random_floats.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::Fetch;
using testing::Place;
using testing::Random;
using testing::Shape;

class EveryKernelTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Gpus, EveryKernelTest);

// The widths that kernels are compiled for, as columns of queries and of values.
constexpr int kWidths[][2] = {{16, 16},  {32, 32}, {64, 64},   {128, 128}, {256, 256}, {24, 16},
                              {136, 32}, {72, 64}, {136, 128}, {136, 256}, {32, 128},  {64, 72}};

TEST_P(EveryKernelTest, AttentionIsRight) {
  for (const auto& [head_dim, value_dim] : kWidths) {
    SCOPED_TRACE(std::to_string(head_dim) + ", " + std::to_string(value_dim));
    Shape shape;
    shape.lengths = {70, 3};
    shape.heads = 1;
    shape.head_dim = head_dim;
    shape.value_dim = value_dim;
    shape.mean_rate = 0.02;
    Case made(shape);
    made.AddProblems(AllPairs{true});
    made.AddProblems(DrawnRows{.exploration = 0.5f});
    made.AddProblems(DrawnRows{.law = Law::kPoissonMulti, .self_loops = true}, 0);
    made.AddProblems(DrawnRows{.way = DrawWay::kEvents}, 1);
    made.AskForAll();
    std::vector<EdgeCap> caps(2);
    caps[0].max_edges = 90;
    caps[1].max_edges = 20;
    caps[1].keep = CapRule::kProbable;
    const auto ledger = *backend_->MakeLedger(90);
    std::vector<EdgeCap> with_ledger = caps;
    with_ledger[0].ledger = ledger.get();
    const testing::Outcome want = RunReference(made, caps), got = Run(made, with_ledger);
    ExpectNear(got.out, want.out, GetParam().outputs);
    ExpectSameReports(got, want, GetParam().weights, GetParam().expected);
    EXPECT_EQ(*backend_->Remaining(*ledger), 0u);

    const auto graphs = testing::GraphsOf(got);
    for (size_t p = 0; p < graphs.size(); ++p) {
      made.problems[p].pattern = ExplicitEdges{&graphs[p], p < 2};  // all pairs are compact
      made.problems[p].cap = -1;
    }
    EXPECT_TRUE(testing::SameBytes(Run(made).out, got.out));
  }
}

// Without biases and edges that count more than once.
TEST_P(EveryKernelTest, PlainRowsAreRight) {
  for (const auto& [head_dim, value_dim] : kWidths) {
    SCOPED_TRACE(std::to_string(head_dim) + ", " + std::to_string(value_dim));
    Shape shape;
    shape.lengths = {70};
    shape.heads = 1;
    shape.head_dim = head_dim;
    shape.value_dim = value_dim;
    shape.mean_rate = 0.02;
    Case made(shape);
    made.AddProblems(DrawnRows{.way = DrawWay::kEvents});
    ExpectReference(made);
  }
}

TEST_P(EveryKernelTest, DecodingIsRight) {
  for (const auto& [head_dim, value_dim] : kWidths) {
    SCOPED_TRACE(std::to_string(head_dim) + ", " + std::to_string(value_dim));
    Shape shape;
    shape.lengths = {300};  // keys of two parts
    shape.heads = 2;
    shape.key_value_heads = 1;
    shape.head_dim = head_dim;
    shape.value_dim = value_dim;
    Case made(shape);
    made.inputs.phase = Phase::kDecode;
    for (const int32_t reach : {AllPairs::kFar, 50}) made.AddProblems(AllPairs{true, reach});
    for (int p = 0; p < 2; ++p) {
      made.problems[p].first_query = 299;
      made.problems[p].out_row = p;
    }
    made.out_rows = 2;
    ExpectReference(made);
  }
}

TEST_P(EveryKernelTest, PagesHoldRows) {
  Shape shape;
  shape.lengths = {70};
  Case made(shape);
  made.inputs.phase = Phase::kDecode;
  made.AddProblems(AllPairs{true});
  const testing::Outcome whole = Run(made);
  const testing::Paged paged(*backend_, made);
  paged.Give(made);
  EXPECT_TRUE(testing::SameBytes(Run(made).out, whole.out));
}

TEST_P(EveryKernelTest, TokensAreThoseOfTheCpu) {
  const std::vector<TokenChoice> choices = {
      {}, {.temperature = 1.0, .top_k = 900, .top_p = 0.9, .uniform = 0.4, .samples = 2}};
  constexpr int64_t kVocabulary = 2100;
  const std::vector<float> logits = Random(3 * kVocabulary, 1);
  const auto choose = [&](Backend& backend) {
    const auto chooser = *backend.MakeTokenChooser(choices, kVocabulary);
    const Buffer placed = Place(backend, logits);
    EXPECT_TRUE(backend.AddLogits(*chooser, placed.AsMatrix(3, kVocabulary)).ok());
    return *backend.ChosenTokens(*chooser);
  };
  const auto cpu = *CreateBackend({});
  const std::vector<ChosenToken> got = choose(*backend_), want = choose(*cpu);
  for (size_t i = 0; i < choices.size(); ++i) {
    EXPECT_EQ(got[i].id, want[i].id);
    EXPECT_NEAR(got[i].log_probability, want[i].log_probability, 1e-5);
  }
}

TEST_P(EveryKernelTest, DecodersAreRight) {
  if (!GetParam().bf16) return;
  const auto cpu = *CreateBackend({});
  for (const int32_t head_dim : {16, 32, 64, 128, 256}) {
    const testing::DecoderShape shape = {"", 2, 1, head_dim, 32, 40, head_dim % 3 == 1};
    testing::PlacedDecoder of_cpu(*cpu, shape), placed(*backend_, shape);
    const auto decoder = *backend_->PrepareDecoder(placed.decoder);
    const testing::DecodedText text(*backend_, shape, 3, 1);
    const Buffer logits = *backend_->Allocate(3 * testing::kVocabulary);
    const std::vector<DecodedRow> rows = {text.Row(0, true), text.Row(1, true), text.Row(2, true)};
    EXPECT_TRUE(backend_->Decode(*decoder, rows, logits.AsMatrix(3, testing::kVocabulary)).ok());
    ExpectNear(Fetch(*backend_, logits), of_cpu.Pass(text.text), 0.05);
  }
}

// What the operations of a layer make of rows so wide.
std::vector<float> Operations(Backend& backend, int64_t width) {
  constexpr int64_t kRows = 9;
  const auto check = [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; };
  const Buffer words = Place(backend, Random(11 * width, 1)), positions = Place(backend, Random(20 * width, 2));
  const Buffer scale = Place(backend, Random(width, 3)), shift = Place(backend, Random(width, 4));
  const Buffer rows = *backend.Allocate(kRows * width), sums = Place(backend, Random(kRows * width, 5));
  const Buffer gathered = *backend.Allocate(3 * width), means = *backend.Allocate(2 * width),
               pairs = *backend.Allocate(16 * width);
  const Matrix x = rows.AsMatrix(kRows, width), y = sums.AsMatrix(kRows, width);
  const std::vector<int32_t> ids = {1, 0, 10, 3, 3, 7, 9, 2, 5}, places = {0, 1, 2, 3, 4, 5, 19, 7, 8};
  check(backend.Embed(words.AsMatrix(11, width), positions.AsMatrix(20, width), ids, places, x));
  check(backend.LayerNorm(x, scale.data(), shift.data(), 1e-5f, x));
  const Buffer wide = Place(backend, Random(20 * width, 10)), wide_scale = Place(backend, Random(20 * width, 11));
  const Matrix one = wide.AsMatrix(1, 20 * width);  // more columns than a warp holds in registers
  check(backend.RmsNorm(one, wide_scale.data(), 1e-5f, one.columns, one));
  check(backend.Rotate(x.Columns(0, 16), words.AsMatrix(20, 8), places));
  check(backend.RmsNorm(x, scale.data(), 1e-5f, width, x));
  const float unit = 1.0f / std::sqrt(static_cast<float>(width));
  const auto weights =
      *backend.PrepareLinear(Random(width * width, 6, unit), Random(width, 7), width, width, Activation::kGelu);
  check(backend.Linear(*weights, x, y, true, Phase::kPrefill));
  for (const int64_t few : {1, 2, 4, 9}) {
    check(backend.Linear(*weights, x.Rows(0, few), y.Rows(0, few), true, Phase::kDecode));
  }
  const auto gate_up =
      *backend.PrepareLinear(Random(2 * width * width, 8, unit), {}, 2 * width, width, Activation::kNone);
  const auto down = *backend.PrepareLinear(Random(width * width, 9, unit), {}, width, width, Activation::kNone);
  check(backend.GatedFeedForward(*gate_up, *down, Activation::kSilu, x, y));
  check(backend.GatherRows(y, std::vector<int64_t>{8, 0, 3}, gathered.AsMatrix(3, width)));
  check(backend.PoolMean(y, std::vector<int64_t>{0, 2, kRows}, std::vector<float>{2, 7}, means.AsMatrix(2, width)));
  check(backend.PairFeatures(y.Rows(0, 4), y.Rows(4, 4), pairs.AsMatrix(4, 4 * width)));
  std::vector<float> all;
  for (const Buffer* buffer : {&gathered, &means, &pairs, &wide}) {
    const std::vector<float> host = Fetch(backend, *buffer);
    all.insert(all.end(), host.begin(), host.end());
  }
  return all;
}

// The memberships of queries and keys in a head.
std::vector<float> MembershipsOf(Backend& backend, int columns, int clusters) {
  constexpr int kRows = 18;
  const auto w0 = Random(columns * columns, 1, 0.4f), b0 = Random(columns, 2, 0.2f);
  const auto w1 = Random(columns * columns, 3, 0.4f), b1 = Random(columns, 4, 0.2f);
  const auto centres = Random(clusters * columns, 5, 0.5f);
  std::vector<float> block_matrix(static_cast<size_t>(clusters) * clusters);
  for (int c = 0; c < clusters; ++c) block_matrix[c * clusters + (c * 3 + 1) % clusters] = 1.0f / clusters;
  const auto weights = *backend.PrepareMemberships({1, columns, clusters, w0, b0, w1, b1, centres, block_matrix});
  const int32_t rank = weights->rank();
  const Buffer q = Place(backend, Random(kRows * columns, 6)), k = Place(backend, Random(kRows * columns, 7));
  const Buffer x = *backend.Allocate(kRows * rank), y = *backend.Allocate(kRows * rank);
  const Buffer query_bound = *backend.Allocate(kRows), key_bound = *backend.Allocate(kRows);
  const Memberships out = {x.data(), y.data(), query_bound.data(), key_bound.data(), kRows, rank};
  const absl::Status status =
      backend.ComputeMemberships(*weights, q.AsMatrix(kRows, columns), k.AsMatrix(kRows, columns), out);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<float> rates;
  const std::vector<float> of_queries = Fetch(backend, x), of_keys = Fetch(backend, y);
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kRows; ++j) rates.push_back(MembershipDot(&of_queries[i * rank], &of_keys[j * rank], rank));
  }
  return rates;
}

TEST_P(EveryKernelTest, OperationsAreThoseOfTheCpu) {
  const auto cpu = *CreateBackend({});
  for (const int64_t width : {64, 67, 19})
    ExpectNear(Operations(*backend_, width), Operations(*cpu, width), GetParam().outputs);
  // Weights of the last ones do not fit a block; those of 700 clusters take more than blocks of 32 tokens may have.
  constexpr int kHeads[][2] = {{24, 16},  {24, 64},  {64, 16},  {64, 64}, {128, 16},
                               {128, 64}, {224, 16}, {256, 16}, {24, 700}};
  for (const auto& [columns, clusters] : kHeads) {
    SCOPED_TRACE(std::to_string(columns) + ", " + std::to_string(clusters));
    ExpectNear(MembershipsOf(*backend_, columns, clusters), MembershipsOf(*cpu, columns, clusters), GetParam().rates);
  }
}

}  // namespace
}  // namespace edgewise
