// The memory that a model takes from the driver when it is loaded is all that its requests need: the emulated driver
// counts its allocations. Not covered by a reserve, because the request decides how much: graphs that are given or
// asked for, pairwise biases and long key lists. The model's own share is tested on the CPU
// (tests/model/reserve_test.cc).
#include "model/load/reserve.h"

#include <gtest/gtest.h>

#include "model/forward/generation.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/linked_backend.h"
#include "tests/model/wave_config.h"

namespace edgewise::testing {
namespace {

void ExpectNothingTaken(const emulator::Taken& before) {
  const emulator::Taken now = emulator::TakenSoFar();
  EXPECT_EQ(now.device_memory - before.device_memory, 0u) << "calls of cudaMalloc";
  EXPECT_EQ(now.pinned_memory - before.pinned_memory, 0u) << "calls of cudaMallocHost";
  EXPECT_EQ(now.events - before.events, 0u);
  EXPECT_EQ(now.streams - before.streams, 0u);
  EXPECT_EQ(now.kernels, 0u) << "kernels that their first launch loaded";
}

class FullWaveOnceTest : public ::testing::Test {
 protected:
  void Load(const nlohmann::json& config, const std::string& precision = "fp32") {
    loaded_ = LoadModel(WriteModel(folder_.path(), config), MakeLinked(precision));
    before_ = emulator::TakenSoFar();
  }
  void Run(const std::vector<ModelInput>& inputs) {
    for (const InputResult& result : RunAll(*loaded_, inputs)) ASSERT_TRUE(result.status.ok()) << result.status;
    ExpectNothingTaken(before_);
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  emulator::Taken before_;
};

class FullWaveTest : public FullWaveOnceTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(FullWaveTest, WithReports) {
  Load(WaveConfig({{"max_position_embeddings", 64}}), GetParam());
  std::vector<ModelInput> inputs = Texts(*loaded_, 256, 64);
  for (ModelInput& input : inputs) input.wanted.expected = input.wanted.key_degrees = true;
  Run(inputs);
}

TEST_F(FullWaveOnceTest, WithBudgets) {
  Load(WaveConfig({{"max_position_embeddings", 64}}));
  std::vector<ModelInput> inputs = Texts(*loaded_, 300, 54);
  for (ModelInput& input : inputs) input.max_edges = 1000;
  Run(inputs);
}

TEST_P(FullWaveTest, OfTokens) {
  Load(WaveConfig(
           {{"task", "token-classification"}, {"pooling", nullptr}, {"num_labels", 37}, {"intermediate_size", 1088}}),
       GetParam());
  Run(Texts(*loaded_, 256, 64));
}

TEST_P(FullWaveTest, OfGatedRows) {
  Load({{"model_type", "llama"},
        {"architectures", {"LlamaForCausalLM"}},
        {"vocab_size", 50},
        {"hidden_size", 32},
        {"num_hidden_layers", 1},
        {"num_attention_heads", 4},
        {"num_key_value_heads", 2},
        {"intermediate_size", 1088},
        {"max_position_embeddings", 64}},
       GetParam());
  Run(Texts(*loaded_, 256, 64));
}

// As many samples of a prompt as a wave has room for, twice.
TEST_P(FullWaveTest, OfPrompts) {
  constexpr int32_t kLength = 512, kSamples = 32;
  Load(LanguageConfig(kLength), GetParam());
  const auto prompt = *loaded_->Prepare(RandomTokens(kLength - 3, 49, 1), TruncateMode::kRefuse);
  // The first layer's caches are shared.
  constexpr uint64_t kCacheBytes = 2 * (1 + kSamples) * kLength * 2 * 16 * sizeof(float);
  ASSERT_TRUE(ReserveForGenerations(*loaded_, {kCacheBytes, 2, kSamples}).ok());
  before_ = emulator::TakenSoFar();
  std::vector<std::unique_ptr<Generation>> running;
  for (int g = 0; g < 2; ++g) {
    GenerationOptions options;
    options.max_new_tokens = 3;
    options.samples = kSamples;
    running.push_back(*Generation::Create(*loaded_, prompt, options));
    while (running[g]->prompt_next()) ASSERT_TRUE(running[g]->Step().ok());
  }
  for (auto& generation : running) {
    while (!generation->done()) ASSERT_TRUE(generation->Step().ok());
  }
  ExpectNothingTaken(before_);
}

INSTANTIATE_TEST_SUITE_P(Precisions, FullWaveTest, ::testing::Values("fp32", "bf16"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace edgewise::testing
