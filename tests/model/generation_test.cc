// Generation against forward passes over the text so far: the same edges, the same probabilities, with caches,
// ensembles, budgets and beyond the context.
#include "model/forward/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/model/deferred_backend.h"
#include "tests/model/generation_fixture.h"

namespace edgewise::testing {
namespace {

using ::testing::StartsWith;

TEST_P(GenerationTest, CachedRowsAreThoseOfAForwardPass) {
  for (const int32_t length : {1, 2, 17, 39}) {
    const Tokens prompt = Prompt(length, static_cast<uint64_t>(length));
    ExpectAsRecomputed(prompt, Generate(*loaded_, prompt, options_));
  }
}

TEST_P(GenerationTest, AnEnsembleDrawsFromTheMeanOfItsSamples) {
  options_.samples = 3;
  const Tokens prompt = Prompt(11, 3);
  const auto tokens = Generate(*loaded_, prompt, options_);
  ExpectAsRecomputed(prompt, tokens);
  options_.samples = 1;
  const auto one = Generate(*loaded_, prompt, options_);
  const bool drawn = !SameTokens(one, tokens);
  ModelInput input;
  input.attention = options_.attention;
  EXPECT_EQ(drawn, loaded_->Samples(input));
}

TEST_P(GenerationTest, BeyondTheContextTheTextIsCroppedAndRecomputed) {
  const Tokens prompt = Prompt(60, 4);
  options_.max_new_tokens = 12;  // the context is 64
  options_.samples = 2;
  ExpectAsRecomputed(prompt, Generate(*loaded_, prompt, options_));
}

TEST_P(GenerationTest, GreedyTakesTheMostProbableToken) {
  options_.temperature = 0.0;
  options_.max_new_tokens = 10;
  Tokens text = Prompt(9, 6);
  for (const GeneratedToken& token : Generate(*loaded_, text, options_)) {
    std::vector<float> probabilities = Predict(text).probabilities;
    if (loaded_->config().pad_token_id == 0) probabilities[0] = -1.0f;  // never chosen
    const auto best = std::max_element(probabilities.begin(), probabilities.end());
    ASSERT_EQ(token.token_id, best - probabilities.begin());
    text.push_back(token.token_id);
  }
}

TEST_P(GenerationTest, PenaltiesKnowTheWholePromptAndWhatThisCallWrote) {
  options_.temperature = 0.0;
  options_.max_new_tokens = 12;
  options_.overflow = Overflow::kHalve;
  Tokens text = Prompt(58, 6);  // the context is 64, so the beginning leaves it
  for (size_t i = 10; i < text.size(); ++i) text[i] = std::min(text[i], 8);
  options_.repetition_penalty = 100.0;  // tokens are about equally probable
  for (const GeneratedToken& token : Generate(*loaded_, text, options_)) {
    EXPECT_THAT(text, ::testing::Not(::testing::Contains(token.token_id)));
    text.push_back(token.token_id);
  }
  EXPECT_EQ(text.size(), 70u);
  options_.repetition_penalty = 1.0;
  options_.presence_penalty = options_.frequency_penalty = -2.0;  // a token that has the lead keeps it
  const Tokens written = IdsOf(Generate(*loaded_, Prompt(9, 6), options_));
  EXPECT_EQ(Tokens(written.begin() + 6, written.end()), Tokens(6, written[5]));
}

TEST_P(GenerationTest, WhatIsNeutralAndAlternativesChangeNoByte) {
  options_.samples = 2;
  const auto plain = Generate(*loaded_, Prompt(9, 6), options_);
  options_.alternatives = 3;
  const auto with = Generate(*loaded_, Prompt(9, 6), options_);
  EXPECT_TRUE(SameTokens(with, plain));
  for (const GeneratedToken& token : with) {
    ASSERT_EQ(token.alternatives.size(), 3u);
    EXPECT_GE(token.alternatives[0].log_probability, token.log_probability);
    EXPECT_GE(token.alternatives[0].log_probability, token.alternatives[1].log_probability);
    EXPECT_GE(token.alternatives[1].log_probability, token.alternatives[2].log_probability);
  }
  // Penalties do not depend on who is beside it.
  options_.presence_penalty = 1.0;
  options_.min_p = 0.2;
  const auto penalized = Generate(*loaded_, Prompt(9, 6), options_);
  GenerationOptions other = options_;
  other.presence_penalty = other.min_p = 0.0;
  other.alternatives = 0;
  std::vector<std::unique_ptr<Generation>> both;
  const ModelSequence prompt = *loaded_->Prepare(Prompt(9, 6), TruncateMode::kRefuse);
  both.push_back(*Generation::Create(*loaded_, prompt, options_));
  both.push_back(*Generation::Create(*loaded_, prompt, other));
  const auto together = GenerateTogether(both);
  EXPECT_TRUE(SameTokens(together[0], penalized));
  EXPECT_TRUE(SameTokens(together[1], plain));
}

TEST_P(GenerationTest, TheBudgetCapsEveryRow) {
  const Tokens prompt = Prompt(13, 7);
  const auto free = Generate(*loaded_, prompt, options_);
  // A cap of one edge is refused with the least that is possible.
  options_.max_edges = 1;
  const auto refused =
      Generation::Create(*loaded_, *loaded_->Prepare(prompt, TruncateMode::kRefuse), options_).status();
  ASSERT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  const std::string message(refused.message());
  ASSERT_THAT(message, StartsWith("max_edges is 1; a row of this text needs up to "));
  const uint64_t least = std::stoull(message.substr(message.find("up to ") + 6));
  options_.max_edges = least - 1;
  EXPECT_FALSE(Generation::Create(*loaded_, *loaded_->Prepare(prompt, TruncateMode::kRefuse), options_).ok());
  uint64_t most = 0;
  for (const GeneratedToken& token : free) most = std::max(most, token.edges.max_sample_edges);
  for (const uint64_t cap : {least, least + (most - std::min(most, least)) / 3, most, uint64_t{1} << 40}) {
    if (cap < least) continue;
    options_.max_edges = cap;
    const auto tokens = Generate(*loaded_, prompt, options_);
    bool capped = false;
    for (const GeneratedToken& token : tokens) {
      ASSERT_LE(token.edges.max_sample_edges, cap);
      ASSERT_LE(token.edges.max_sample_edges, token.edges.pairs);
      ASSERT_EQ(token.edges.budget, cap);
      capped |= token.edges.capped;
    }
    EXPECT_TRUE(capped || SameTokens(free, tokens));
    EXPECT_TRUE(capped || cap >= most);
    EXPECT_FALSE(capped && cap == uint64_t{1} << 40);
  }
}

// Edges that are never dropped are allowed whatever the density: a prompt of one token has one pair a head.
TEST_P(GenerationTest, ADensityIsACapOfEveryRow) {
  for (const int32_t length : {1, 13, 60}) ExpectDensitiesHold(Prompt(length, 7));
}

// A full context loses its older half; the rest is the prompt of what follows.
TEST_P(GenerationTest, HalvingGoesOnAsTheKeptHalfWould) {
  const Tokens prompt = Prompt(50, 4);
  options_.max_new_tokens = 64;  // the context is 64
  options_.overflow = Overflow::kHalve;
  options_.samples = 2;
  options_.temperature = 0.0;  // which token is drawn depends on the length of the whole text
  const auto tokens = Generate(*loaded_, prompt, options_);
  ASSERT_EQ(tokens.size(), 64u);
  size_t begin = 0;  // of the context
  Tokens text = prompt;
  const auto context = [&] { return Tokens(text.begin() + static_cast<int64_t>(begin), text.end()); };
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (text.size() - begin > 64) {
      begin += 32;
      GenerationOptions fresh = options_;
      fresh.max_new_tokens = static_cast<uint32_t>(std::min<size_t>(tokens.size() - t, 64 + 1 - context().size()));
      const auto expected = Generate(*loaded_, context(), fresh);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(tokens[t + i].token_id, expected[i].token_id) << t + i;
        EXPECT_EQ(tokens[t + i].log_probability, expected[i].log_probability) << t + i;
        EXPECT_EQ(tokens[t + i].edges.edges, expected[i].edges.edges) << t + i;
      }
    }
    ExpectAsRecomputed(context(), {tokens[t]});
    text.push_back(tokens[t].token_id);
  }
  EXPECT_EQ(begin, 64u) << "halved twice";
  EXPECT_TRUE(SameTokens(tokens, Generate(*loaded_, prompt, options_)));
}

