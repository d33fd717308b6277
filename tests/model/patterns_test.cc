// Patterns of SSA and of blocks, against a formulation pair by pair; growing texts and single rows.
#include "model/kinds/patterns.h"

#include <gtest/gtest.h>

#include "model/kinds/block.h"
#include "model/kinds/kind.h"
#include "model/kinds/ssa.h"
#include "tests/model/pattern_kinds.h"

namespace edgewise::testing {
namespace {

// Lengths and pads of all sorts, by `seed`: trailing pads are among them.
ModelSequence AnySequence(int32_t longest, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto length = static_cast<int32_t>(random() % longest) + 1;
  return RandomSequence(seed % 5 == 0 ? longest : length, seed % 3 == 0 ? 0.0 : seed % 3 == 1 ? 0.2 : 0.8, seed);
}

class PatternsTest : public KindTest {};
class CausalPatternsTest : public KindTest {};
class PairPatternsTest : public KindTest {};   // not causal
class LocalPatternsTest : public KindTest {};  // locally biased SSA, one-dimensional

TEST_P(PatternsTest, AreWhatTheDocumentationSaysPairByPair) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const ModelSequence sequence = AnySequence(kLongest, seed);
    const AttentionSpec choice = Choice(seed);
    const QueryRange range{&sequence};
    const MemberPatterns made = MakePatterns(choice, {&range, 1}, kNoCap);
    const Rows rows = RowsOf(made.patterns[0], range);
    ASSERT_EQ(rows, SlowRows(choice, 0, sequence)) << "seed " << seed;
    ASSERT_LE(CountEdges(rows), PairsOf(config_, range));
  }
}

TEST_P(PairPatternsTest, TheSidesDrawApart) {
  const ModelSequence a = RandomSequence(40, 0.1, 1), b = RandomSequence(33, 0.1, 2);
  const std::vector<QueryRange> ranges = {{&a}, {&b}};
  const MemberPatterns made = MakePatterns(Choice(3), ranges, kNoCap);
  EXPECT_EQ(RowsOf(made.patterns[0], ranges[0]), SlowRows(Choice(3), 0, a));
  EXPECT_EQ(RowsOf(made.patterns[1], ranges[1]), SlowRows(Choice(3), 1, b));
}

TEST_P(PatternsTest, SamplesAndLayersDrawApartAndSeedsToo) {
  const ModelSequence sequence = PatternSequence(kLongest);
  AttentionSpec base = Choice(1), sample = base, layer = base, seed = base;
  sample.sample += 1;
  layer.layer = 1;
  seed.seed = 2;
  for (const AttentionSpec& other : {sample, layer, seed}) {
    EXPECT_EQ(RowsOf(other, sequence) != RowsOf(base, sequence), GetParam().random);
  }
}

TEST_P(CausalPatternsTest, AGrowingTextNeverChangesAnEarlierRow) {
  for (const double pads : {0.0, 0.3}) {
    const ModelSequence whole = RandomSequence(kLongest, pads, 9);
    const Rows rows = RowsOf(Choice(4), whole);
    for (int32_t length = 1; length <= kLongest; ++length) {
      ModelSequence text = whole;
      text.token_ids.resize(length);
      while (text.positions.back() >= length) text.positions.pop_back();
      const Rows earlier(rows.begin(), rows.begin() + text.valid());
      ASSERT_EQ(RowsOf(Choice(4), text), earlier) << length;
    }
  }
}

TEST_P(PatternsTest, RowsOfTheLastQueriesAreThoseOfTheWholePattern) {
  SourceCache cache;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const ModelSequence sequence = AnySequence(kLongest, seed);
    const Rows whole = RowsOf(Choice(seed % 7), sequence);
    for (int32_t first = 0; first < sequence.valid(); ++first) {
      const QueryRange range{&sequence, first};
      AttentionSpec choice = Choice(seed % 7);
      if (seed < 7) choice.sources = &cache;  // of one seed and sample each
      if (seed < 7) choice.sample = static_cast<uint32_t>(seed);
      const MemberPatterns made = MakePatterns(choice, {&range, 1}, kNoCap);
      const Rows last = RowsOf(made.patterns[0], range);
      ASSERT_EQ(last, Rows(whole.begin() + first, whole.end())) << "from " << first;
    }
    cache = SourceCache();
  }
}

TEST_P(PatternsTest, TrailingPadsChangeNothing) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ModelSequence sequence = RandomSequence(30, 0.2, seed);
    const Rows rows = RowsOf(Choice(seed), sequence);
    sequence.token_ids.resize(kLongest, 0);
    ASSERT_EQ(RowsOf(Choice(seed), sequence), rows);
  }
}

