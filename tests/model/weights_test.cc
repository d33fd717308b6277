// Weights of the kinds that have more than layers: features, biases, block scores, output layers.
#include "model/checkpoint/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "model/checkpoint/parse_config.h"
#include "model/checkpoint/weight_tables.h"
#include "tests/model/deferred_backend.h"
#include "tests/model/model_builder.h"
#include "tests/model/model_kinds.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;
using ::testing::Pointwise;

json LanguageConfig() {
  return json::parse(R"({
    "task": "causal-lm", "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 12, "max_position_embeddings": 10, "position_embedding": "relative",
    "attention": [{"kind": "dense"}, {"kind": "block", "block_size": 4, "pattern": "learned", "threshold": 0.5}]})");
}

json FeatureConfig() {
  return json::parse(R"({
    "task": "regression", "feature_size": 5, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 12, "max_position_embeddings": 10, "position_embedding": "none", "num_labels": 2,
    "pooling": {"kind": "mean", "divisor": "valid"}, "pairwise_bias": {"kind": "buckets", "num_buckets": 3},
    "attention": {"kind": "dense"}})");
}

class WeightsTest : public ::testing::Test {
 protected:
  WeightsTest() {
    auto backend = CreateBackend(BackendOptions{});
    if (!backend.ok()) std::abort();
    backend_ = *std::move(backend);
  }

  absl::StatusOr<std::unique_ptr<ModelWeights>> Load(const json& config,
                                                     const std::map<std::string, TestTensor>& tensors) {
    const std::string path = folder_.path() + "/model.safetensors";
    WriteFile(path, SafetensorsBytes(tensors));
    auto file = SafetensorsFile::Open(path);
    if (!file.ok()) return file.status();
    return LoadWeights(*ParseModelConfig(config.dump()), **file, *backend_);
  }

  std::vector<float> Host(const Buffer& buffer) {
    std::vector<float> values(buffer.size());
    EXPECT_TRUE(backend_->Download(buffer.data(), values).ok());
    return values;
  }

  // The product with the rows of the unit matrix [in, in]: the weights, transposed.
  std::vector<float> OfUnitRows(const LinearWeights& weights, int64_t in, int64_t out) {
    std::vector<float> unit(in * in, 0.0f);
    for (int64_t i = 0; i < in; ++i) unit[i * in + i] = 1.0f;
    Buffer x = *backend_->Allocate(in * in), y = *backend_->Allocate(in * out);
    EXPECT_TRUE(backend_->Upload(unit, x.data()).ok());
    EXPECT_TRUE(backend_->Linear(weights, x.AsMatrix(in, in), y.AsMatrix(in, out), false).ok());
    return Host(y);
  }

  TemporaryFolder folder_;
  std::unique_ptr<Backend> backend_;
};

TEST_F(WeightsTest, ALanguageModelHasScoresDistancesAndAnOutputLayer) {
  for (const bool tied : {true, false}) {
    json config = LanguageConfig();
    config["tie_word_embeddings"] = tied;
    const auto tensors = RandomTensors(config, 3);
    EXPECT_EQ(tensors.count("lm_head.weight"), tied ? 0u : 1u);
    EXPECT_EQ(tensors.count("classifier.output.weight"), 0u);
    const auto weights = Load(config, tensors);
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(Host((*weights)->distance_bias), tensors.at("embeddings.relative.weight").values);
    EXPECT_EQ((*weights)->distance_bias.size(), 2 * 19);
    EXPECT_EQ((*weights)->position.size(), 0);
    EXPECT_TRUE((*weights)->layer(0).block_scores.empty());
    EXPECT_EQ((*weights)->layer(1).block_scores, tensors.at("layers.1.attention.block_scores").values);
    EXPECT_EQ((*weights)->layer(1).block_scores.size(), 9u) << "ten positions in blocks of four";
    EXPECT_EQ((*weights)->classifier_output, nullptr);
    const std::vector<float> logits = OfUnitRows(*(*weights)->lm_head, 8, 20);
    const auto& expected = tensors.at(tied ? "embeddings.word.weight" : "lm_head.weight").values;
    for (int v = 0; v < 20; ++v) {
      for (int d = 0; d < 8; ++d) EXPECT_FLOAT_EQ(logits[d * 20 + v], expected[v * 8 + d]);
    }
  }
}

