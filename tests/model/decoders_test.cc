// Decoders of the Llama shape against what transformers computes with them in float64
// (tests/reference/make_decoders.py), and folders of them that are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "model/forward/generation.h"
#include "model/load/load.h"
#include "tests/model/model_builder.h"
#include "tests/model/near.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

std::string Folder() { return tests::TestdataFolder() + "_decoders"; }

std::vector<std::string> Cases() {
  std::vector<std::string> cases;
  for (const auto& entry : fs::directory_iterator(Folder())) cases.push_back(entry.path().filename().string());
  std::sort(cases.begin(), cases.end());
  return cases;
}

json ReadJson(const fs::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

class DecodersTest : public ::testing::TestWithParam<std::string> {
 protected:
  const LoadedModel model_ = LoadModel(Folder() + "/" + GetParam() + "/1");
  const json golden_ = ReadJson(Folder() + "/" + GetParam() + "/golden.json");
};
INSTANTIATE_TEST_SUITE_P(Folders, DecodersTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param; });

TEST_P(DecodersTest, LogitsAndLikelihoodsAreThoseOfTransformers) {
  Comparison comparison;
  for (const json& entry : golden_["inputs"]) {
    const auto ids = entry["token_ids"].get<Ids>();
    SCOPED_TRACE(ids.size());
    const InputResult result = RunOne(*model_, MakeInput(*model_, ids));
    ASSERT_TRUE(result.status.ok()) << result.status;
    comparison.Add(result.logits, entry["logits"], "logits");
    std::vector<float> likelihoods;
    for (const double p : result.sample_results[0].token_probabilities) {
      likelihoods.push_back(static_cast<float>(std::log(p)));
    }
    comparison.Add(likelihoods, entry["token_log_likelihoods"], "log-likelihoods");
  }
}

TEST_P(DecodersTest, GreedyTextsAreThoseOfTransformers) {
  for (const json& entry : golden_["generations"]) {
    const auto prompt = entry["token_ids"].get<Ids>(), want = entry["new_token_ids"].get<Ids>();
    SCOPED_TRACE(prompt.size());
    GenerationOptions options;
    options.max_new_tokens = entry["max_new_tokens"].get<uint32_t>();
    options.overflow = Overflow::kStop;
    auto generation = Generation::Create(*model_, *model_->Prepare(prompt, TruncateMode::kRefuse), options);
    ASSERT_TRUE(generation.ok()) << generation.status();
    Ids got;
    while (!(*generation)->done()) {
      ASSERT_TRUE((*generation)->Step().ok());
      while (const auto token = (*generation)->TakeToken()) got.push_back(token->token_id);
    }
    ASSERT_EQ(got.size(), want.size());
    const size_t sure = entry["sure"].get<size_t>();
    EXPECT_EQ(Ids(got.begin(), got.begin() + sure), Ids(want.begin(), want.begin() + sure));
  }
}

// The edges are those of the window; pairs are all that a causal model may attend to.
TEST(DecoderWindowsTest, AttendToTheWindowAlone) {
  const LoadedModel model = LoadModel(Folder() + "/mistral_window/1");
  ModelInput input = MakeInput(*model, RandomTokens(30, 40, 3));
  const uint64_t heads = 4 * 2, pairs = heads * 30 * 31 / 2, edges = heads * (30 * 7 - 6 * 7 / 2);
  EXPECT_EQ(model->Pairs(input), pairs);
  EXPECT_EQ(model->LeastEdges(input), edges);
  const InputResult own = RunOne(*model, input);
  EXPECT_EQ(own.sample_results[0].edges, edges);
  input.dense = true;
  const InputResult all = RunOne(*model, input);
  EXPECT_EQ(all.sample_results[0].edges, pairs);
  EXPECT_FALSE(SameBytes(own, all));
}

// The layers of qwen2_windows: the first attends to all, the second in windows of 5.
TEST(DecoderWindowsTest, BelongToLayers) {
  const LoadedModel model = LoadModel(Folder() + "/qwen2_windows/1");
  EXPECT_EQ(model->config().attention[0].reach, AllPairs::kFar);
  EXPECT_EQ(model->config().attention[1].reach, 4);
  const LoadedModel types = LoadModel(Folder() + "/qwen3/1");
  EXPECT_EQ(types->config().attention[0].reach, 8);
  EXPECT_EQ(types->config().attention[1].reach, AllPairs::kFar);
}

// rope_scaling with rope_theta, and rope_parameters, are two spellings of one thing.
TEST(DecoderSpellingsTest, GiveTheSameBytes) {
  const TemporaryFolder folder;
  fs::copy(Folder() + "/llama_linear/1", folder.path(), fs::copy_options::recursive);
  json config = ReadJson(folder.path() + "/config.json");
  ASSERT_TRUE(config.contains("rope_scaling"));
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.5}, {"rope_theta", 500.0}};
  WriteFile(folder.path() + "/config.json", config.dump());
  const LoadedModel one = LoadModel(Folder() + "/llama_linear/1"), other = LoadModel(folder.path());
  const Ids ids = RandomTokens(40, 40, 1);
  EXPECT_TRUE(SameBytes(RunOne(*one, MakeInput(*one, ids)), RunOne(*other, MakeInput(*other, ids))));
}