// A query of a locally biased model without pads always has a source.
TEST_P(LocalPatternsTest, NoRowIsEmpty) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    for (const auto& row : RowsOf(Choice(seed), PatternSequence(kLongest))) ASSERT_FALSE(row.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, PatternsTest, ::testing::ValuesIn(AllKinds()), KindName);
INSTANTIATE_TEST_SUITE_P(Kinds, CausalPatternsTest, ::testing::ValuesIn(Only(IsCausal)), KindName);
INSTANTIATE_TEST_SUITE_P(Kinds, PairPatternsTest, ::testing::ValuesIn(Only(IsNotCausal)), KindName);
INSTANTIATE_TEST_SUITE_P(Kinds, LocalPatternsTest, ::testing::ValuesIn(Only(IsLocalSsa)), KindName);

TEST(TextPatternsTest, TheWindowsOfATextDrawByTheirOwnPositions) {
  const ModelConfig config =
      PatternConfig(true, 48, nlohmann::json::parse(R"({"kind": "ssa", "bias": "local", "windows": 5, "sigma": 0.2})"));
  const ModelSequence a = PatternSequence(48), b = PatternSequence(30);
  const std::vector<QueryRange> ranges = {{&a}, {&b}};
  const MemberPatterns made = MakePatterns(ChoiceOf(config, 3), ranges, kNoCap);
  const Rows first = RowsOf(made.patterns[0], ranges[0]);
  EXPECT_EQ(RowsOf(made.patterns[1], ranges[1]), Rows(first.begin(), first.begin() + 30));
}

TEST(GivenPatternsTest, GivenEdgesHaveTheBytesOfTheKindThatTheyReplace) {
  const std::vector<std::vector<HeadEdges>> given(2);
  const ModelSequence sequence = PatternSequence(3);
  const QueryRange range{&sequence};
  for (const auto& [attention, compact] : std::vector<std::pair<const char*, bool>>{
           {R"({"kind": "dense"})", true},
           {R"({"kind": "ssa", "bias": "none", "keep": 2})", true},
           {R"({"kind": "block", "block_size": 2, "pattern": "diagonal"})", true},
           {R"({"kind": "sbm", "num_clusters": 2, "law": "bernoulli"})", false}}) {
    const ModelConfig config = PatternConfig(false, 48, nlohmann::json::parse(attention));
    AttentionSpec choice = ChoiceOf(config, 1);
    choice.given = &given;
    const MemberPatterns made = MakePatterns(choice, {&range, 1}, kNoCap);
    const auto* edges = std::get_if<ExplicitEdges>(&made.patterns[0]);
    ASSERT_NE(edges, nullptr) << attention;
    EXPECT_EQ(edges->heads, &given[0]) << attention;
    EXPECT_EQ(edges->compact, compact) << attention;
  }
}

TEST(BlockSizeTest, TakesAlphaAsItIsWritten) {
  AttentionConfig attention;
  attention.max_block = 1 << 20;
  const auto size = [&](double alpha, int32_t length) {
    attention.alpha = alpha;
    return BlockSize(attention, length);
  };
  EXPECT_EQ(size(0.29, 100), 29) << "0.29 * 100 is 28.999... in doubles";
  EXPECT_EQ(size(0.29, 99), 28);
  EXPECT_EQ(size(0.07, 100), 7);
  EXPECT_EQ(size(0.57, 100), 57);
  EXPECT_EQ(size(1.0, 1 << 20), 1 << 20);
  EXPECT_EQ(size(0.5, 3), 1);
  EXPECT_EQ(size(1e-30, 1 << 20), 0);
  EXPECT_EQ(size(0.3333333333333333, 3), 0) << "a third is more than what is written";
  // All two-digit shares of all lengths, in whole numbers.
  for (int hundredths = 0; hundredths <= 100; ++hundredths) {
    for (int32_t length = 1; length <= 2000; length += 13) {
      EXPECT_EQ(size(hundredths / 100.0, length), hundredths * length / 100) << hundredths << " of " << length;
    }
  }
  attention.min_block = 16;
  attention.max_block = 20;
  EXPECT_EQ(size(0.1, 100), 16);
  EXPECT_EQ(size(0.19, 100), 19);
  EXPECT_EQ(size(0.5, 100), 20);
}

}  // namespace
}  // namespace edgewise::testing
