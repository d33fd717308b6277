// Generations beside others: whoever runs with them, comes or goes, each has the bytes that it has alone.
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint/weights.h"
#include "tests/model/deferred_backend.h"
#include "tests/model/generation_fixture.h"

namespace edgewise::testing {
namespace {

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

}  // namespace
}  // namespace edgewise::testing
