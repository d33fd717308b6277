// Generation against forward passes over the text so far: the same edges, the same probabilities, with caches,
// ensembles, budgets and beyond the context.
#include "model/forward/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/weights.h"
#include "model/forward/edge_budget.h"
#include "model/kinds/kind.h"
#include "tests/model/deferred_backend.h"
#include "tests/model/model_kinds.h"
#include "tests/model/rounded_model.h"
#include "tests/model/run_generation.h"

namespace edgewise::testing {
namespace {

using ::testing::StartsWith;

bool RoundsToBfloat16() {
  const char* precision = std::getenv("EDGEWISE_TEST_PRECISION");
  return precision != nullptr && std::string_view(precision) == "bf16";
}

class GenerationTest : public ::testing::TestWithParam<ModelKind> {
 protected:
  GenerationTest() : loaded_(LoadModel(WriteModel(folder_.path(), ConfigOf(GetParam()), 9))) {
    if (RoundsToBfloat16()) reference_.emplace(folder_.path());
    options_.max_new_tokens = 24;
    options_.temperature = 0.8;
    options_.seed = 5;
    if (!GetParam().override_with.is_null()) {
      options_.attention = Override(ConfigOf(GetParam()), GetParam().override_with);
    }
  }

  Tokens Prompt(int32_t count, uint64_t seed) const {
    Tokens prompt = RandomTokens(count, 49, seed);
    if (loaded_->config().pad_token_id == 0 && count > 4) prompt[2] = prompt[3] = 0;
    return prompt;
  }

  // With a context of three pages.
  static nlohmann::json LongConfig() {
    nlohmann::json config = ConfigOf(GetParam());
    config[config.contains("n_positions") ? "n_positions" : "max_position_embeddings"] = 150;
    if (GetParam().name == "lm_ssa_grid") {
      for (nlohmann::json& layer : config["attention"]) layer["grid"] = {10, 15};
    }
    return config;
  }

  // A text, cut to its last tokens, whose last token's row predicts the next.
  ModelInput InputOf(const Tokens& text) const {
    ModelInput input;
    input.sequences.push_back(*loaded_->Prepare(text, TruncateMode::kHead));
    input.seed = options_.seed;
    input.samples = options_.samples;
    input.attention = options_.attention;
    input.dense = options_.dense;
    input.wanted.graph = options_.samples == 1;
    return input;
  }
  InputResult Predict(const Tokens& text) const { return RunOne(*loaded_, InputOf(text)); }

  // Edges of every generated token are those of passes over what stands before it; probabilities too, but for
  // differences that TearDown judges.
  void ExpectAsRecomputed(const Tokens& prompt, const std::vector<GeneratedToken>& tokens) {
    Tokens text = prompt;
    for (const GeneratedToken& token : tokens) {
      const ModelInput input = InputOf(text);
      const InputResult result = RunOne(*loaded_, input);
      EXPECT_TRUE(result.status.ok()) << result.status;
      const std::vector<double> expected = NextProbabilities(result);
      difference_ = std::max(difference_, Distance({std::exp(token.log_probability)}, {expected[token.token_id]}));
      const double near = std::getenv("EDGEWISE_TEST_DEVICE") != nullptr ? 0.05 : 1e-5;  // results are rounded
      EXPECT_NEAR(token.predictive_entropy, result.predictive_entropy[0], near);
      EXPECT_NEAR(token.mutual_information, result.mutual_information[0], near);
      if (reference_.has_value() && compared_++ % 8 == 0) {  // float64 takes its time
        const std::vector<double> rounded = reference_->Rounded(input);
        moved_ = std::max(moved_, Distance(rounded, reference_->Exact(input)));
        apart_ = std::max(apart_, Distance(expected, rounded));
      }
      if (result.graph.has_value()) {
        uint64_t edges = 0;
        for (const auto& layer : result.graph->layers) {
          for (const HeadEdges& head : layer) edges += head.row_offsets.back() - head.row_offsets.end()[-2];
        }
        EXPECT_EQ(token.edges.edges, static_cast<double>(edges)) << "after " << text.size() << " tokens";
      }
      text.push_back(token.token_id);
    }
  }