TEST_P(GenerationTest, StoppingEndsWithTheTokenThatAFullContextPredicts) {
  options_.max_new_tokens = 30;
  const auto sliding = Generate(*loaded_, Prompt(50, 4), options_);
  options_.overflow = Overflow::kStop;
  FinishReason reason = FinishReason::kNone;
  const auto tokens = Generate(*loaded_, Prompt(50, 4), options_, &reason);
  EXPECT_EQ(reason, FinishReason::kLength);
  ASSERT_EQ(tokens.size(), 15u) << "the context is 64";
  EXPECT_TRUE(SameTokens(tokens, {sliding.begin(), sliding.begin() + 15}));
}

// Memory is full of NaN when it is given: nothing is read that was not written.
class StaleMemory : public DeferredBackend {
 public:
  StaleMemory() : DeferredBackend(MakeBackend()) {}
  absl::StatusOr<Buffer> Allocate(int64_t floats) override {
    absl::StatusOr<Buffer> made = DeferredBackend::Allocate(floats);
    const std::vector<float> stale(static_cast<size_t>(floats), std::nanf(""));
    if (!made.ok()) return made;
    EXPECT_TRUE(Upload(stale, made->data()).ok());
    return made;
  }
};

// kernels/pages_test.cc has the bytes of pages.
TEST_P(GenerationTest, TextsOfSeveralPagesReadNothingThatIsStale) {
  const std::string folder = WriteModel(folder_.path() + "/long", LongConfig(), 9);
  const LoadedModel paged = LoadModel(folder, std::make_unique<StaleMemory>());
  const LoadedModel whole = LoadModel(folder);
  options_.samples = 2;
  for (const int32_t length : {1, 63, 64, 65, 140}) {  // the last grows beyond the context
    options_.overflow = length % 2 == 0 ? Overflow::kSlide : Overflow::kHalve;
    options_.max_new_tokens = length == 1 ? 140 : 20;
    const Tokens prompt = Prompt(length, static_cast<uint64_t>(length));
    const auto expected = Generate(*whole, prompt, options_);
    EXPECT_TRUE(SameTokens(Generate(*paged, prompt, options_), expected)) << length;
    const auto generation = *Generation::Create(*paged, *paged->Prepare(prompt, TruncateMode::kRefuse), options_);
    generation->LimitPart(50);
    std::vector<GeneratedToken> tokens;
    while (!generation->done()) {
      ASSERT_TRUE(generation->Step().ok());
      auto token = generation->TakeToken();
      if (!token) continue;
      tokens.push_back(*std::move(token));
      if (tokens.size() % 11 == 10) generation->DropCache();
    }
    EXPECT_TRUE(SameTokens(tokens, expected)) << length << ", computed again";
  }
}

