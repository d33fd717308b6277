// The mean edges of SSA against the mean over many draws, and against what can be worked out by hand.
#include <gtest/gtest.h>

#include <cmath>

#include "model/shuffle_law.h"
#include "model/ssa.h"
#include "tests/model/model_builder.h"
#include "tests/model/model_kinds.h"
#include "tests/model/pattern_kinds.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;

struct Mean {
  double value, standard_error;
};

Mean Drawn(LayerChoice choice, const QueryRange& range, int draws) {
  double mean = 0.0, squares = 0.0;
  for (int draw = 0; draw < draws; ++draw) {
    choice.seed = static_cast<uint64_t>(draw / 100);
    choice.sample = static_cast<uint32_t>(draw % 100);
    const auto edges = static_cast<double>(EdgesOf(SsaGroups(choice, 0, range)));
    const double difference = edges - mean;
    mean += difference / (draw + 1);
    squares += difference * (edges - mean);
  }
  return {mean, std::sqrt(squares / (draws - 1) / draws)};
}

// Within 4 standard errors of the mean over the draws; the number itself where all draws have the same. Returns the 4
// standard errors as a share of the mean.
double ExpectMean(const LayerChoice& choice, const QueryRange& range, int draws) {
  const Mean drawn = Drawn(choice, range, draws);
  const double tolerance = 4.0 * drawn.standard_error + 1e-9 * drawn.value;
  EXPECT_NEAR(ExpectedSsaEdges(choice, range), drawn.value, tolerance);
  return tolerance / drawn.value;
}

class SsaExpectedTest : public KindTest {};

TEST_P(SsaExpectedTest, IsTheMeanOverManyDraws) {
  const ModelSequence whole = PatternSequence(kLongest), part = PatternSequence(31), first = PatternSequence(1);
  const ModelSequence some_pads = RandomSequence(kLongest, 0.2, 3), many_pads = RandomSequence(kLongest, 0.8, 4);
  for (const ModelSequence* sequence : {&whole, &part, &first, &some_pads, &many_pads}) {
    SCOPED_TRACE(sequence->valid());
    ExpectMean(Choice(0), {sequence}, 4000);
    ExpectMean(Choice(0), {sequence, sequence->valid() / 2}, 1000);
  }
}