TEST_F(WeightsTest, RowsOfFeaturesGoThroughALinearLayer) {
  const json config = FeatureConfig();
  const auto tensors = RandomTensors(config, 3);
  EXPECT_EQ(tensors.count("embeddings.word.weight"), 0u);
  const auto weights = Load(config, tensors);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ((*weights)->word.size(), 0);
  EXPECT_EQ((*weights)->distance_bias.size(), 0);
  EXPECT_EQ((*weights)->lm_head, nullptr);
  const std::vector<float> rows = OfUnitRows(*(*weights)->features, 5, 8);
  const auto& weight = tensors.at("embeddings.features.weight").values;
  const auto& bias = tensors.at("embeddings.features.bias").values;
  for (int e = 0; e < 5; ++e) {
    for (int d = 0; d < 8; ++d) EXPECT_FLOAT_EQ(rows[e * 8 + d], weight[d * 5 + e] + bias[d]);
  }
  const auto& table = tensors.at("embeddings.pairwise.weight").values;
  ASSERT_EQ((*weights)->pairwise_table.size(), 512u);
  for (int head = 0; head < 2; ++head) {
    for (int bucket = 0; bucket < 256; ++bucket) {
      EXPECT_EQ((*weights)->pairwise_table[head * 256 + bucket], bucket < 3 ? table[head * 3 + bucket] : 0.0f);
    }
  }
}

TEST_F(WeightsTest, EveryTensorIsWantedAndNoOther) {
  for (const json& config : {LanguageConfig(), FeatureConfig()}) {
    const auto tensors = RandomTensors(config, 3);
    for (const auto& [name, tensor] : tensors) {
      auto changed = tensors;
      changed.erase(name);
      EXPECT_THAT(std::string(Load(config, changed).status().message()),
                  HasSubstr("tensor " + name + " " + ShowShape(tensor.shape) + " is missing"));
      changed = tensors;
      changed[name].shape.insert(changed[name].shape.begin(), 1);
      EXPECT_THAT(std::string(Load(config, changed).status().message()), HasSubstr("tensor " + name + " has shape"));
      changed = tensors;
      changed[name].values.back() = std::nanf("");
      EXPECT_THAT(std::string(Load(config, changed).status().message()), HasSubstr("weights must be finite"));
    }
    for (const char* name : {"lm_head.weight", "embeddings.position.weight", "layers.0.attention.block_scores"}) {
      auto more = tensors;
      more[name] = {{1}, {0.0f}};
      EXPECT_THAT(std::string(Load(config, more).status().message()), HasSubstr("is not part of this model"));
    }
  }
}

// Press, Smith and Lewis, ICLR 2022: a geometric sequence that begins at 2^(-8/n) with that ratio; other numbers of
// heads take every other slope of twice the power of two below.
TEST(AlibiTest, HasThePublishedSlopes) {
  const auto slopes = [](int64_t heads) {
    const std::vector<float> table = AlibiBias(heads, 3);
    EXPECT_EQ(table.size(), static_cast<size_t>(5 * heads));
    std::vector<float> found;
    for (int64_t head = 0; head < heads; ++head) {
      const float* row = table.data() + head * 5;
      EXPECT_THAT(std::vector<float>(row, row + 5), ElementsAre(2 * row[1], row[1], 0.0f, row[1], 2 * row[1]));
      found.push_back(-row[3]);
    }
    return found;
  };
  EXPECT_THAT(slopes(1), ElementsAre(1.0f / 256));
  EXPECT_THAT(slopes(8),
              Pointwise(FloatEq(), {0.5f, 0.25f, 0.125f, 1.0f / 16, 1.0f / 32, 1.0f / 64, 1.0f / 128, 1.0f / 256}));
  const float root = std::sqrt(0.5f);
  EXPECT_THAT(slopes(12), Pointwise(FloatEq(), {0.5f, 0.25f, 0.125f, 1.0f / 16, 1.0f / 32, 1.0f / 64, 1.0f / 128,
                                                1.0f / 256, root, root / 2, root / 4, root / 8}));
  EXPECT_THAT(slopes(3), Pointwise(FloatEq(), {1.0f / 16, 1.0f / 256, 0.25f}));
}

