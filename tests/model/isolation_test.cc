// Random batches of inputs whose answers all differ: each input has the answer that it has alone, to the last bit,
// whatever its mates are, how the batch is cut, who leaves, and who fails. EDGEWISE_BATCHES says how many (2000).
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <random>

#include "tests/model/model_kinds.h"

namespace edgewise::testing {
namespace {

constexpr int kInputs = 24;  // of a kind
constexpr const char* kKinds[] = {"bernoulli", "poisson_multi", "pair",         "ssa_tokens",  "ssa_none_keep",
                                  "block_cls", "dense",         "features_sbm", "lm_ssa_local"};

// Not finite where there is such a token at this position. The model's self-test does not see it.
constexpr int32_t kPoison = 49;
constexpr size_t kPoisonPosition = 10;

struct Marked {
  LoadedModel loaded;
  std::vector<ModelInput> inputs;
  std::vector<InputResult> alone;
};

Marked MakeMarked(const ModelKind& kind, std::mt19937_64& random) {
  const nlohmann::json config = ConfigOf(kind);
  auto tensors = RandomTensors(config, 1);
  const bool poisoned = kind.name == std::string("bernoulli");
  if (poisoned) {
    tensors["embeddings.word.weight"].values[kPoison * 32] = 3e38f;
    tensors["embeddings.position.weight"].values[kPoisonPosition * 32] = 3e38f;
  }
  const TemporaryFolder folder;
  WriteFile(folder.path() + "/config.json", config.dump());
  WriteFile(folder.path() + "/model.safetensors", SafetensorsBytes(tensors));
  Marked marked;
  marked.loaded = LoadModel(folder.path());
  const Model& model = *marked.loaded.model;
  for (int i = 0; i < kInputs; ++i) {
    ModelInput input = RandomInput(kind, model, random);
    input.samples = std::vector<uint32_t>{1, 1, 2, 3, 8}[random() % 5];
    input.first_sample = random() % 4 == 0 ? 5 : 0;
    input.dense = random() % 6 == 0;
    input.wanted.key_degrees = random() % 4 == 0;
    input.wanted.expected = random() % 4 == 0;
    input.wanted.graph = input.samples == 1 && random() % 3 == 0;
    if (input.samples == 8) input.tolerance = 0.02;
    const uint64_t pairs = model.Pairs(input);
    if (random() % 3 == 0) input.max_edges = std::max({uint64_t{1}, pairs / 5, model.LeastEdges(input)});
    marked.inputs.push_back(std::move(input));
  }
  if (poisoned) {
    std::vector<int32_t> tokens(kPoisonPosition + 2, 7);
    tokens[kPoisonPosition] = kPoison;
    marked.inputs.push_back(MakeInput(model, tokens));
  }
  for (const ModelInput& input : marked.inputs) marked.alone.push_back(RunOne(model, input));
  return marked;
}

TEST(IsolationTest, EveryAnswerInEveryBatchIsTheOneAlone) {
  const char* asked = std::getenv("EDGEWISE_BATCHES");
  const int64_t batches = asked == nullptr ? 2000 : std::atoll(asked);
  std::mt19937_64 random(1);
  std::deque<Marked> models;
  for (const ModelKind& kind : ModelKinds()) {
    if (std::find(std::begin(kKinds), std::end(kKinds), kind.name) == std::end(kKinds)) continue;
    models.push_back(MakeMarked(kind, random));
    const Marked& marked = models.back();
    for (size_t a = 0; a < marked.alone.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        ASSERT_FALSE(SameBytes(marked.alone[a], marked.alone[b]))
            << kind << ": " << a << " and " << b << " are not marked";
      }
    }
  }
  ASSERT_EQ(models.size(), std::size(kKinds));
  int64_t answers = 0, gone = 0, failed = 0;
  for (int64_t batch = 0; batch < batches; ++batch) {
    const Marked& marked = models[random() % models.size()];
    std::vector<size_t> chosen(1 + random() % 10);
    std::vector<InputRun> inputs;
    for (size_t& input : chosen) inputs.emplace_back(marked.inputs[input = random() % marked.inputs.size()]);
    const Pass::Options options{.max_wave_tokens = std::vector<int64_t>{1, 20, 100, 4096}[random() % 4]};
    Pass pass(*marked.loaded.model, inputs, options);
    std::vector<bool> left(chosen.size());
    while (!pass.done()) {
      if (random() % 8 == 0) {
        const size_t leaves = random() % chosen.size();
        left[leaves] = left[leaves] || !pass.done(static_cast<int64_t>(leaves));
        pass.Cancel(static_cast<int64_t>(leaves), absl::CancelledError("left"));
      }
      ASSERT_TRUE(pass.Step().ok());
    }
    for (size_t i = 0; i < chosen.size(); ++i) {
      const InputResult result = pass.TakeResult(static_cast<int64_t>(i));
      gone += left[i];
      failed += !left[i] && !result.status.ok();
      answers += !left[i];
      if (left[i]) {
        ASSERT_EQ(result.status, absl::CancelledError("left")) << "batch " << batch << ", input " << i;
      } else {
        ASSERT_TRUE(SameBytes(result, marked.alone[chosen[i]])) << "batch " << batch << ", input " << i;
      }
    }
  }
  std::printf("%lld answers, of which %lld not finite; %lld inputs left\n", static_cast<long long>(answers),
              static_cast<long long>(failed), static_cast<long long>(gone));
  EXPECT_GT(gone, batches / 10);
  EXPECT_GT(failed, batches / 200);
}

}  // namespace
}  // namespace edgewise::testing
