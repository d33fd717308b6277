// What a model takes from the driver when it is loaded is all that its requests need: the emulated driver counts what
// it is asked for. Not covered by a reserve, because the request decides how much: graphs that are given or asked for,
// pairwise biases and key lists beyond a chunk of staging memory.
#include "model/reserve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/forward/generation.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/linked_backend.h"
#include "tests/model/model_kinds.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;

struct Case {
  ModelKind kind;
  std::string precision;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.kind.name << "_" << c.precision; }

std::vector<Case> CasesOf(const std::vector<ModelKind>& kinds) {
  std::vector<Case> cases;
  for (const ModelKind& kind : kinds) {
    cases.push_back({kind, "fp32"});
    if (cases.size() % 4 == 0) cases.push_back({kind, "bf16"});
  }
  return cases;
}

void ExpectNothingTaken(const emulator::Taken& before) {
  const emulator::Taken now = emulator::TakenSoFar();
  EXPECT_EQ(now.device_memory - before.device_memory, 0u) << "calls of cudaMalloc";
  EXPECT_EQ(now.pinned_memory - before.pinned_memory, 0u) << "calls of cudaMallocHost";
  EXPECT_EQ(now.events - before.events, 0u);
  EXPECT_EQ(now.streams - before.streams, 0u);
}

class ReserveTest : public ::testing::TestWithParam<Case> {
 protected:
  ReserveTest()
      : loaded_(LoadModel(WriteModel(folder_.path(), ConfigOf(GetParam().kind), 3), MakeLinked(GetParam().precision))) {
  }

  ModelInput Input() { return RandomInput(GetParam().kind, *loaded_, random_); }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  std::mt19937_64 random_{1};
};

TEST_P(ReserveTest, PassesTakeNothing) {
  const emulator::Taken before = emulator::TakenSoFar();
  std::vector<ModelInput> mix;
  for (int round = 0; round < 2; ++round) {
    mix.push_back(Input());
    mix.push_back(Input());
    mix.back().samples = 5;
    mix.push_back(Input());
    mix.back().samples = 12;
    mix.back().tolerance = 0.05;
    mix.push_back(Input());
    mix.back().dense = true;
    mix.push_back(Input());
    mix.back().wanted.key_degrees = mix.back().wanted.expected = true;
    mix.push_back(Input());
    const uint64_t least = std::max<uint64_t>(1, loaded_->LeastEdges(mix.back()));
    mix.back().max_edges = least + (loaded_->Pairs(mix.back()) - least) / 3;
    mix.back().samples = 2;
    RunOne(*loaded_, mix.back());
    {
      SCOPED_TRACE("one");
      ExpectNothingTaken(before);
    }
  }
  RunAll(*loaded_, mix);
  {
    SCOPED_TRACE("all");
    ExpectNothingTaken(before);
  }
  Pass::Options small;
  small.max_wave_tokens = 100;  // many groups and waves
  RunAll(*loaded_, mix, small);
  ExpectNothingTaken(before);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ReserveTest, ::testing::ValuesIn(CasesOf(ModelKinds())),
                         ::testing::PrintToStringParamName());

// A full wave of texts, given as how many and how long.
std::vector<ModelInput> Texts(const Model& model, int count, int32_t tokens) {
  std::vector<ModelInput> inputs;
  const bool pair = model.config().task == ModelTask::kPairClassification;
  for (int i = 0; i < count; ++i) {
    const std::vector<int32_t> first = RandomTokens(tokens, 49, i);
    inputs.push_back(MakeInput(model, first, pair ? first : std::vector<int32_t>()));
    inputs.back().seed = i;
  }
  return inputs;
}

// Samples share a dense layer, and each draws in two more, so that both have all kinds of rows.
const json kThreeLayers = {{"num_hidden_layers", 3},
                           {"attention",
                            {{{"kind", "dense"}},
                             {{"kind", "sbm"}, {"num_clusters", 16}, {"law", "bernoulli"}},
                             {{"kind", "sbm"}, {"num_clusters", 16}, {"law", "bernoulli"}}}}};

