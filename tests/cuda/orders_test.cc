// The order in which the threads and the blocks of a kernel run changes no byte that a backend gives. What is right in
// one order, which tests/kernels asks on the emulator too, is so in any.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/linked_backend.h"
#include "tests/kernels/attention_patterns.h"
#include "tests/kernels/decoder_case.h"
#include "tests/kernels/device_matrix.h"

namespace edgewise {
namespace {

using testing::DeviceMatrix;
using testing::Outcome;
using testing::Pattern;
using testing::Place;
using testing::Random;
using testing::RunOn;
using testing::Shape;

class OrdersTest : public ::testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { emulator::SetOrder(emulator::kForward); }
  // `compute` in each order, on a backend of its own.
  template <typename Compute>
  void ExpectSame(const Compute& compute) {
    const auto want = compute(*edgewise::testing::MakeLinked(GetParam()));
    for (const emulator::Order order : {emulator::kBackward, emulator::Shuffled(7)}) {
      emulator::SetOrder(order);
      SCOPED_TRACE(order.kind);
      EXPECT_EQ(compute(*edgewise::testing::MakeLinked(GetParam())), want);
    }
    emulator::SetOrder(emulator::kForward);
  }
};
INSTANTIATE_TEST_SUITE_P(Precisions, OrdersTest, ::testing::Values("fp32", "bf16"));

using Values = std::vector<std::vector<double>>;

void Add(Values& values, const auto& of) { values.emplace_back(of.begin(), of.end()); }

TEST_P(OrdersTest, ChangeNoByteOfProducts) {
  for (const int64_t in : {17, 64, 257}) {  // less than whole vectors; vectors; one more than a warp reads at a time
    ExpectSame([&](Backend& backend) {
      Values values;
      const auto up = *backend.PrepareLinear(Random(20 * in, 1), Random(20, 2), 20, in, Activation::kGelu);
      const auto down = *backend.PrepareLinear(Random(in * 20, 3), {}, in, 20, Activation::kNone);
      for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
        for (const int64_t shift : {0, 1}) {
          const DeviceMatrix x(backend, Random(13 * in, 4), 13, in, in + 5 * shift, shift);
          const DeviceMatrix y(backend, Random(13 * 20, 5), 13, 20);
          EXPECT_TRUE(backend.Linear(*up, x.view(), y.view(), true, phase).ok());
          EXPECT_TRUE(backend.FeedForward(*up, *down, x.view(), x.view(), phase).ok());
          Add(values, x.Host());
          Add(values, y.Host());
        }
      }
      return values;
    });
  }
}

TEST_P(OrdersTest, ChangeNoByteOfRows) {
  for (const int64_t columns : {3, 64, 257}) {  // as above
    ExpectSame([&](Backend& backend) {
      Values values;
      const Buffer scale = Place(backend, Random(columns, 1)), shift = Place(backend, Random(columns, 2));
      const DeviceMatrix word(backend, Random(11 * columns, 3), 11, columns);
      const DeviceMatrix x(backend, Random(9 * columns, 4), 9, columns), mean(backend, Random(columns, 5), 1, columns);
      const DeviceMatrix pair(backend, Random(4 * columns, 6), 1, 4 * columns);
      const std::vector<int32_t> ids = {3, 10, 0, 3, 1, 1, 9, 7, 2};
      EXPECT_TRUE(backend.Embed(word.view(), word.view(), ids, ids, x.view()).ok());
      EXPECT_TRUE(backend.LayerNorm(x.view(), scale.data(), shift.data(), 1e-5f, x.view()).ok());
      EXPECT_TRUE(backend.GatherRows(word.view(), std::vector<int64_t>{8, 2}, x.view().Rows(3, 2)).ok());
      EXPECT_TRUE(backend.PoolMean(x.view(), std::vector<int64_t>{0, 9}, std::vector<float>{9.0f}, mean.view()).ok());
      EXPECT_TRUE(backend.PairFeatures(mean.view(), x.view().Rows(0, 1), pair.view()).ok());
      for (const DeviceMatrix* of : {&x, &mean, &pair}) Add(values, of->Host());
      return values;
    });
  }
}

TEST_P(OrdersTest, ChangeNoByteOfTokens) {
  constexpr int64_t kWords = 2100;  // more than one block reads of a row
  const std::vector<TokenChoice> choices = {
      {.excluded = 5},
      {.temperature = 1.0, .top_k = 40, .top_p = 0.9, .uniform = 0.6},
      {.temperature = 1.0, .uniform = 0.3, .samples = 2},
  };
  ExpectSame([&](Backend& backend) {
    const DeviceMatrix logits(backend, Random(4 * kWords, 1, 3.0f), 4, kWords);
    const auto chooser = *backend.MakeTokenChooser(choices, kWords);
    EXPECT_TRUE(backend.AddLogits(*chooser, logits.view()).ok());
    const std::vector<ChosenToken> chosen = *backend.ChosenTokens(*chooser);
    Values values;
    for (const ChosenToken& token : chosen) {
      values.push_back({static_cast<double>(token.id), token.log_probability});
    }
    return values;
  });
}

