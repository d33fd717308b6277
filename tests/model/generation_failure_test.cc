// Generations whose numbers are not finite, or whose steps fail: only the guilty one ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/forward/generation.h"
#include "tests/model/cancelling_backend.h"
#include "tests/model/model_kinds.h"
#include "tests/model/run_generation.h"

namespace edgewise::testing {
namespace {

using ::testing::HasSubstr;

// Token 49 at position 10 makes numbers that are not finite.
class GenerationFailureTest : public ::testing::Test {
 protected:
  GenerationFailureTest() {
    const auto config = ConfigOf(LanguageModelKinds()[0]);
    auto tensors = RandomTensors(config, 1);
    tensors["embeddings.word.weight"].values[49 * 32] = 1e38f;
    tensors["embeddings.position.weight"].values[10 * 32] = 3e38f;
    WriteFile(folder_.path() + "/config.json", config.dump());
    WriteFile(folder_.path() + "/model.safetensors", SafetensorsBytes(tensors));
    loaded_ = LoadModel(folder_.path(), std::make_unique<CancellingBackend>(MakeBackend()));
    options_.max_new_tokens = 1;
  }
  CancellingBackend& backend() { return static_cast<CancellingBackend&>(*loaded_.backend); }
  std::unique_ptr<Generation> Create(const Tokens& prompt) {
    return *Generation::Create(*loaded_, *loaded_->Prepare(prompt, TruncateMode::kRefuse), options_);
  }

  const Tokens bad_ = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 49, 3}, good_ = {1, 2, 3, 4};
  TemporaryFolder folder_;
  LoadedModel loaded_;
  GenerationOptions options_;
};

TEST_F(GenerationFailureTest, ANumberThatIsNotFiniteEndsItWithInternal) {
  const auto generation = Create(bad_);
  absl::Status status;
  for (int step = 0; step < 10 && status.ok(); ++step) status = generation->Step();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("NON_FINITE_OUTPUT"));
}

TEST_F(GenerationFailureTest, ANumberThatIsNotFiniteEndsNoOtherOfItsStep) {
  const auto alone = Generate(*loaded_, good_, options_);
  const auto good = Create(good_), bad = Create(bad_);
  Generation* const both[] = {bad.get(), good.get()};
  absl::Status statuses[2];
  Generation::DecodeTogether(both, statuses);
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(bad->TakeToken().has_value());
  ASSERT_TRUE(statuses[1].ok()) << statuses[1];
  EXPECT_TRUE(SameTokens({*good->TakeToken()}, {alone[0]}));
}

TEST_F(GenerationFailureTest, AStepThatFailsIsTakenAgainByEachAlone) {
  const auto alone = Generate(*loaded_, good_, options_);
  for (const bool all_fail : {false, true}) {
    const auto first = Create(good_), second = Create(good_);
    Generation* const both[] = {first.get(), second.get()};
    absl::Status statuses[2];
    EXPECT_TRUE(first->Joins(*second));
    backend().FailAfter(1);
    Generation::DecodeTogether(both, statuses);
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
    EXPECT_FALSE(first->holds_token() || second->holds_token());
    EXPECT_FALSE(first->Joins(*second));
    if (all_fail) backend().FailAfter(0);
    EXPECT_EQ(first->Step().ok(), !all_fail);
    ASSERT_TRUE(second->Step().ok());
    EXPECT_TRUE(SameTokens({*second->TakeToken()}, {alone[0]}));
  }
}

// Layer by layer: who leaves half-way takes nobody with it, and who is left of a step that fails takes it again alone.
TEST_F(GenerationFailureTest, ATokenThatIsHalfWayOutlivesThoseThatLeave) {
  options_.max_new_tokens = 2;
  const auto alone = Generate(*loaded_, good_, options_);
  for (const bool fails : {false, true}) {
    auto gone = Create({5, 6, 7});
    const auto first = Create(good_), second = Create(good_);
    Generation* const all[] = {first.get(), gone.get(), second.get()};
    absl::Status statuses[3];
    Generation::DecodeTogether(all, statuses, 1);
    for (const Generation* generation : all) EXPECT_TRUE(generation->holds_token());
    gone.reset();
    Generation* const left[] = {first.get(), second.get()};
    if (fails) backend().FailAfter(0);
    int64_t steps = 1;
    for (; first->holds_token(); ++steps) Generation::DecodeTogether(left, std::span(statuses).first(2), 1);
    EXPECT_EQ(steps, fails ? 2 : Generation::LayersOfToken(*loaded_));
    for (Generation* generation : left) {
      std::vector<GeneratedToken> tokens;
      if (auto token = generation->TakeToken()) tokens.push_back(*std::move(token));
      EXPECT_EQ(tokens.size(), fails ? 0u : 1u);
      while (!generation->done()) {
        ASSERT_TRUE(generation->Step().ok());
        tokens.push_back(*generation->TakeToken());
      }
      EXPECT_TRUE(SameTokens(tokens, alone));
    }
  }
}

TEST_F(GenerationFailureTest, AStepOfPromptsThatFailsIsTakenAgainByEachAlone) {
  const Tokens prompt = RandomTokens(40, 49, 3);
  const auto alone = Generate(*loaded_, prompt, options_);
  const auto first = Create(prompt), second = Create(prompt);
  Generation* const both[] = {first.get(), second.get()};
  absl::Status statuses[2];
  EXPECT_TRUE(first->Joins(*second));
  backend().FailAfter(0);
  Generation::StepPrompts(both, statuses);
  for (Generation* generation : both) {
    EXPECT_FALSE(generation->holds_part());
    EXPECT_FALSE(first->Joins(*second));
  }
  EXPECT_TRUE(statuses[0].ok() && statuses[1].ok());
  backend().FailAfter(0);
  EXPECT_FALSE(first->Step().ok());
  while (!second->done()) ASSERT_TRUE(second->Step().ok());
  EXPECT_TRUE(SameTokens({*second->TakeToken()}, alone));
}

TEST_F(GenerationFailureTest, WhoFailedInAStepOfPromptsSharesStepsAgainAfterItsNextToken) {
  options_.max_new_tokens = 3;
  const auto first = Create(good_), second = Create(good_);
  Generation* const both[] = {first.get(), second.get()};
  absl::Status statuses[2];
  backend().FailAfter(0);
  Generation::StepPrompts(both, statuses);
  EXPECT_FALSE(first->Joins(*second));
  for (Generation* generation : both) ASSERT_TRUE(generation->Step().ok());  // decodes the prompt, since it is short
  EXPECT_TRUE(first->Joins(*second));
}

TEST_F(GenerationFailureTest, WhoIsLeftOfAStepOfPromptsTakesItAgainAlone) {
  const Tokens prompt = RandomTokens(40, 49, 3);
  const auto alone = Generate(*loaded_, prompt, options_);
  auto gone = Create(prompt);
  const auto stays = Create(prompt);
  Generation* const both[] = {gone.get(), stays.get()};
  absl::Status statuses[2];
  EXPECT_EQ(Generation::StepPrompts(both, statuses), 80) << "rows";
  gone.reset();
  backend().FailAfter(0);
  EXPECT_TRUE(stays->Step().ok());
  EXPECT_FALSE(stays->holds_part());
  while (!stays->done()) ASSERT_TRUE(stays->Step().ok());
  EXPECT_TRUE(SameTokens({*stays->TakeToken()}, alone));
}

}  // namespace
}  // namespace edgewise::testing