class AligningBackend : public DeferredBackend {
 public:
  using DeferredBackend::DeferredBackend;
  int32_t HeadAlignment() const override { return 8; }
};

TEST(HeadAlignmentTest, ZerosBehindHeadsChangeNoEdge) {
  const ModelKind kinds[] = {{"sbm", {{"num_attention_heads", 3}, {"head_dim", 5}}},
                             {"alibi", {{"position_embedding", "alibi"}, {"head_dim", 12}}}};
  for (const ModelKind& kind : kinds) {
    const TemporaryFolder folder;
    WriteModel(folder.path(), ConfigOf(kind), 5);
    const LoadedModel plain = LoadModel(folder.path(), MakeBackend());
    const LoadedModel aligned = LoadModel(folder.path(), std::make_unique<AligningBackend>(MakeBackend()));
    EXPECT_EQ(aligned->config().head_dim, kind.name == "sbm" ? 8 : 16);
    std::mt19937_64 random(3);
    ModelInput input = RandomInput(kind, *plain, random);
    input.wanted.graph = true;
    const InputResult want = RunOne(*plain, input), got = RunOne(*aligned, input);
    EXPECT_GT(want.edges, 0.0);
    for (size_t layer = 0; layer < want.graph->layers.size(); ++layer) {
      for (size_t head = 0; head < want.graph->layers[layer].size(); ++head) {
        const HeadEdges &a = got.graph->layers[layer][head], &b = want.graph->layers[layer][head];
        EXPECT_EQ(a.row_offsets, b.row_offsets);
        EXPECT_EQ(a.keys, b.keys);
      }
    }
    EXPECT_THAT(got.logits, Pointwise(::testing::FloatNear(1e-4f), want.logits));
  }
}

// Halves of heads that rotate get zeros each, and the mean of a head's squares leaves them out.
TEST(HeadAlignmentTest, ZerosInRotatedAndNormedHeadsChangeNothing) {
  for (const char* name : {"qwen3", "llama"}) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    const bool qwen = name == std::string("qwen3");
    nlohmann::json config = {{"model_type", name},
                             {"architectures", {qwen ? "Qwen3ForCausalLM" : "LlamaForCausalLM"}},
                             {"vocab_size", 50},
                             {"hidden_size", 32},
                             {"num_hidden_layers", 2},
                             {"num_attention_heads", 4},
                             {"num_key_value_heads", 2},
                             {"head_dim", 12},
                             {"intermediate_size", 48},
                             {"rms_norm_eps", 0.05},
                             {"max_position_embeddings", 64}};
    WriteModel(folder.path(), config, 5);
    const LoadedModel plain = LoadModel(folder.path(), MakeBackend());
    const LoadedModel aligned = LoadModel(folder.path(), std::make_unique<AligningBackend>(MakeBackend()));
    EXPECT_EQ(plain->config().head_dim, 12);
    EXPECT_EQ(aligned->config().head_dim, 16);
    const std::vector<int32_t> ids = RandomTokens(40, 49, 3);
    const InputResult want = RunOne(*plain, MakeInput(*plain, ids)), got = RunOne(*aligned, MakeInput(*aligned, ids));
    EXPECT_THAT(got.sample_results[0].logits, Pointwise(::testing::FloatNear(1e-4f), want.sample_results[0].logits));
  }
}

}  // namespace
}  // namespace edgewise::testing