// In the second call one choice goes on from the call before, and another goes on in the next.
TEST_P(OrdersTest, ChangeNoByteOfTokensWhoseSamplesComeInSeveralCalls) {
  constexpr int64_t kWords = 2100;
  const TokenChoice choice = {.temperature = 1.0, .uniform = 0.3, .samples = 3};
  ExpectSame([&](Backend& backend) {
    const DeviceMatrix logits(backend, Random(6 * kWords, 1, 3.0f), 6, kWords);
    const auto chooser = *backend.MakeTokenChooser(std::vector<TokenChoice>{choice, choice}, kWords);
    for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 2}, {2, 3}, {5, 1}}) {
      EXPECT_TRUE(backend.AddLogits(*chooser, logits.view().Rows(first, rows)).ok());
    }
    const std::vector<ChosenToken> chosen = *backend.ChosenTokens(*chooser);
    Values values;
    for (const ChosenToken& token : chosen) {
      values.push_back({static_cast<double>(token.id), token.log_probability, token.mutual_information});
    }
    return values;
  });
}

TEST_P(OrdersTest, ChangeNoByteOfADecodersStep) {
  if (GetParam() != "bf16") GTEST_SKIP() << "decoders are of precision bf16";
  // 40 rows, 16 at a time, and two tiles of weights for a block; a row with two groups of keys for two warps.
  for (const auto& [shape, tokens, rows] :
       {std::tuple(testing::DecoderShape{"", 1, 1, 8, 8, 1096, false, AllPairs::kFar, 1}, 40, 40),
        std::tuple(testing::DecoderShape{"", 2, 1, 16, 24, 48, true}, 300, 1)}) {
    ExpectSame([&](Backend& backend) {
      testing::PlacedDecoder placed(backend, shape);
      const auto decoder = *backend.PrepareDecoder(placed.decoder);
      const testing::DecodedText text(backend, shape, tokens, 3, 0.25f);
      std::vector<DecodedRow> last;
      for (int32_t token = tokens - rows; token < tokens; ++token) last.push_back(text.Row(token, true));
      const Buffer logits = *backend.Allocate(rows * testing::kVocabulary);
      EXPECT_TRUE(backend.Decode(*decoder, last, logits.AsMatrix(rows, testing::kVocabulary)).ok());
      Values values;
      Add(values, testing::Fetch(backend, logits));
      return values;
    });
  }
}

TEST_P(OrdersTest, ChangeNoByteOfMemberships) {
  const int heads = 2, k = 70;     // clusters: more than one tile, not a multiple of it
  for (const int d : {24, 232}) {  // split halves; float32
    const auto w0 = Random(d * d, 1, 0.4f), b0 = Random(d, 2), w1 = Random(d * d, 3, 0.4f), b1 = Random(d, 4);
    const auto clusters = Random(heads * k * d, 5, 0.5f);
    ExpectSame([&](Backend& backend) {
      Values values;
      const auto weights = *backend.PrepareMemberships({heads, d, k, w0, b0, w1, b1, clusters, {}});
      const int64_t rows = 37, size = heads * rows;  // a second block of rows
      const DeviceMatrix q(backend, Random(size * d, 6), rows, heads * d),
          key(backend, Random(size * d, 7), rows, heads * d);
      const Buffer x = *backend.Allocate(size * weights->rank()), y = *backend.Allocate(size * weights->rank());
      const Buffer a = *backend.Allocate(size), c = *backend.Allocate(size);
      const Memberships out = {x.data(), y.data(), a.data(), c.data(), rows, weights->rank()};
      EXPECT_TRUE(backend.ComputeMemberships(*weights, q.view(), key.view(), out).ok());
      for (const Buffer* of : {&x, &y, &a, &c}) Add(values, testing::Fetch(backend, *of));
      return values;
    });
  }
}

TEST_P(OrdersTest, ChangeNoByteOfAttentionItsReportsAndCaps) {
  std::vector<Pattern> patterns = testing::Patterns();
  for (const Law law : {Law::kBernoulli, Law::kPoissonSet, Law::kPoissonMulti}) {
    patterns.push_back({"drawn", [=](int32_t) { return DrawnRows{.law = law, .self_loops = true}; }});
    patterns.push_back({"explored", [=](int32_t) { return DrawnRows{.law = law, .exploration = 0.5f}; }});
  }
  for (const Pattern& pattern : patterns) {
    for (const uint64_t cap : {kNoCap, uint64_t{200}}) {
      Shape shape;
      shape.lengths = {70, 33};  // more than a tile, more than an item of rows
      shape.heads = 1;
      shape.mean_rate = 0.03;
      shape.gap_share = cap == kNoCap ? 0.2 : 0.0;
      const auto made = testing::MakeCase(shape, pattern);
      const bool drawn = std::holds_alternative<DrawnRows>(made->problems[0].pattern);
      if (!drawn && cap != kNoCap) continue;
      const testing::Biases biases(testing::BiasKind::kDistanceAndBuckets, *made);
      for (AttentionProblem& problem : made->problems) problem.cap = 0;
      SCOPED_TRACE(pattern.name);
      ExpectSame([&](Backend& backend) {
        Values values;
        const Outcome outcome = RunOn(backend, *made, {EdgeCap{cap}});
        Add(values, outcome.out);
        for (const AttentionReport& report : outcome.reports) {
          for (const HeadReport& head : report.heads) {
            values.push_back({static_cast<double>(head.edges), static_cast<double>(head.isolated), head.expected});
            Add(values, head.key_degrees);
            Add(values, head.graph.row_offsets);
            Add(values, head.graph.keys);
            Add(values, head.graph.multiplicity);
            Add(values, head.graph.weights);
          }
        }
        return values;
      });
    }
  }
}

}  // namespace
}  // namespace edgewise