struct Refused {
  std::string folder;
  json patch;  // of config.json, as a merge patch
  std::string message;
};

std::vector<Refused> RefusedFolders() {
  const auto rope = [](const json& fields) { return json{{"rope_parameters", fields}}; };
  const std::string llama = "llama", old = "llama_linear", qwen = "qwen3", window = "mistral_window";
  return {
      {llama, rope({{"rope_type", "dynamic"}, {"factor", 2.0}}),
       "rope_parameters.rope_type is \"dynamic\"; served: default, linear, llama3, yarn; with this one a longer text"},
      {llama, rope({{"rope_type", "longrope"}}), "rope_parameters.rope_type is \"longrope\"; served: default"},
      {old, {{"rope_scaling", {{"type", "su"}}}}, "rope_scaling.type is \"su\"; served: default, linear, llama3, yarn"},
      {old, rope({{"rope_type", "default"}}), "rope_parameters and rope_scaling are both given"},
      {llama, rope({{"rope_type", "linear"}}), "rope_parameters.factor is missing"},
      {llama, rope({{"rope_type", "linear"}, {"factor", 0.5}}), "rope_parameters.factor is 0.5"},
      {llama, rope({{"rope_type", "yarn"}}), "rope_parameters.factor is missing"},
      {"llama_llama3", rope({{"high_freq_factor", 1.0}}), "rope_parameters.high_freq_factor is 1; more than"},
      {"llama_llama3", rope({{"low_freq_factor", nullptr}}), "rope_parameters.low_freq_factor is missing"},
      {llama, rope({{"rope_theta", 0.0}}), "rope_parameters.rope_theta is 0"},
      {llama, rope({{"mrope_section", {2, 1, 1}}}), "unknown field rope_parameters.\"mrope_section\""},
      {llama, {{"rope_parameters", "x"}}, "rope_parameters is \"x\"; an object is expected"},
      {llama, {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor is not 1"},
      {llama, {{"head_dim", 7}}, "head_dim is 7; an even number is expected"},
      {llama, {{"num_key_value_heads", 3}}, "num_key_value_heads is 3, num_attention_heads is 4: it does not divide"},
      {llama, {{"num_key_value_heads", 0}}, "num_key_value_heads is 0"},
      {llama, {{"num_key_value_heads", nullptr}}, "layers.0.self_attn.k_proj.weight has shape [16, 32]"},
      {llama, {{"hidden_act", "swiglu"}}, "hidden_act is \"swiglu\"; allowed: "},
      {llama, {{"attention_bias", true}}, "model.layers.0.self_attn.q_proj.bias [32] is missing"},
      {llama,
       {{"architectures", {"LlamaForSequenceClassification"}}},
       "architectures is [\"LlamaForSequenceClassification\"]; served: one of LlamaModel, LlamaForCausalLM"},
      {llama, {{"model_type", "gemma2"}}, "model_type is \"gemma2\"; served: "},
      {llama, {{"model_type", "qwen3"}, {"architectures", {"Qwen3ForCausalLM"}}}, "self_attn.q_norm.weight"},
      {llama, {{"intermediate_size", nullptr}}, "intermediate_size is missing"},
      {llama, {{"quantization_config", {{"bits", 4}}}}, "quantization_config is given"},
      {window, {{"sliding_window", 0}}, "sliding_window is 0"},
      {window, {{"layer_types", {"full_attention", "sliding_attention"}}}, "layer_types is given; Mistral models"},
      {qwen, {{"layer_types", {"full_attention"}}}, "layer_types is [\"full_attention\"]; a list of 2 strings"},
      {qwen,
       {{"layer_types", {"full_attention", "chunked_attention"}}},
       "layer_types[1] is \"chunked_attention\"; served: full_attention, sliding_attention"},
      {qwen, {{"use_sliding_window", false}}, "layer_types[0] is \"sliding_attention\"; use_sliding_window is false"},
      {qwen, {{"tie_word_embeddings", true}}, "differ; they are one weight (tied)"},
  };
}

TEST(DecodersRefusedTest, WithAMessageThatNamesTheField) {
  const std::unique_ptr<Backend> backend = MakeBackend();
  for (const Refused& refused : RefusedFolders()) {
    SCOPED_TRACE(refused.folder + ": " + refused.patch.dump());
    const TemporaryFolder folder;
    fs::copy(Folder() + "/" + refused.folder + "/1", folder.path(), fs::copy_options::recursive);
    json config = ReadJson(folder.path() + "/config.json");
    config.merge_patch(refused.patch);
    WriteFile(folder.path() + "/config.json", config.dump());
    const auto model = edgewise::LoadModel(folder.path(), *backend);
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << model.status();
    EXPECT_NE(std::string(model.status().message()).find(refused.message), std::string::npos) << model.status();
  }
}

}  // namespace
}  // namespace edgewise::testing
