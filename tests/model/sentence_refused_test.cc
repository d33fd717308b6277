// Folders of sentence-transformers with settings that would change the answer and are not served: each is refused by
// name. What makes no difference loads.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "model/load/load.h"
#include "tests/model/changed_folder.h"
#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// Changes a file by a merge patch; null takes a field away. A file that is not there begins empty.
Change Patch(const std::string& name, const json& patch) {
  return [=](const fs::path& folder) {
    std::ifstream file(folder / name);
    json value = file ? json::parse(file) : json::object();
    value.merge_patch(patch);
    fs::create_directories((folder / name).parent_path());
    WriteFile(folder / name, value.dump());
  };
}

// Changes modules.json. `with`: modules by kind and path, behind the Transformer.
Change Modules(const std::vector<std::pair<std::string, std::string>>& with) {
  return [=](const fs::path& folder) {
    json modules = json::array({{{"type", "sentence_transformers.models.Transformer"}, {"path", ""}}});
    for (const auto& [kind, path] : with) {
      modules.push_back({{"type", "sentence_transformers.models." + kind}, {"path", path}});
    }
    WriteFile(folder / "modules.json", modules.dump());
  };
}

std::vector<ChangedFolder> RefusedFolders() {
  const std::string mean = "mean", dense = "dense", scores = "cross_encoder", labels = "cross_encoder_labels",
                    old = "old_mean", decoder = "last_token", old_scores = "old_cross_encoder";
  const std::string bert = "sentence_bert_config.json", settings = "config_sentence_transformers.json",
                    pooling = "1_Pooling/config.json", layer = "2_Dense/config.json";
  const auto text = [](const json& patch) { return json{{"modality_config", {{"text", patch}}}}; };
  return {
      // sentence_bert_config.json.
      {mean, Patch(bert, {{"transformer_task", "fill-mask"}}),
       "sentence_bert_config.json: transformer_task is \"fill-mask\"; allowed: feature-extraction"},
      {mean, Patch(bert, {{"module_output_name", "sentence_embedding"}}), "allowed: token_embeddings"},
      {mean, Patch(bert, text({{"method", "get_text_features"}})), "modality_config.text.method is"},
      {mean, Patch(bert, text({{"method_output_name", "pooler_output"}})),
       "modality_config.text.method_output_name is \"pooler_output\"; served: \"last_hidden_state\""},
      {mean, Patch(bert, text({{"method_output_name", {"last_hidden_state"}}})), ""},
      {mean, Patch(bert, {{"modality_config", {{"message", {{"method", "forward"}}}}}}),
       "modality_config.message is given: texts would be put into the tokenizer's chat template"},
      {mean, Patch(bert, {{"modality_config", {{"image", {{"method", "forward"}}}}}}), ""},
      {mean, Patch(bert, text(nullptr)), "modality_config.text is missing"},
      {mean, Patch(bert, {{"processing_kwargs", {{"text", {{"max_length", 7}}}}}}),
       "processing_kwargs is {\"text\":{\"max_length\":7}}; it may change the tokens of a text"},
      {mean, Patch(bert, {{"processing_kwargs", json::object()}, {"unpad_inputs", true}}), ""},
      {mean, Patch(bert, {{"query_length", 8}}), "query_length is 8"},
      {mean, Patch(bert, {{"query_expansion", {{"strategy", "fixed"}}}}), "query_expansion is"},
      {mean, Patch(bert, {{"max_seq_length", 0}}), "max_seq_length is 0; allowed: an integer from 1"},
      {mean, Patch(bert, {{"max_seq_len", 8}}), "unknown field \"max_seq_len\"; did you mean max_seq_length?"},
      {mean, Patch(bert, {{"model_args", {{"trust_remote_code", true}, {"torch_dtype", "float16"}}}}), ""},
      {mean, Patch(bert, {{"model_kwargs", {{"rotary_scaling_factor", 2}}}}),
       "model_kwargs.rotary_scaling_factor is 2; it may change the answer, and is not served"},
      {mean, Patch(bert, {{"config_args", {{"hidden_act", "relu"}}}}), "config_args.hidden_act is \"relu\""},
      {mean, Patch(bert, {{"tokenizer_args", {{"model_max_length", 9}, {"use_fast", true}}}}), ""},
      {mean, Patch(bert, {{"processor_kwargs", {{"do_lower_case", false}}}}),
       "processor_kwargs.do_lower_case is false"},
      {mean, Patch(bert, {{"tokenizer_name_or_path", "bert"}}), "tokenizer_name_or_path is \"bert\""},
      {mean, Patch("tokenizer_config.json", {{"model_max_length", 0}}),
       "tokenizer_config.json: model_max_length is 0; a number of tokens is expected, 1 or more"},
      {mean, Patch("tokenizer_config.json", {{"model_max_length", 1e30}}), ""},
      // config_sentence_transformers.json.
      {mean, Patch(settings, {{"model_type", "SparseEncoder"}}),
       "config_sentence_transformers.json: model_type is \"SparseEncoder\"; allowed: SentenceTransformer, "
       "CrossEncoder"},
      {mean, Patch(settings, {{"model_type", "CrossEncoder"}}),
       "modules.json: has 2 modules; served of a CrossEncoder: the Transformer alone"},
      {mean, Patch(settings, {{"default_prompt_name", "title"}}),
       "default_prompt_name is \"title\"; a name of prompts is expected: document, query"},
      {mean, Patch(settings, {{"prompts", {{"query", 7}}}}), "prompts.query is 7; a text is expected"},
      {mean, Patch(settings, {{"truncate_dim", 0}}), "truncate_dim is 0; allowed: an integer from 1"},
      {mean, Patch(settings, {{"truncate_dim", 4000}, {"requirements", {"torch"}}}), ""},
      // Modules.
      {mean, Modules({}),
       "modules.json: has no Pooling; served: a Transformer, then Pooling; or the Transformer alone"},
      {mean, Modules({{"Pooling", "1_Pooling"}, {"Dropout", "2_Dropout"}}), ""},
      {mean, Modules({{"Pooling", "1_Pooling"}, {"LayerNorm", "2_LayerNorm"}}),
       "module 2 has the type \"sentence_transformers.models.LayerNorm\"; served: a Transformer"},
      {mean, Modules({{"Pooling", "1_Pooling"}, {"Pooling", "1_Pooling"}}), "module 2 is Pooling behind Pooling"},
      {mean, Modules({{"Pooling", "1_Pooling"}, {"Normalize", "2_N"}, {"Dense", "3_D"}}),
       "module 3 is Dense behind Normalize"},
      {mean, Modules({{"Pooling", "../1_Pooling"}}), "the path of Pooling is \"../1_Pooling\""},
      {mean, Modules({{"Pooling", "none"}}), "none/config.json: no such file"},
      {mean, Patch(pooling, {{"pooling_mode", "max"}}),
       "1_Pooling/config.json: pooling by max is not served; served: mean, cls or lasttoken, one of them"},
      {mean, Patch(pooling, {{"pooling_mode", {"mean", "cls"}}}), "pooling by mean and cls is not served"},
      {mean, Patch(pooling, {{"pooling_mode", {"cls"}}}), ""},
      {mean, Patch(pooling, {{"pooling_mode", 7}}), "pooling_mode is 7; allowed: mean, cls, lasttoken"},
      {mean, Patch(pooling, {{"pooling_mode", nullptr}}), ""},  // the mean
      {mean, Patch(pooling, {{"pooling", "cls"}}), "unknown field \"pooling\""},
      {old, Patch(pooling, {{"pooling_mode_max_tokens", true}}), "pooling by max_tokens and mean_tokens is not served"},
      {old, Patch(pooling, {{"pooling_mode_mean_tokens", false}}), ""},                           // the mean
      {mean, Patch("2_Normalize/config.json", {{"module_input_name", "token_embeddings"}}), ""},  // no module
      {dense, Patch("4_Normalize/config.json", {{"module_input_name", "token_embeddings"}}),
       "4_Normalize/config.json: module_input_name is \"token_embeddings\"; allowed: sentence_embedding"},
      {dense, Patch(layer, {{"activation_function", "torch.nn.modules.activation.Mish"}}),
       "2_Dense/config.json: activation_function is \"torch.nn.modules.activation.Mish\"; served: Tanh, Identity"},
      {dense, Patch(layer, {{"activation_function", "my.Tanh"}}), "activation_function is \"my.Tanh\""},
      {dense, Patch(layer, {{"use_residual", true}}), "use_residual is true; served is false"},
      {dense, Patch(layer, {{"in_features", 15}}), "2_Dense/config.json: in_features is 15; the pooled rows have 16"},
      {dense, Patch("3_Dense/config.json", {{"in_features", 15}}),
       "3_Dense/config.json: in_features is 15; those of the layer before have 24 numbers"},
      {dense, Patch(layer, {{"bias", false}}), "2_Dense/model.safetensors: tensor linear.bias is not part of Dense"},
      {dense, Patch("3_Dense/config.json", {{"bias", true}}),
       "3_Dense/model.safetensors: tensor linear.bias [6] is missing"},
      {dense, Patch("3_Dense/config.json", {{"out_features", 5}}),
       "3_Dense/model.safetensors: tensor linear.weight has shape [6, 24]"},
      {dense, [](const fs::path& folder) { fs::remove(folder / "2_Dense/model.safetensors"); },
       "2_Dense/model.safetensors: no such file"},
      {dense,
       [](const fs::path& folder) {
         fs::rename(folder / "2_Dense/model.safetensors", folder / "2_Dense/pytorch_model.bin");
       },
       "2_Dense/model.safetensors: no such file, but pytorch_model.bin, which is pickled and not read"},
      // Cross-encoders.
      {scores, Patch(settings, {{"activation_fn", "torch.nn.modules.activation.Tanh"}}),
       "activation_fn is \"torch.nn.modules.activation.Tanh\"; served: Identity and Sigmoid of torch.nn with 1 label"},
      {labels, Patch(settings, {{"activation_fn", "torch.nn.modules.activation.ReLU"}}), "with 3 labels"},
      {labels, Patch(settings, {{"activation_fn", "torch.nn.modules.activation.Softmax"}}), ""},
      {scores, Patch(settings, {{"model_type", "SentenceTransformer"}}), "modules.json: has no Pooling"},
      {scores, Patch("config.json", {{"architectures", {"BertModel"}}}),
       "architectures is [\"BertModel\"]; served of a CrossEncoder: BertForSequenceClassification"},
      {old_scores, Patch("config.json", {{"sentence_transformers", {{"activation_fn", "x.Y"}}}}),
       "config.json: sentence_transformers.activation_fn is \"x.Y\""},
      // Decoders.
      {decoder, Patch("config.json", {{"is_causal", false}}), "is_causal is false; served is true: a token attends to"},
      {decoder, Patch("config.json", {{"use_bidirectional_attention", true}}), "use_bidirectional_attention is true"},
  };
}