TEST_P(GenerationTest, MemoryIsTakenByThePageAndGivenBack) {
  const LoadedModel model = LoadModel(WriteModel(folder_.path() + "/long", LongConfig(), 9));
  options_.overflow = Overflow::kHalve;
  options_.max_new_tokens = 150;
  const auto create = [&] {
    return *Generation::Create(*model, *model->Prepare(RandomTokens(60, 49, 1), TruncateMode::kRefuse), options_);
  };
  const auto generation = create();
  const uint64_t page = generation->cache_bytes().held;
  EXPECT_EQ(generation->cache_bytes().longest, 3 * page);
  EXPECT_EQ(generation->cache_bytes().ahead, 2 * page);
  for (int32_t tokens = 60; !generation->done(); ++tokens) {
    const int32_t text = tokens <= 150 ? tokens : tokens - 75;  // half of a full context has left
    const CacheBytes bytes = generation->cache_bytes();
    EXPECT_EQ(bytes.next, (text + 63) / 64 * page) << tokens;
    EXPECT_EQ(bytes.ahead, std::min(3, (text + 127) / 64) * page) << tokens;
    EXPECT_EQ(bytes.held, std::max(tokens <= 150 ? 1 : 2, (text + 62) / 64) * page) << tokens;
    while (!generation->TakeToken()) ASSERT_TRUE(generation->Step().ok());
  }
  options_.max_density = 0.9;
  EXPECT_EQ(create()->cache_bytes().held, 3 * page) << "rows under a cap are not computed again";
}

INSTANTIATE_TEST_SUITE_P(Kinds, GenerationTest, ::testing::ValuesIn(LanguageModelKinds()),
                         [](const auto& info) { return info.param.name; });

class BytesTest : public ::testing::Test {
 protected:
  BytesTest() {
    auto config = ConfigOf(LanguageModelKinds()[1]);  // pads have id 0
    config["vocab_size"] = 257;
    config["tokenizer"] = {{"kind", "byte"}};
    loaded_ = LoadModel(WriteModel(folder_.path(), config, 9));
    options_.max_new_tokens = 40;
    options_.temperature = 1.0;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  GenerationOptions options_;
};

TEST_F(BytesTest, StopStringsEndTheTextBeforeThem) {
  const auto free = Generate(*loaded_, {5, 6, 7}, options_);
  std::string all;
  for (const GeneratedToken& token : free) all += token.text;
  ASSERT_GT(all.size(), 20u);
  size_t cut = 10;
  while ((static_cast<unsigned char>(all[cut]) & 0xC0) == 0x80) ++cut;
  options_.stop = {"never", all.substr(cut, all.size() / 4)};
  FinishReason reason = FinishReason::kNone;
  const auto stopped = Generate(*loaded_, {5, 6, 7}, options_, &reason);
  EXPECT_EQ(reason, FinishReason::kStop);
  EXPECT_LT(stopped.size(), free.size());
  std::string text;
  for (const GeneratedToken& token : stopped) text += token.text;
  EXPECT_EQ(text, all.substr(0, all.find(options_.stop[1])));
  for (size_t i = 0; i < stopped.size(); ++i) EXPECT_EQ(stopped[i].token_id, free[i].token_id);
}

TEST_F(BytesTest, PadsAreNeverChosenAndThoseBehindThePromptChangeNothing) {
  options_.temperature = 50.0;
  const auto tokens = Generate(*loaded_, {5, 6, 7}, options_);
  EXPECT_THAT(IdsOf(tokens), ::testing::Not(::testing::Contains(0)));
  EXPECT_TRUE(SameTokens(tokens, Generate(*loaded_, {5, 6, 7, 0, 0}, options_)));
}

}  // namespace
}  // namespace edgewise::testing