  // Decoding and a pass sum in different orders on a GPU. In bf16 each is as far from float64 as the roundings move it,
  // so they are at most twice as far from each other. The CPU computes both by the same steps; what remains are the
  // sums of this test.
  void TearDown() override {
    const bool device = std::getenv("EDGEWISE_TEST_DEVICE") != nullptr;
    const double allowed = reference_.has_value() ? 2.0 * moved_ : device ? kCachedTolerance : 1e-12;
    EXPECT_LE(difference_, allowed) << "relative, of a token's probability";
    EXPECT_TRUE(compared_ == 0 || apart_ < moved_) << "the reference does not round as the device: " << apart_;
    RecordProperty("largest_relative_difference", absl::StrCat(difference_));
    RecordProperty("allowed_relative_difference", absl::StrCat(allowed));
  }

  void ExpectDensitiesHold(const Tokens& prompt) {
    GenerationOptions options = options_;
    options.max_density = 1.0;
    for (const GeneratedToken& token : Generate(*loaded_, prompt, options)) {
      EXPECT_EQ(token.edges.budget, token.edges.pairs);
      EXPECT_FALSE(token.edges.capped);
    }
    // The least of a row depends on where tokens stand only, so that of row i is the same in all of these.
    options.max_density = 1e-9;
    const auto least = Generate(*loaded_, prompt, options);
    options.max_density = 0.4;
    const auto capped = Generate(*loaded_, prompt, options);
    ASSERT_EQ(capped.size(), least.size());
    uint64_t most = 0;
    for (size_t i = 0; i < capped.size(); ++i) {
      const RowEdges& edges = capped[i].edges;
      EXPECT_GE(least[i].edges.budget, 1u);
      EXPECT_LE(least[i].edges.max_sample_edges, least[i].edges.budget);
      EXPECT_EQ(edges.budget, std::max(EdgesOfDensity(0.4, edges.pairs), least[i].edges.budget));
      EXPECT_LE(edges.max_sample_edges, edges.budget);
      most = std::max(most, least[i].edges.budget);
    }
    options.max_density = 0.0;
    options.max_edges = most;
    const auto create = [&] {
      return Generation::Create(*loaded_, *loaded_->Prepare(prompt, TruncateMode::kRefuse), options).status();
    };
    EXPECT_TRUE(create().ok()) << "max_edges is strict, and allows the least of all rows: " << create();
    options.max_edges = most - 1;
    EXPECT_FALSE(create().ok());
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  GenerationOptions options_;

 private:
  std::optional<RoundedModel> reference_;  // in bf16
  int compared_ = 0;                       // tokens with it, of which every eighth counts
  // The largest relative differences of probabilities: of decoded tokens from a pass, of the rounded reference from the
  // exact one, and of a pass from the rounded reference.
  double difference_ = 0.0, moved_ = 0.0, apart_ = 0.0;
};

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

TEST_P(GenerationTest, ThreadsAndOthersInBetweenChangeNoByte) {
  options_.samples = 3;
  options_.max_new_tokens = 10;
  const Tokens prompt = Prompt(21, 8);
  const auto alone = Generate(*loaded_, prompt, options_);
  const LoadedModel threaded = LoadModel(folder_.path(), 3);
  EXPECT_TRUE(SameTokens(alone, Generate(*threaded, prompt, options_)));

  const auto create = [&](const Tokens& text, GenerationOptions options) {
    return *Generation::Create(*loaded_, *loaded_->Prepare(text, TruncateMode::kRefuse), std::move(options));
  };
  GenerationOptions other = options_;
  other.seed = 99;
  other.samples = 1;
  const auto first = create(prompt, options_), second = create(Prompt(50, 9), other);
  std::vector<GeneratedToken> tokens;
  while (!first->done()) {
    ASSERT_TRUE(first->Step().ok());
    if (auto token = first->TakeToken()) tokens.push_back(*std::move(token));
    ASSERT_TRUE(second->Step().ok());
    Predict(prompt);
  }
  EXPECT_TRUE(SameTokens(alone, tokens));
}

// Of any mix of prompts, samples, seeds, budgets and attention; in any number, after parts of any size, layer by layer.
TEST_P(GenerationTest, TogetherEachHasTheBytesThatItHasAlone) {
  struct Case {
    Tokens prompt;
    GenerationOptions options;
  };
  std::vector<Case> cases;
  for (uint64_t i = 0; i < 16; ++i) {
    Case& one = cases.emplace_back(Case{Prompt(static_cast<int32_t>(1 + (i * 7) % 60), i), options_});
    one.options.seed = i % 5;
    one.options.samples = 1 + i % 3;
    one.options.max_new_tokens = 6 + i % 7;
    one.options.temperature = i % 4 == 0 ? 0.0 : 0.9;
    one.options.max_density = i % 4 == 1 ? 0.5 : 0.0;
    one.options.dense = i % 6 == 5;
  }
  std::vector<std::vector<GeneratedToken>> alone;
  for (const Case& one : cases) alone.push_back(Generate(*loaded_, one.prompt, one.options));
  const LoadedModel threaded = LoadModel(folder_.path(), 3);
  for (const Model* model : {&*loaded_, &*threaded}) {
    std::vector<std::unique_ptr<Generation>> generations;
    for (size_t i = 0; i < cases.size(); ++i) {
      const auto prompt = *model->Prepare(cases[i].prompt, TruncateMode::kRefuse);
      generations.push_back(*Generation::Create(*model, prompt, cases[i].options));
      generations.back()->LimitPart(static_cast<int32_t>(i % 4 * 5));  // 0: whole
    }
    const bool in_parts = model == &*threaded;  // short prompts and tokens too
    const auto together = GenerateTogether(
        generations, in_parts, [] {}, in_parts ? 1 : kAllLayers);
    for (size_t i = 0; i < cases.size(); ++i) EXPECT_TRUE(SameTokens(together[i], alone[i])) << i;
  }
}

// Prompts that run together: one is given up half-way, one is stopped, and the others go on.
TEST_P(GenerationTest, PromptsThatLeaveAStepChangeNoByteOfTheOthers) {
  options_.samples = 2;
  options_.max_new_tokens = 3;
  for (int layers = 0; layers < 4; ++layers) {
    std::vector<std::unique_ptr<Generation>> generations;
    std::vector<std::vector<GeneratedToken>> alone;
    std::vector<Generation*> together;
    std::stop_source stop;
    for (int32_t i = 0; i < 4; ++i) {
      GenerationOptions options = options_;
      options.max_density = i < 2 ? 0.5 : 0.0;
      alone.push_back(Generate(*loaded_, Prompt(40 + 5 * i, i), options));
      if (i == 2) options.stopping = stop.get_token();
      const auto prompt = *loaded_->Prepare(Prompt(40 + 5 * i, i), TruncateMode::kRefuse);
      generations.push_back(*Generation::Create(*loaded_, prompt, options));
      together.push_back(generations.back().get());
    }
    std::vector<absl::Status> statuses(4);
    const auto step = [&] { Generation::StepPrompts(together, std::span(statuses).first(together.size())); };
    for (int layer = 0; layer <= layers; ++layer) step();
    for (const absl::Status& status : statuses) ASSERT_TRUE(status.ok()) << status;
    if (!together[0]->holds_part()) {
      EXPECT_EQ(layers, loaded_->config().num_hidden_layers);
      break;
    }
    generations[0].reset();
    together.erase(together.begin());
    stop.request_stop();
    step();
    EXPECT_EQ(statuses[1].code(), absl::StatusCode::kCancelled);
    EXPECT_FALSE(generations[2]->holds_part());
    generations.erase(generations.begin() + 2);
    generations.erase(generations.begin());
    std::vector<std::vector<GeneratedToken>> tokens(2);
    for (size_t i = 0; i < 2; ++i) {
      if (auto token = generations[i]->TakeToken()) tokens[i].push_back(*std::move(token));
    }
    const auto rest = GenerateTogether(generations);
    for (size_t i = 0; i < 2; ++i) {
      tokens[i].insert(tokens[i].end(), rest[i].begin(), rest[i].end());
      EXPECT_TRUE(SameTokens(tokens[i], alone[2 * i + 1])) << i << " after " << layers << " layers";
    }
  }
}

// The cache of a parked generation is computed again.
TEST_P(GenerationTest, ACacheThatWasDroppedChangesNoByte) {
  for (const int32_t length : {1, 9, 58}) {
    options_.samples = 2;
    const Tokens prompt = Prompt(length, 5);
    const auto whole = Generate(*loaded_, prompt, options_);
    const auto generation = *Generation::Create(*loaded_, *loaded_->Prepare(prompt, TruncateMode::kRefuse), options_);
    std::vector<GeneratedToken> tokens;
    size_t dropped = 0;  // tokens at the last time
    while (!generation->done()) {
      ASSERT_TRUE(generation->Step().ok());
      if (auto token = generation->TakeToken()) tokens.push_back(*std::move(token));
      if (!generation->CanDropCache() || tokens.size() < dropped + 3) continue;
      dropped = tokens.size();
      generation->DropCache();
      generation->LimitPart(11);
    }
    EXPECT_TRUE(SameTokens(tokens, whole)) << length;
  }
  options_.max_density = 0.5;
  EXPECT_FALSE(
      (*Generation::Create(*loaded_, *loaded_->Prepare({1, 2}, TruncateMode::kRefuse), options_))->CanDropCache())
      << "rows that a cap may have changed";
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

// Calls of a decoder, and of attention.
class CountedDecodes : public DeferredBackend {
 public:
  CountedDecodes() : DeferredBackend(MakeBackend()) {}
  absl::Status Decode(PreparedDecoder& decoder, std::span<const DecodedRow> rows, Matrix logits) override {
    ++decodes;
    return DeferredBackend::Decode(decoder, rows, logits);
  }
  absl::Status Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                      std::span<EdgeCap> caps, Matrix out) override {
    ++attends;
    return DeferredBackend::Attend(inputs, problems, caps, out);
  }
  int64_t decodes = 0, attends = 0;
};

TEST_P(GenerationTest, WhatAttendsAsItsModelDecodesInOneCallAToken) {
  CountedDecodes* const backend = new CountedDecodes;
  const LoadedModel model = LoadModel(folder_.path(), std::unique_ptr<Backend>(backend));
  if (model->weights().decoder == nullptr) {
    const std::string& name = GetParam().name;
    const bool served = name == "lm_dense" || name == "lm_hf_gpt2" || name == "lm_hf_llama" || name == "lm_hf_mistral";
    EXPECT_FALSE(RoundsToBfloat16() && served);
    GTEST_SKIP() << "the device has no decoder of this kind";
  }
  bool all_dense = true, has_windows = false;
  for (const AttentionConfig& layer : model->config().attention) {
    all_dense &= layer.kind == &kDenseKind;
    has_windows |= layer.reach != AllPairs::kFar;
  }
  for (const bool dense : {true, false}) {
    options_.dense = dense;
    backend->decodes = backend->attends = 0;
    const size_t tokens = Generate(*model, RandomTokens(20, 48, 3), options_).size();
    const bool plain = dense ? !has_windows : options_.attention == nullptr && all_dense;
    EXPECT_EQ(backend->decodes, plain ? static_cast<int64_t>(tokens) : 0);
    EXPECT_EQ(backend->attends == 0, plain) << "a generation takes one way";
  }
}

// A text that is computed again has more rows left than one call takes. One that leaves behind the first call has rows
// left, or has predicted already.
TEST_P(GenerationTest, ATextThatLeavesBetweenItsRowsChangesNoByteOfTheOthers) {
  const LoadedModel model = LoadModel(WriteModel(folder_.path() + "/long", LongConfig(), 9));
  options_.max_new_tokens = 90;
  options_.dense = true;
  const auto create = [&](uint64_t seed) {
    return *Generation::Create(*model, *model->Prepare(RandomTokens(5, 49, seed), TruncateMode::kRefuse), options_);
  };
  const auto alone = Generate(*model, RandomTokens(5, 49, 2), options_);
  for (const size_t of_leaving : {80u, 40u}) {
    std::vector<std::unique_ptr<Generation>> both;
    std::vector<GeneratedToken> tokens;
    for (const uint64_t seed : {1, 2}) {
      both.push_back(create(seed));
      for (size_t t = 0; t < (seed == 1 ? of_leaving : 80u);) {
        ASSERT_TRUE(both.back()->Step().ok());
        auto token = both.back()->TakeToken();
        t += token ? 1 : 0;
        if (token && seed == 2) tokens.push_back(*std::move(token));
      }
      both.back()->DropCache();
    }
    Generation* const together[] = {both[0].get(), both[1].get()};
    absl::Status statuses[2];
    ASSERT_TRUE(both[0]->prompt_next() && both[0]->Joins(*both[1]));
    Generation::StepPrompts(together, statuses);
    ASSERT_TRUE(both[1]->holds_part());
    both.erase(both.begin());
    while (!both[0]->done()) {
      ASSERT_TRUE(both[0]->Step().ok());
      if (auto token = both[0]->TakeToken()) tokens.push_back(*std::move(token));
    }
    EXPECT_TRUE(SameTokens(tokens, alone)) << of_leaving;
  }
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