TEST(SentenceRefusedTest, WhatWouldChangeTheAnswerIsRefusedByName) {
  ExpectMessages(tests::TestdataFolder() + "_sentence", RefusedFolders());
}

TEST(SentenceRefusedTest, ModelsOfImagesAreNoEncodersOfTexts) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path() + "/1";
  fs::copy(tests::TestdataFolder() + "_images/vit_model/1", folder, fs::copy_options::recursive);
  fs::copy(tests::TestdataFolder() + "_sentence/mean/1/1_Pooling", folder / "1_Pooling");
  Modules({{"Pooling", "1_Pooling"}})(folder);
  const auto model = edgewise::LoadModel(folder, *MakeBackend());
  EXPECT_EQ(model.status().message(), "modules.json: sentence encoders of model_type vit are not served");
}

// An argument for a loader comes before max_seq_length, as there.
TEST(SentenceRefusedTest, LimitsOfLoadersAreRead) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path() + "/1";
  fs::copy(tests::TestdataFolder() + "_sentence/mean/1", folder, fs::copy_options::recursive);
  EXPECT_EQ(LoadModel(folder)->config().max_text_tokens, 12);
  Patch("sentence_bert_config.json", {{"max_seq_length", 20}})(folder);
  EXPECT_EQ(LoadModel(folder)->config().max_text_tokens, 20);
  Patch("sentence_bert_config.json", {{"tokenizer_args", {{"model_max_length", 9}}}})(folder);
  EXPECT_EQ(LoadModel(folder)->config().max_text_tokens, 9);
}

}  // namespace
}  // namespace edgewise::testing
