// The sequence that a model makes of token ids: limits, truncation, pads and the CLS token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "model/kinds/kind.h"
#include "tests/model/model_builder.h"
#include "tests/model/model_kinds.h"
#include "tests/model/run_model.h"

namespace edgewise::testing {
namespace {

using ::testing::HasSubstr;

std::vector<int32_t> Counting(int32_t first, int32_t last) {
  std::vector<int32_t> ids;
  for (int32_t id = first; id <= last; ++id) ids.push_back(id);
  return ids;
}

class PrepareTest : public ::testing::TestWithParam<bool> {  // with a CLS token
 protected:
  PrepareTest() {
    auto config = SmallConfig();
    config["max_position_embeddings"] = 8;
    if (GetParam()) {
      config["pooling"] = {{"kind", "cls"}};
      config["cls_token_id"] = 49;
    }
    loaded_ = LoadModel(WriteModel(folder_.path(), config));
  }

  // Token ids as the model sees them, the CLS token taken off.
  std::vector<int32_t> Kept(const ModelSequence& sequence) const {
    std::vector<int32_t> ids = sequence.token_ids;
    if (GetParam()) {
      EXPECT_EQ(ids.front(), 49);
      ids.erase(ids.begin());
    }
    return ids;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
};

TEST_P(PrepareTest, TruncationKeepsTheEndOrTheBeginningAndCountsWhatIsLost) {
  const int32_t room = GetParam() ? 7 : 8;
  const auto head = loaded_->Prepare(Counting(1, 12), TruncateMode::kHead);
  ASSERT_TRUE(head.ok());
  EXPECT_EQ(Kept(*head), Counting(12 - room + 1, 12));
  EXPECT_EQ(head->truncated_tokens, static_cast<uint32_t>(12 - room));
  const auto tail = loaded_->Prepare(Counting(1, 12), TruncateMode::kTail);
  ASSERT_TRUE(tail.ok());
  EXPECT_EQ(Kept(*tail), Counting(1, room));
  EXPECT_EQ(tail->truncated_tokens, static_cast<uint32_t>(12 - room));
}

TEST_P(PrepareTest, FullLengthIsTakenAndTheClsTokenDropsTheLastPosition) {
  const auto full = loaded_->Prepare(Counting(1, 8), TruncateMode::kRefuse);
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(full->length(), 8);
  EXPECT_EQ(Kept(*full), Counting(1, GetParam() ? 7 : 8));
  EXPECT_EQ(full->truncated_tokens, GetParam() ? 1u : 0u);
}

TEST_P(PrepareTest, RefusalsNameTheValueAndTheLimit) {
  const auto message = [&](const std::vector<int32_t>& ids) {
    return std::string(loaded_->Prepare(ids, TruncateMode::kRefuse).status().message());
  };
  EXPECT_THAT(message(Counting(1, 9)), HasSubstr("has 9 tokens; the model takes 8"));
  EXPECT_THAT(message({}), HasSubstr("token_ids is empty"));
  EXPECT_THAT(message({1, 50}), HasSubstr("token_ids[1] is 50; the vocabulary has 50 entries"));
  EXPECT_THAT(message({-1}), HasSubstr("token_ids[0] is -1"));
  if (!GetParam()) {
    EXPECT_THAT(message({0, 0}), HasSubstr("all of them pads (0)"));
  }
}

TEST_P(PrepareTest, PadsKeepTheirPlaces) {
  const auto sequence = loaded_->Prepare({5, 0, 6}, TruncateMode::kRefuse);
  ASSERT_TRUE(sequence.ok());
  EXPECT_EQ(sequence->positions, GetParam() ? (std::vector<int32_t>{0, 1, 3}) : (std::vector<int32_t>{0, 2}));
}

INSTANTIATE_TEST_SUITE_P(Cls, PrepareTest, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "with_cls" : "without"); });

class WindowsTest : public ::testing::Test {
 protected:
  WindowsTest() {
    auto config = ConfigOf(LanguageModelKinds()[1]);  // pads have id 0
    config["max_position_embeddings"] = 8;
    loaded_ = LoadModel(WriteModel(folder_.path(), config));
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
};

// Every token but the first is scored once, by the first window that holds it: the one with the most context.
TEST_F(WindowsTest, EveryTokenIsScoredOnceWithTheMostContext) {
  for (int32_t length = 1; length <= 40; ++length) {
    for (uint32_t stride = 0; stride <= 7; ++stride) {
      const auto windows = loaded_->PrepareWindows(Counting(1, length), TruncateMode::kRefuse, stride);
      ASSERT_TRUE(windows.ok()) << windows.status();
      const int32_t step = stride == 0 ? 4 : static_cast<int32_t>(stride);
      std::vector<int32_t> scored;
      const int32_t last = std::max(0, length - 8);
      int32_t next = 0, before_end = 0;
      for (const ModelSequence& window : *windows) {
        const int32_t begin = std::min(next, last);
        ASSERT_EQ(window.length(), std::min(length, 8)) << "the last is as long as the others";
        ASSERT_EQ(window.token_ids.front(), begin + 1) << "windows are a stride apart, the last ends with the text";
        for (int32_t i = window.first_scored; i < window.valid(); ++i) {
          scored.push_back(window.token_ids[window.positions[i]]);
          ASSERT_LE(before_end, begin + i) << "the window before did not hold it";
        }
        before_end = begin + 8;
        next += step;
      }
      ASSERT_EQ(before_end, last + 8);
      ASSERT_EQ(scored, Counting(2, length));
    }
  }
}

TEST_F(WindowsTest, PadsAreNeitherScoredNorAWindow) {
  std::vector<int32_t> ids = Counting(1, 6);
  ids.resize(30, 0);
  ids[9] = 7;
  const auto windows = loaded_->PrepareWindows(ids, TruncateMode::kRefuse, 4);
  ASSERT_TRUE(windows.ok());
  ASSERT_EQ(windows->size(), 2u) << "behind the last token there are pads only";
  EXPECT_EQ((*windows)[0].valid(), 6);
  EXPECT_EQ((*windows)[1].first_scored, 2) << "5 and 6 were scored by the first window";
  EXPECT_EQ((*windows)[1].valid(), 3);
}

TEST_F(WindowsTest, ATextThatIsCutIsOneSequence) {
  const auto head = loaded_->PrepareWindows(Counting(1, 12), TruncateMode::kHead, 0);
  ASSERT_TRUE(head.ok());
  ASSERT_EQ(head->size(), 1u);
  EXPECT_EQ((*head)[0].token_ids, Counting(5, 12));
}

TEST_F(WindowsTest, AStrideIsBelowTheContext) {
  const auto refused = loaded_->PrepareWindows(Counting(1, 12), TruncateMode::kRefuse, 8).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("stride is 8; allowed are 1 to 7"));
}

// 2^20 positions are 131072 windows of 8.
TEST_F(WindowsTest, WhatIsScoredAtOnceIsBounded) {
  const auto of_length = [&](size_t length, uint32_t stride) {
    return loaded_->PrepareWindows(std::vector<int32_t>(length, 1), TruncateMode::kRefuse, stride);
  };
  for (const uint32_t stride : {1, 4, 7}) {
    const size_t most = 8 + 131071 * stride;
    const auto taken = of_length(most, stride);
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_EQ(taken->size(), 131072u);
    EXPECT_EQ(of_length(most + 1, stride).status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(
      of_length(131080, 1).status().message(),
      "token_ids has 131080 tokens, which makes 131073 windows of 8 positions, 1 apart; at most 1048576 positions "
      "are scored in one input (a larger stride or several inputs need fewer)");
  EXPECT_TRUE(loaded_->PrepareWindows(std::vector<int32_t>(200000, 1), TruncateMode::kTail, 1).ok());
}

// The likelihood of a long text is that of its windows, each scored on its own.
TEST_F(WindowsTest, TheLikelihoodOfATextIsThatOfItsWindows) {
  ModelInput input;
  input.sequences = *loaded_->PrepareWindows(Counting(1, 30), TruncateMode::kRefuse, 3);
  const InputResult whole = RunOne(*loaded_, input);
  double sum = 0.0;
  uint64_t edges = 0;
  for (const ModelSequence& window : input.sequences) {
    ModelInput alone;
    alone.sequences = {window};
    const InputResult result = RunOne(*loaded_, alone);
    sum += result.log_likelihood;
    edges += result.max_sample_edges;
  }
  EXPECT_NEAR(whole.log_likelihood, sum, 1e-9);
  EXPECT_DOUBLE_EQ(whole.perplexity, std::exp(-whole.log_likelihood / 29));
  EXPECT_EQ(whole.max_sample_edges, edges);
  EXPECT_EQ(whole.sample_results[0].token_probabilities.size(), 29u);
}

class PartsTest : public ::testing::TestWithParam<ModelKind> {};

// Few windows at a time or all of them, alone or among others: the same bytes, whatever is asked for.
TEST_P(PartsTest, ATextThatRunsInPartsGivesTheSameBytes) {
  const TemporaryFolder folder;
  const LoadedModel loaded = LoadModel(WriteModel(folder.path(), ConfigOf(GetParam())));
  std::vector<ModelInput> inputs;
  for (const int32_t length : {300, 5, 170, 64, 100}) {
    for (const uint32_t samples : {1, 3, 9}) {
      ModelInput& input = inputs.emplace_back();
      input.sequences =
          *loaded->PrepareWindows(RandomTokens(length, 49, inputs.size()), TruncateMode::kRefuse, 1 + length / 20);
      input.seed = length;
      input.samples = samples;
      input.tolerance = samples == 9 ? 2e-3 : 0.0;
      input.wanted.expected = input.wanted.key_degrees = true;
      input.wanted.graph = samples == 1;
      if (length == 100 && samples == 3) input.max_edges = loaded->Pairs(input) - 1;
    }
  }
  const std::vector<InputResult> whole = RunAll(*loaded, inputs, {.max_wave_tokens = 1 << 20});
  for (const int64_t tokens : {1, 63, 64, 200, 700, 2000}) {
    const std::vector<InputResult> parts = RunAll(*loaded, inputs, {.max_wave_tokens = tokens});
    for (size_t i = 0; i < inputs.size(); ++i) {
      ASSERT_TRUE(whole[i].status.ok()) << whole[i].status;
      ASSERT_TRUE(SameBytes(parts[i], whole[i])) << "input " << i << ", " << tokens << " tokens at a time";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, PartsTest, ::testing::ValuesIn(LanguageModelKinds()),
                         [](const auto& info) { return info.param.name; });

TEST(FeaturesTest, RefusalsNameTheField) {
  const TemporaryFolder folder;
  auto config = SmallConfig();
  config.merge_patch(
      {{"vocab_size", nullptr}, {"feature_size", 3}, {"pad_token_id", nullptr}, {"max_position_embeddings", 4}});
  const LoadedModel loaded = LoadModel(WriteModel(folder.path(), config));
  const auto message = [&](uint32_t rows, uint32_t columns, std::vector<float> values) {
    return std::string(
        loaded->PrepareFeatures(rows, columns, std::move(values), TruncateMode::kRefuse).status().message());
  };
  EXPECT_EQ(message(1, 2, {1, 2}), "features.columns is 2; the model takes 3");
  EXPECT_EQ(message(0, 3, {}), "features.rows is 0; at least one row is expected");
  EXPECT_EQ(message(2, 3, {1, 2, 3}), "features.values has 3 entries; 2 rows of 3 are 6");
  EXPECT_EQ(message(1, 3, {1, NAN, 3}), "features.values[1] is nan; finite numbers are expected");
  EXPECT_THAT(message(5, 3, std::vector<float>(15)), HasSubstr("features.rows is 5; the model takes 4"));
  EXPECT_THAT(std::string(loaded->Prepare({1}, TruncateMode::kRefuse).status().message()),
              HasSubstr("token_ids: this model takes rows of features"));
  std::vector<float> values(15);
  std::iota(values.begin(), values.end(), 0.0f);
  const auto head = loaded->PrepareFeatures(5, 3, values, TruncateMode::kHead);
  const auto tail = loaded->PrepareFeatures(5, 3, values, TruncateMode::kTail);
  EXPECT_EQ(head->features.front(), 3.0f);
  EXPECT_EQ(tail->features.back(), 11.0f);
  EXPECT_EQ(head->truncated_tokens, 1u);
  EXPECT_EQ(tail->valid(), 4);
}

TEST(BiasTest, RefusalsNameTheField) {
  const TemporaryFolder folder;
  auto config = SmallConfig();
  config["pairwise_bias"] = {{"kind", "buckets"}, {"num_buckets", 7}};
  const LoadedModel loaded = LoadModel(WriteModel(folder.path(), config));
  ModelSequence sequence = *loaded->Prepare({1, 0, 2}, TruncateMode::kRefuse);
  const auto message = [&] { return std::string(loaded->CheckBias(sequence).message()); };
  EXPECT_EQ(message(), "") << "a bias may be left out";
  sequence.bias_buckets.assign(9, 6);
  EXPECT_EQ(message(), "");
  sequence.bias_buckets[4] = 7;
  EXPECT_EQ(message(), "bias.buckets[4] is 7; the model has 7 buckets");
  sequence.bias_buckets.resize(8);
  EXPECT_EQ(message(), "bias.buckets has 8 entries; 3 x 3 positions are 9");
  sequence.bias_buckets.clear();
  sequence.bias_values.assign(9, 0.0f);
  EXPECT_EQ(message(), "bias.values: this model takes bias.buckets");
}

}  // namespace
}  // namespace edgewise::testing
