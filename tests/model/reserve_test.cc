// The floats that a model reserves when it is loaded are enough for its requests: the backend counts. Not covered by a
// reserve, because the request decides how much: texts longer than a wave, and windows that run at once.
#include "model/load/reserve.h"

#include <gtest/gtest.h>

#include "model/forward/generation.h"
#include "model/kinds/kind.h"
#include "tests/model/counting_backend.h"
#include "tests/model/model_kinds.h"
#include "tests/model/wave_config.h"

namespace edgewise::testing {
namespace {

class ReserveTest : public ::testing::Test {
 protected:
  void Load(const nlohmann::json& config) {
    loaded_ = LoadModel(WriteModel(folder_.path(), config, 3), std::make_unique<CountingBackend>(MakeBackend()));
    weights_ = backend().live();
    backend().TakeMost();
  }
  CountingBackend& backend() { return static_cast<CountingBackend&>(*loaded_.backend); }
  // The most floats of requests at a time since the last call.
  int64_t Taken() { return backend().TakeMost() - weights_; }

  // A full wave has what was reserved, and uses a good part of it.
  void Run(const std::vector<ModelInput>& inputs) {
    for (const InputResult& result : RunAll(*loaded_, inputs)) ASSERT_TRUE(result.status.ok()) << result.status;
    const int64_t taken = Taken();
    EXPECT_LE(taken, backend().pass_floats());
    EXPECT_GE(taken, backend().pass_floats() / 4);
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  int64_t weights_ = 0;
  std::mt19937_64 random_{1};
};

class ReserveKindsTest : public ReserveTest, public ::testing::WithParamInterface<ModelKind> {};

TEST_P(ReserveKindsTest, PassesHaveWhatWasReserved) {
  Load(ConfigOf(GetParam()));
  const auto input = [&] { return RandomInput(GetParam(), *loaded_, random_); };
  std::vector<ModelInput> mix;
  for (int round = 0; round < 2; ++round) {
    mix.push_back(input());
    mix.push_back(input());
    mix.back().samples = 5;
    mix.push_back(input());
    mix.back().samples = 12;
    mix.back().tolerance = 0.05;
    mix.push_back(input());
    mix.back().dense = true;
  }
  RunAll(*loaded_, mix);
  const int64_t taken = Taken();
  EXPECT_GT(taken, 0);
  EXPECT_LE(taken, backend().pass_floats());
  EXPECT_EQ(backend().live(), weights_);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ReserveKindsTest, ::testing::ValuesIn(ModelKinds()),
                         ::testing::PrintToStringParamName());

TEST_F(ReserveTest, WavesThatGrow) {
  Load(WaveConfig(ThreeLayers()));
  std::vector<ModelInput> inputs = Texts(*loaded_, 273, 60);
  for (ModelInput& input : Texts(*loaded_, 256, 64)) inputs.push_back(std::move(input));  // four rows more
  for (ModelInput& input : Texts(*loaded_, 32, 64)) {
    input.samples = 16;  // waves of 4, 4 and 8 samples
    input.tolerance = 1e-9;
    inputs.push_back(std::move(input));
  }
  Run(inputs);
}

TEST_F(ReserveTest, AWaveOfVeryShortTexts) {
  Load(WaveConfig({{"max_position_embeddings", 64}}));
  Run(Texts(*loaded_, 16384, 1));
}

TEST_F(ReserveTest, AWaveOfPairs) {
  Load(WaveConfig({{"task", "pair-classification"}, {"classifier_hidden_size", 128}}));
  Run(Texts(*loaded_, 8192, 1));
}

TEST_F(ReserveTest, AWaveOfTokens) {
  Load(WaveConfig({{"task", "token-classification"}, {"pooling", nullptr}, {"num_labels", 37}}));
  Run(Texts(*loaded_, 256, 64));
}

TEST_F(ReserveTest, ATextThatIsScored) {
  Load(LanguageConfig(64));
  ModelInput input;
  input.sequences = *loaded_->PrepareWindows(RandomTokens(9000, 49, 1), TruncateMode::kRefuse, 32);
  input.samples = 2;
  Run({input});
}

// Generations of any length and number of samples come and go within the limit.
TEST_F(ReserveTest, CachesOfUnlikeSizes) {
  constexpr int32_t kLength = 512;
  Load(LanguageConfig(kLength));
  constexpr uint64_t kLimit = 4 << 20;
  ASSERT_TRUE(ReserveForGenerations(*loaded_, {kLimit, 16, 32}).ok());
  std::mt19937_64 random(1);
  std::vector<std::pair<uint64_t, std::unique_ptr<Generation>>> running;
  uint64_t held = 0, most = 0;
  for (int i = 0; i < 300; ++i) {
    const int32_t tokens = 1 + static_cast<int32_t>(random() % 400);
    GenerationOptions options;
    options.max_new_tokens = 1 + random() % 100;
    options.samples = 1 + random() % 8;
    const uint64_t bytes = (tokens + options.max_new_tokens) * (1 + options.samples) * 2 * 16 * sizeof(float);
    while (held + bytes > kLimit || running.size() == 16) {
      const size_t ends = random() % running.size();
      held -= running[ends].first;
      running.erase(running.begin() + static_cast<int64_t>(ends));
    }
    const auto prompt = *loaded_->Prepare(RandomTokens(tokens, 49, i), TruncateMode::kRefuse);
    running.emplace_back(bytes, *Generation::Create(*loaded_, prompt, options));
    held += bytes;
    most = std::max(most, held);
  }
  EXPECT_GT(most, kLimit * 9 / 10);
  EXPECT_LE(Taken(), backend().generation_floats());
}

class ReserveGenerationsTest : public ReserveKindsTest {};

TEST_P(ReserveGenerationsTest, GenerationsHaveWhatWasReserved) {
  constexpr int kGenerations = 4;
  Load(ConfigOf(GetParam()));
  ASSERT_TRUE(ReserveForGenerations(*loaded_, {uint64_t{2} << 30, kGenerations, 6}).ok());
  std::vector<std::unique_ptr<Generation>> running;
  int started = 0;
  while (started < 10 || !running.empty()) {
    if (started < 10 && running.size() < kGenerations) {
      GenerationOptions options;
      options.max_new_tokens = 5 + random_() % 25;
      options.samples = 1 + random_() % 6;
      options.max_density = started % 3 == 0 ? 0.3 : 0.0;
      options.seed = ++started;
      const auto prompt = RandomTokens(1 + random_() % 60, 49, random_());
      running.push_back(*Generation::Create(*loaded_, *loaded_->Prepare(prompt, TruncateMode::kRefuse), options));
    }
    // One step of prompts after the other, and beside each all others that can decode in one step.
    std::vector<Generation*> decoding, prompts;
    int64_t rows = 0, tokens = 0, samples = 0;
    for (auto& generation : running) {
      const bool prompt = generation->prompt_next();
      std::vector<Generation*>& together = prompt ? prompts : decoding;
      const int64_t more = generation->part_tokens() + 1;
      const bool fits = prompt ? tokens + more <= loaded_->config().max_position_embeddings &&
                                     samples + generation->samples() <= kRowsTogether
                               : rows + generation->rows() <= kRowsTogether;
      if (!together.empty() && (!generation->Joins(*together[0]) || !fits)) continue;
      rows += prompt ? 0 : generation->rows();
      tokens += prompt ? more : 0;
      samples += prompt ? generation->samples() : 0;
      together.push_back(generation.get());
    }
    do {
      std::vector<absl::Status> statuses(std::max(prompts.size(), decoding.size()));
      Generation::StepPrompts(prompts, std::span(statuses).first(prompts.size()));
      for (const absl::Status& status : statuses) ASSERT_TRUE(status.ok()) << status;
      Generation::DecodeTogether(decoding, std::span(statuses).first(decoding.size()));
      for (const absl::Status& status : statuses) ASSERT_TRUE(status.ok()) << status;
      decoding.clear();
    } while (!prompts.empty() && prompts[0]->holds_part());
    std::erase_if(running, [](const auto& generation) { return generation->done(); });
  }
  const int64_t taken = Taken();
  EXPECT_GT(taken, 0);
  EXPECT_LE(taken, backend().generation_floats());
  EXPECT_EQ(backend().live(), weights_);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ReserveGenerationsTest, ::testing::ValuesIn(LanguageModelKinds()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace edgewise::testing