TEST_P(SsaExpectedTest, IsTheSameForAllDrawsAndBudgets) {
  const ModelSequence sequence = RandomSequence(kLongest, 0.2, 5);
  const QueryRange range{&sequence};
  LayerChoice choice = Choice(1);
  const double expected = ExpectedSsaEdges(choice, range);
  EXPECT_EQ(MakePatterns(choice, {&range, 1}, kNoCap).expected, std::vector<double>{0.0}) << "nobody asked";
  choice.want_expected = true;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    choice.seed = seed;
    choice.sample = static_cast<uint32_t>(seed % 3);
    choice.layer = static_cast<int32_t>(seed % 2);
    for (const uint64_t allowance : {kNoCap, PairsOf(config_, range), LeastEdges(choice, {&range, 1})}) {
      EXPECT_EQ(MakePatterns(choice, {&range, 1}, allowance).expected, std::vector<double>{expected});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, SsaExpectedTest, ::testing::ValuesIn(kSsaKinds), KindName);

// Long enough that not every place is taken one by one.
struct Long {
  const char* name;
  bool causal;
  int32_t longest, windows;
  double sigma;
  int32_t rows = 0, columns = 0;
  double pads = 0.0;
};

void PrintTo(const Long& of, std::ostream* out) { *out << of.name; }

class LongSsaExpectedTest : public ::testing::TestWithParam<Long> {};

TEST_P(LongSsaExpectedTest, IsTheMeanOverManyDraws) {
  const Long& of = GetParam();
  json attention = {{"kind", "ssa"}, {"bias", "local"}, {"windows", of.windows}, {"sigma", of.sigma}};
  if (of.rows > 0) attention["grid"] = {of.rows, of.columns};
  const ModelConfig config = PatternConfig(of.causal, of.longest, attention);
  const ModelSequence whole = RandomSequence(of.longest, of.pads, 1);
  const ModelSequence part = RandomSequence(of.longest * 5 / 8, of.pads, 2);
  for (const ModelSequence* sequence : {&whole, &part}) {
    const double tolerance = ExpectMean(ChoiceOf(config, 0), {sequence}, 400);
    EXPECT_LT(tolerance, of.pads == 0.0 ? 3e-3 : 3e-2) << "enough draws to see an error";
  }
}

INSTANTIATE_TEST_SUITE_P(Long, LongSsaExpectedTest,
                         ::testing::Values(Long{"wide", true, 1024, 16, 0.2}, Long{"narrow", true, 1024, 64, 0.04},
                                           Long{"three_a_window", true, 600, 200, 0.05},
                                           Long{"one_a_window", true, 400, 400, 0.075, 0, 0, 0.3},
                                           Long{"uniform", true, 700, 9, 100.0},
                                           Long{"nearly_sorted", true, 1000, 30, 0.011},
                                           Long{"pads", true, 1024, 16, 0.1, 0, 0, 0.5},
                                           Long{"mostly_pads", true, 1024, 16, 0.1, 0, 0, 0.9},
                                           Long{"grid", false, 1200, 12, 0.15, 300, 4, 0.5},
                                           Long{"grid_of_few_pads", false, 1200, 100, 0.2, 300, 4, 0.1},
                                           Long{"causal_grid", true, 1200, 30, 0.15, 300, 4},
                                           Long{"causal_grid_with_pads", true, 1200, 30, 0.15, 300, 4, 0.3}),
                         [](const auto& info) { return info.param.name; });

TEST(ShuffleLawTest, OfTwoPlaces) {
  for (const double scale : {0.01, 0.08, 0.5, 1.0, 7.0, 1e3, 1e9}) {
    const double first_is_last = 0.5 * std::erfc(0.5 / scale);  // P(z_0 - z_1 > 1 / scale)
    const ShuffleLaw law = ShuffleLaws(scale).Last(2, 1);
    EXPECT_NEAR(law.Before(1), first_is_last, 1e-6) << scale;
    EXPECT_EQ(law.Before(0), 0.0);
    EXPECT_EQ(law.Before(2), 1.0);
  }
}

// Edges of a window that has the last `count` of `places` positions, all of them tokens.
double WindowEdges(const ShuffleLaw& law, int32_t places, int32_t count) {
  double edges = 0.0;
  for (int32_t query = places - count; query < places; ++query) edges += law.Before(query + 1);
  return edges;
}

// Up to some scale laws are worked out place by place, to 1e-6. Where that ends, what follows is at its worst.
TEST(ShuffleLawTest, ItsHalvesMeet) {
  for (const int32_t places : {129, 500, 3000}) {
    for (const int32_t count : {1, 2, 5, 31, 32, 33, 64, 120, places - 3}) {
      const double scale = 12.0 + 36.0 / std::min(count, places - count);
      const double exact = WindowEdges(ShuffleLaws(scale).Last(places, count), places, count);
      const double smooth = WindowEdges(ShuffleLaws(scale + 1e-9).Last(places, count), places, count);
      EXPECT_NEAR(smooth, exact, 3e-4 * exact) << count << " of " << places;
      EXPECT_TRUE(count == 1 || count == places - 3 || smooth != exact) << count << " of " << places;
    }
  }
}

// The first places are the last ones, read backwards.
TEST(ShuffleLawTest, IsItsOwnMirrorImage) {
  for (const double scale : {0.05, 0.6, 5.0, 11.0, 60.0, 1e6}) {
    for (const int32_t places : {2, 7, 100, 1000}) {
      for (const int32_t count : {1, places / 2, places - 1, places}) {
        const ShuffleLaw last = ShuffleLaws(scale).Last(places, count);
        EXPECT_EQ(last.Before(0), 0.0);
        EXPECT_DOUBLE_EQ(last.Before(places), count);
        if (count == places) continue;
        const ShuffleLaw first = ShuffleLaws(scale).Last(places, places - count);
        for (int32_t j = 0; j <= places; ++j) {
          EXPECT_NEAR(last.Before(j) + (places - count) - first.Before(places - j), j, 1e-8 * places);
        }
      }
    }
  }
}

TEST(SsaExpectedModelTest, ReportsTheSameForEverySampleAndBudget) {
  int kinds = 0;
  for (const ModelKind& kind : ModelKinds()) {
    if (kind.name.find("ssa") == std::string::npos && kind.name.find("grid") == std::string::npos) continue;
    if (kind.name.find("sbm") != std::string::npos) continue;
    SCOPED_TRACE(kind.name);
    ++kinds;
    TemporaryFolder folder;
    const LoadedModel loaded = LoadModel(WriteModel(folder.path(), ConfigOf(kind), 7));
    std::mt19937_64 random(1);
    ModelInput input = RandomInput(kind, *loaded, random);
    input.samples = 3;
    input.want_expected = true;
    const InputResult free = RunOne(*loaded, input);
    input.max_edges = loaded->LeastEdges(input);
    input.seed += 1;
    const InputResult capped = RunOne(*loaded, input);
    ASSERT_TRUE(free.status.ok() && capped.status.ok()) << free.status << capped.status;
    EXPECT_GT(free.expected_edges, 0.0);
    EXPECT_DOUBLE_EQ(free.expected_edges, capped.expected_edges);
    for (const InputResult* result : {&free, &capped}) {
      for (const SampleResult& sample : result->sample_results) {
        ASSERT_EQ(sample.layers.size(), free.sample_results[0].layers.size());
        for (size_t l = 0; l < sample.layers.size(); ++l) {
          for (size_t h = 0; h < sample.layers[l].size(); ++h) {
            EXPECT_EQ(sample.layers[l][h].expected, free.sample_results[0].layers[l][h].expected);
          }
        }
      }
    }
  }
  EXPECT_GE(kinds, 10);
}

}  // namespace
}  // namespace edgewise::testing