// One narrow layer.
json WaveConfig(const json& changes) {
  json config = SmallConfig();
  config.merge_patch({{"num_hidden_layers", 1}, {"num_attention_heads", 1}, {"head_dim", 16}, {"hidden_size", 16}});
  config.merge_patch(changes);
  return config;
}

json LanguageConfig(int32_t length) {
  return WaveConfig({{"task", "causal-lm"},
                     {"pooling", nullptr},
                     {"num_labels", nullptr},
                     {"classifier_hidden_size", nullptr},
                     {"pad_token_id", -1},
                     {"vocab_size", 2001},
                     {"num_hidden_layers", 2},
                     {"max_position_embeddings", length},
                     {"attention",
                      {{"kind", "ssa"},
                       {"bias", "local"},
                       {"windows", 6},
                       {"sigma", {0.2, 0.3}},
                       {"num_clusters", nullptr},
                       {"law", nullptr},
                       {"exploration", nullptr}}}});
}

class FullWaveOnceTest : public ::testing::Test {
 protected:
  void Load(const json& config, const std::string& precision = "fp32") {
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

TEST_F(FullWaveOnceTest, OfWavesThatGrow) {
  Load(WaveConfig(kThreeLayers));
  std::vector<ModelInput> inputs = Texts(*loaded_, 273, 60);
  for (ModelInput& input : Texts(*loaded_, 256, 64)) inputs.push_back(std::move(input));  // four rows more
  for (ModelInput& input : Texts(*loaded_, 32, 64)) {
    input.samples = 16;  // waves of 4, 4 and 8 samples
    input.tolerance = 1e-9;
    inputs.push_back(std::move(input));
  }
  Run(inputs);
}

TEST_F(FullWaveOnceTest, OfVeryShortTexts) {
  Load(WaveConfig({{"max_position_embeddings", 64}}));
  Run(Texts(*loaded_, 16384, 1));
}

TEST_F(FullWaveOnceTest, OfPairs) {
  Load(WaveConfig({{"task", "pair-classification"}, {"classifier_hidden_size", 128}}));
  Run(Texts(*loaded_, 8192, 1));
}

TEST_P(FullWaveTest, OfTokens) {
  Load(WaveConfig(
           {{"task", "token-classification"}, {"pooling", nullptr}, {"num_labels", 37}, {"intermediate_size", 256}}),
       GetParam());
  Run(Texts(*loaded_, 256, 64));
}

TEST_F(FullWaveOnceTest, OfATextThatIsScored) {
  Load(LanguageConfig(64));
  ModelInput input;
  input.sequences = *loaded_->PrepareWindows(RandomTokens(9000, 49, 1), TruncateMode::kRefuse, 32);
  input.samples = 2;
  Run({input});
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

// Generations of any length and number of samples come and go within the limit.
TEST_F(FullWaveOnceTest, OfCachesOfUnlikeSizes) {
  constexpr int32_t kLength = 512;
  Load(LanguageConfig(kLength));
  constexpr uint64_t kLimit = 4 << 20;
  ASSERT_TRUE(ReserveForGenerations(*loaded_, {kLimit, 16, 32}).ok());
  before_ = emulator::TakenSoFar();
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
  ExpectNothingTaken(before_);
}

INSTANTIATE_TEST_SUITE_P(Precisions, FullWaveTest, ::testing::Values("fp32", "bf16"),
                         [](const auto& info) { return info.param; });

class ReserveGenerationTest : public ReserveTest {};

TEST_P(ReserveGenerationTest, GenerationsTakeNothing) {
  constexpr int kGenerations = 4;
  ASSERT_TRUE(ReserveForGenerations(*loaded_, {uint64_t{2} << 30, kGenerations, 6}).ok());
  const emulator::Taken before = emulator::TakenSoFar();
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
    // A prompt to its end, then a token of each: no two hold rows.
    for (auto& generation : running) {
      do {
        ASSERT_TRUE(generation->Step().ok());
      } while (generation->holds_rows());
    }
    std::erase_if(running, [](const auto& generation) { return generation->done(); });
    if (started == 5) RunOne(*loaded_, Input());
  }
  ExpectNothingTaken(before);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ReserveGenerationTest, ::testing::ValuesIn(CasesOf(LanguageModelKinds())),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace edgewise::testing
