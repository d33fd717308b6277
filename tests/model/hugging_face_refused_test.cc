// Broken and unsupported Hugging Face folders: each is refused with a message that a user can act on.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model/load/load.h"
#include "tests/model/changed_folder.h"
#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string ReadBytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

// Changes config.json by a merge patch; null takes a field away.
Change Config(const json& patch) {
  return [patch](const fs::path& folder) {
    json config = json::parse(ReadBytes(folder / "config.json"));
    config.merge_patch(patch);
    WriteFile(folder / "config.json", config.dump());
  };
}

// Changes the header of a safetensors file as text of the same length.
Change Header(const std::string& from, const std::string& to, const std::string& name = "model.safetensors") {
  return [=](const fs::path& folder) {
    std::string bytes = ReadBytes(folder / name);
    const size_t place = bytes.find(from);
    ASSERT_NE(place, std::string::npos) << from;
    ASSERT_EQ(from.size(), to.size());
    WriteFile(folder / name, bytes.replace(place, from.size(), to));
  };
}

Change File(const std::string& name, const std::string& content) {
  return [=](const fs::path& folder) { WriteFile(folder / name, content); };
}

Change Without(const std::string& name) {
  return [=](const fs::path& folder) { fs::remove(folder / name); };
}

Change Json(const std::string& name, const std::function<void(json&)>& change) {
  return [=](const fs::path& folder) {
    json value = json::parse(ReadBytes(folder / name));
    change(value);
    WriteFile(folder / name, value.dump());
  };
}

Change Both(const Change& first, const Change& second) {
  return [=](const fs::path& folder) {
    first(folder);
    second(folder);
  };
}

// Adds tokens to a tokenizer.json of so many, behind those that it has.
Change Added(const std::vector<std::string>& tokens, int32_t has = 40) {
  return Json("tokenizer.json", [=](json& file) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      json token = file["added_tokens"][0];
      token["id"] = has + i;
      token["content"] = tokens[i];
      file["added_tokens"].push_back(token);
    }
  });
}

// An added token is a special one too.
Change Special(const std::string& role) {
  return [=](const fs::path& folder) {
    Added({{"<extra>"}})(folder);
    Json("tokenizer_config.json", [=](json& config) { config[role] = "<extra>"; })(folder);
  };
}

// The template [CLS] A [SEP] with these ids.
Change Bert(int32_t cls, int32_t sep) {
  return Json("tokenizer.json", [=](json& file) {
    file["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"[SEP]", sep}}, {"cls", {"[CLS]", cls}}};
  });
}

// The first token of a template, "single" or "pair", gets this id and this type.
Change Template(const std::string& name, int32_t id, int32_t type) {
  return Json("tokenizer.json", [=](json& file) {
    json& post = file["post_processor"];
    post[name][0]["SpecialToken"] = {{"id", "first"}, {"type_id", type}};
    post["special_tokens"]["first"] = {{"id", "first"}, {"ids", {id}}, {"tokens", {"first"}}};
  });
}

const std::string kIndex = "model.safetensors.index.json";

std::vector<ChangedFolder> BadFolders() {
  const std::string sequence = "bert_sequence", masked = "bert_masked", sentence = "mpnet_sentence",
                    shards = "bert_regression", roberta = "roberta_sequence", untied = "bert_masked_untied",
                    gpt2 = "gpt2_causal", modern = "modernbert_sequence", old_modern = "modernbert_mean",
                    modern_masked = "modernbert_masked", modern_untied = "modernbert_masked_untied";
  const auto shard_of = [](const char* file) {
    return Json(kIndex, [=](json& index) { index["weight_map"]["classifier.weight"] = file; });
  };
  return {
      // The model and its settings.
      {sequence, Config({{"model_type", "deberta-v2"}}), "model_type is \"deberta-v2\"; served: bert, camembert"},
      {sequence, Config({{"model_type", 7}}), "model_type is 7"},
      {sequence, Config({{"model_type", nullptr}}), "model_type is missing"},
      {sequence, Config({{"architectures", {"BertForQuestionAnswering"}}}),
       "architectures is [\"BertForQuestionAnswering\"]; served: one of BertModel, BertForSequenceClassification"},
      {sequence, Config({{"architectures", nullptr}}),
       "config.json: architectures is missing, and the weights fit BertForSequenceClassification and "
       "BertForTokenClassification; add the class, such as \"architectures\": [\"BertForSequenceClassification\"]"},
      {modern, Config({{"architectures", nullptr}}), "fit ModernBertForSequenceClassification and "},
      {modern_masked, Json("config.json", [](json& config) { config["architectures"] = json::array(); }), ""},
      {gpt2, Config({{"architectures", nullptr}}), "the weights fit GPT2Model and GPT2LMHeadModel; add the class"},
      {"gpt2_untied", Config({{"architectures", nullptr}}), ""},
      {"distilbert_sequence",
       Both(Config({{"architectures", nullptr}}), Header("\"pre_classifier.bias", "\"pre_classifier.b1as")),
       "config.json: architectures is missing, and the weights are those of none of DistilBertModel, "
       "DistilBertForSequenceClassification, DistilBertForTokenClassification, DistilBertForMaskedLM, which have no "
       "tensor pre_classifier.b1as"},
      {sequence, Config({{"architectures", {"BertModel", "BertForMaskedLM"}}}), "architectures is [\"BertModel\""},
      {sequence, Config({{"is_decoder", true}}), "is_decoder is true"},
      {sequence, Config({{"add_cross_attention", true}}), "add_cross_attention is true"},
      {sequence, Config({{"position_embedding_type", "relative_key"}}),
       "position_embedding_type is \"relative_key\"; served: \"absolute\""},
      {sequence, Config({{"auto_map", {{"AutoModel", "modeling_x.X"}}}}), "auto_map is given"},
      {sequence, Config({{"quantization_config", {{"bits", 4}}}}), "quantization_config is given"},
      {sequence, Config({{"pruned_heads", {{"0", {1}}}}}), "pruned_heads is {\"0\":[1]}"},
      {sequence, Config({{"hidden_act", "swiglu"}}), "hidden_act is \"swiglu\"; allowed: gelu, gelu_python, gelu_new"},
      {sequence, Config({{"problem_type", "ranking"}}),
       "problem_type is \"ranking\"; allowed: single_label_classification, multi_label_classification, regression"},
      {shards, Config({{"problem_type", "single_label_classification"}}), "with one label"},
      {sequence, Config({{"id2label", {{"2", nullptr}, {"two", "x"}}}}), "id2label has the key \"two\"; keys are ids"},
      {sequence, Config({{"id2label", {{"2", {"x"}}}}}),
       "id2label: the label of \"2\" is [\"x\"]; a string or a number is expected"},
      {sequence, Config({{"id2label", {{"2", nullptr}}}}),
       "tensor classifier.bias has shape [3]; config.json expects [2]"},
      {sequence, Config({{"num_attention_heads", 5}}), "num_attention_heads is 5, hidden_size is 32"},
      {sequence, Config({{"hidden_size", nullptr}}), "hidden_size is missing"},
      {sequence, Config({{"hidden_size", "32"}}), "hidden_size is \"32\"; allowed: an integer"},
      {sequence, Config({{"pad_token_id", 40}}), "pad_token_id is 40; allowed: an integer from -1 to 39"},
      {sequence, Config({{"layer_norm_eps", -1}}), "layer_norm_eps is -1"},
      {roberta, Config({{"pad_token_id", nullptr}}), ""},  // merged away: the family's default, and served
      {roberta, File("config.json", R"({"model_type": "roberta", "pad_token_id": null, "vocab_size": 40,
         "architectures": ["RobertaModel"], "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 16})"),
       "pad_token_id is null; positions begin after it"},
      {roberta, Config({{"max_position_embeddings", 2}}), "max_position_embeddings is 2; the first 2 are for pads"},
      {sentence, Config({{"relative_attention_num_buckets", 64}}), "relative_attention_num_buckets is 64"},
      {sentence, Config({{"pad_token_id", 0}}), "pad_token_id is 0; the positions of mpnet leave out tokens of id 1"},
      {sequence, Config({{"profiles", {{"x", {{"samples", 0}}}}}}), "profiles.x.samples is 0"},
      {sequence, Config({{"default_profile", "x"}, {"profiles", {{"x", {{"samples", 1}}}}}}),
       "config.json: default_profile is \"x\"; no such field; set \"default\": true in the profile, "
       "profiles.NAME.default"},
      {sequence, File("config.json", "{\"model_type\": \"bert\""), "config.json: not valid JSON"},
      {sequence, File("adapter_config.json", "{}"), "adapter_config.json: adapters are not served; merge it"},
      // Sentence encoders.
      {sentence, Json("modules.json", [](json& modules) { modules[2]["type"] = "sentence_transformers.models.LSTM"; }),
       "modules.json: module 2 has the type \"sentence_transformers.models.LSTM\"; served: a Transformer"},
      {sentence, Json("modules.json", [](json& modules) { modules[1]["path"] = "../x"; }),
       "modules.json: the path of Pooling is \"../x\""},
      {sentence, Json("modules.json", [](json& modules) { modules[0]["path"] = "0_Transformer"; }),
       "modules.json: the Transformer is in \"0_Transformer\""},
      {sentence, Json("modules.json", [](json& modules) { modules.erase(2), modules.erase(1); }), "has no Pooling"},
      {sentence, File("modules.json", "{}"), "modules.json: a list of modules is expected"},
      {sentence, Json("1_Pooling/config.json", [](json& pooling) { pooling["pooling_mode_max_tokens"] = true; }),
       "1_Pooling/config.json: pooling by max_tokens and mean_tokens is not served"},
      {sentence, Without("1_Pooling/config.json"), "1_Pooling/config.json: no such file"},
      {sentence, File("sentence_bert_config.json", R"({"max_seq_length": 24, "do_lower_case": true})"), ""},
      {sentence, File("sentence_bert_config.json", R"({"max_seq_length": 0})"),
       "sentence_bert_config.json: max_seq_length is 0; allowed: an integer from 1"},
      {sentence, File("sentence_bert_config.json", R"({"max_length": 24})"), "sentence_bert_config.json: "},
      {sentence, File("sentence_bert_config.json", "["), "sentence_bert_config.json: not valid JSON"},
      {sentence, File("config_sentence_transformers.json", R"({"default_prompt_name": "query"})"),
       "config_sentence_transformers.json: default_prompt_name is \"query\"; there are no prompts"},
      {sentence, File("config_sentence_transformers.json", R"({"default_prompt_name": null, "prompts": {}})"), ""},
      // The tokenizer.
      {masked, Without("tokenizer.json"), "neither tokenizer.json nor vocab.txt is in the folder; fill-mask needs"},
      {sequence, Without("tokenizer.json"), ""},
      {masked, File("tokenizer.json", "["), "tokenizer.json: not valid JSON"},
      {sequence, File("tokenizer.json", ""), "tokenizer.json: is empty"},
      {sequence, File("tokenizer.json", R"({"version": "1.0"})"), "tokenizer.json: model is missing"},
      {sequence, Json("tokenizer.json", [](json& file) { file["model"]["type"] = "WordSeg"; }),
       "tokenizer.json: model.type is \"WordSeg\""},
      {sequence, Json("tokenizer.json", [](json& file) { file["model"]["vocab"]["zebra"] = 40; }), ""},
      // Ids that the server itself would put into texts. Tokens that only a text can bring are none of them.
      {sequence, Added({{"<extra>"}}), ""},
      {gpt2, Config({{"pad_token_id", 40}}), ""},  // a language model has no pads
      {sequence, Bert(40, 3), "tokenizer: post_processor: the id of a token is 40; in config.json vocab_size is 40"},
      {sequence, Bert(39, 3), ""},
      {sequence, Bert(2, 1000000), "post_processor: the id of a token is 1000000; in config.json"},
      {sequence, Template("single", 40, 0), "post_processor: the id of a token is 40; in config.json"},
      {sequence, Template("pair", 16777215, 0), "post_processor: the id of a token is 16777215; in config.json"},
      {sequence, Template("single", 2, 2),
       "tokenizer: post_processor: a text gets tokens of type 2; in config.json type_vocab_size is 2, so types end at "
       "1"},
      {sequence, Template("pair", 2, 2), ""},  // texts of one part are served
      {sequence, Special({"cls_token"}), ""},
      {sequence, Special({"unk_token"}), ""},
      {masked, Special({"mask_token"}), "config.json: vocab_size is 40; the id of the mask token is 40, beyond it"},
      {sequence, Special({"pad_token"}),
       "tokenizer_config.json: pad_token is <extra>, whose id is 40; in config.json pad_token_id is 0"},
      {masked,
       [](const fs::path& folder) {
         std::string text = ReadBytes(folder / "tokenizer.json");
         for (size_t at; (at = text.find("[MASK]")) != std::string::npos;) text.replace(at, 6, "[HOLE]");
         WriteFile(folder / "tokenizer.json", text);
         fs::remove(folder / "tokenizer_config.json");
         Added({{"[MASK]"}})(folder);
       },
       "config.json: vocab_size is 40; the id of the mask token is 40, beyond it"},
      {sequence,
       Json("tokenizer.json",
            [](json& file) {
              json& single = file["post_processor"]["single"];
              const json special = single[0];
              for (int i = 0; i < 38; ++i) single.push_back(special);
            }),
       "tokenizer.json: post_processor: its template adds 40 tokens; the model takes 40, so there is no room for a "
       "text"},
      {sequence, File("tokenizer_config.json", "["), "tokenizer_config.json: not valid JSON"},
      {sequence, File("tokenizer_config.json", R"({"model_input_names": 7})"),
       "tokenizer_config.json: model_input_names is 7; a list of names is expected"},
      {sequence, File("tokenizer_config.json", R"({"cls_token": "[FIRST]"})"), ""},
      {sequence, File("special_tokens_map.json", R"({"cls_token": 7})"),
       "special_tokens_map.json: cls_token is 7; a token is expected"},
      {masked, Config({{"pad_token_id", 5}}),
       "tokenizer_config.json: pad_token is [PAD], whose id is 0; in config.json pad_token_id is 5"},
      {masked, Config({{"mask_token_id", 7}}),
       "mask_token is [MASK], whose id is 5; in config.json mask_token_id is 7"},
      {sequence, Config({{"cls_token_id", 9}}), "cls_token is [CLS], whose id is 2; in config.json cls_token_id is 9"},
      {untied, Config({{"pad_token_id", 5}}), "pad_token_id is 5, the id of the mask token"},
      {untied, File("vocab.txt", "[PAD]\n[UNK]\n[SEP]\n[MASK]\n"),
       "cls_token is \"[CLS]\"; vocab.txt has no such line"},
      {untied, File("vocab.txt", "\xff\n"), "vocab.txt: byte 0 is not valid UTF-8"},
      {masked,
       [](const fs::path& folder) {
         std::string text = ReadBytes(folder / "tokenizer.json");
         for (size_t at; (at = text.find("[MASK]")) != std::string::npos;) text.replace(at, 6, "[HOLE]");
         WriteFile(folder / "tokenizer.json", text);
         fs::remove(folder / "tokenizer_config.json");
       },
       "the tokenizer has no mask token, which fill-mask needs"},
      // Language models.
      {gpt2, Config({{"scale_attn_by_inverse_layer_idx", true}}),
       "config.json: scale_attn_by_inverse_layer_idx is true; served is false"},
      {gpt2, Config({{"reorder_and_upcast_attn", true}}), "reorder_and_upcast_attn is true; served is false"},
      {gpt2, Config({{"add_cross_attention", true}}), "add_cross_attention is true; served is false"},
      {gpt2, Config({{"architectures", {"GPT2DoubleHeadsModel"}}}),
       "architectures is [\"GPT2DoubleHeadsModel\"]; served: one of GPT2Model, GPT2LMHeadModel"},
      {gpt2, Config({{"n_inner", 64}}), "tensor h.0.mlp.c_fc.bias has shape [128]; config.json expects [64]"},
      {gpt2, Config({{"n_positions", 41}}), "tensor wpe.weight has shape [40, 32]; config.json expects [41, 32]"},
      {gpt2, Config({{"tie_word_embeddings", false}}), "tensor lm_head.weight [40, 32] is missing"},
      {gpt2, Config({{"n_embd", 30}}), "n_head is 4, n_embd is 30: it does not divide"},
      {gpt2, Header("h.1.attn.c_attn.bias", "h.1.attn.c_more.bias"),
       "tensor transformer.h.1.attn.c_attn.bias [96] is missing"},
      {gpt2, Config({{"eos_token_id", "end"}}), "config.json: eos_token_id is \"end\"; an id or a list of at most"},
      {gpt2, File("generation_config.json", R"({"eos_token_id": [2, -1]})"),
       "generation_config.json: eos_token_id is [2,-1]; an id or a list of at most"},
      {gpt2, File("generation_config.json", "["), "generation_config.json: not valid JSON"},
      {gpt2, File("generation_config.json", R"({"eos_token_id": null})"), ""},
      {gpt2,
       [](const fs::path& folder) {
         const fs::path from = fs::path(tests::TestdataFolder() + "_hugging_face") / "mpnet_sentence" / "1";
         fs::copy(from / "modules.json", folder);
         fs::copy(from / "1_Pooling", folder / "1_Pooling");
       },
       ""},
      // ModernBERT.
      {modern, Config({{"architectures", {"ModernBertForQuestionAnswering"}}}),
       "architectures is [\"ModernBertForQuestionAnswering\"]; served: one of ModernBertModel, ModernBertForSequence"},
      {modern, Config({{"classifier_pooling", "max"}}), "classifier_pooling is \"max\"; allowed: cls, mean"},
      {modern, Config({{"classifier_activation", "tan"}}), "classifier_activation is \"tan\"; allowed: gelu"},
      {modern, Config({{"hidden_activation", "siluu"}}), "hidden_activation is \"siluu\"; allowed: gelu"},
      {modern, Config({{"local_attention", 0}}), "local_attention is 0; allowed: an integer from 1"},
      {modern, Config({{"sliding_window", 4}}), "sliding_window is given; the windows of ModernBERT are those of"},
      {modern, Config({{"layer_types", {"full_attention"}}}), "a list of 4 strings is expected"},
      {modern, Config({{"layer_types", {"full_attention", "chunked_attention", "full_attention", "full_attention"}}}),
       "layer_types[1] is \"chunked_attention\"; served: full_attention, sliding_attention"},
      {modern, Config({{"layer_types", nullptr}, {"global_attn_every_n_layers", 0}}),
       "global_attn_every_n_layers is 0; allowed: an integer from 1"},
      {modern, Config({{"rope_parameters", {{"sliding_attention", {{"rope_type", "dynamic"}}}}}}),
       "rope_parameters.sliding_attention.rope_type is \"dynamic\"; served: default, linear, llama3, yarn; with this"},
      {modern, Config({{"rope_parameters", {{"full_attention", {{"rope_theta", 0}}}}}}),
       "rope_parameters.full_attention.rope_theta is 0"},
      {modern, Config({{"rope_parameters", {{"full_attention", 7}}}}),
       "rope_parameters.full_attention is 7; an object is expected"},
      {modern, Config({{"rope_parameters", {{"rope_theta", 5.0}}}}), "unknown field rope_parameters.\"rope_theta\""},
      {old_modern, Config({{"rope_scaling", {{"rope_type", "longrope"}}}}), "rope_scaling.rope_type is \"longrope\""},
      {old_modern, Config({{"local_rope_theta", "x"}}), "local_rope_theta is \"x\"; allowed: a number"},
      {old_modern,
       [](const fs::path& folder) {
         json config = json::parse(ReadBytes(folder / "config.json"));
         config["local_rope_theta"] = nullptr;
         WriteFile(folder / "config.json", config.dump());
       },
       "local_rope_theta is null"},
      {modern, Config({{"attention_bias", true}}), "tensor model.layers.0.attn.Wqkv.bias [72] is missing"},
      {modern, Config({{"norm_bias", true}}), "tensor model.embeddings.norm.bias [24] is missing"},
      {modern, Config({{"num_attention_heads", 8}}), "head_dim is 3; an even number is expected"},
      {modern, Config({{"tie_word_embeddings", false}}), ""},
      {modern, Config({{"num_hidden_layers", 3}, {"layer_types", nullptr}}),
       "tensor model.layers.3.attn.Wo.weight is not part of ModernBertForSequenceClassification"},
      {old_modern, Config({{"mlp_bias", false}}), "tensor model.layers.0.mlp.Wi.bias is not part of ModernBertFor"},
      {old_modern, Config({{"classifier_bias", false}}), "tensor head.dense.bias is not part of ModernBertFor"},
      {modern_masked, Config({{"tie_word_embeddings", false}}), "tensor decoder.weight [40, 24] is missing"},
      {modern_masked, Header("layers.1.attn_norm.weight", "layers.0.attn_norm.weight"),
       "tensor model.layers.1.attn_norm.weight [24] is missing"},
      {modern_untied, Config({{"decoder_bias", nullptr}}), "tensor decoder.bias [40] is missing"},
      // Weights.
      {sequence, Without("model.safetensors"), "model.safetensors: no such file, nor model.safetensors.index.json"},
      {sequence, [](const fs::path& folder) { fs::rename(folder / "model.safetensors", folder / "pytorch_model.bin"); },
       "pytorch_model.bin, which is pickled and not read"},
      {sequence, Config({{"num_hidden_layers", 3}}),
       "tensor bert.encoder.layer.2.attention.output.LayerNorm.bias [32] is missing"},
      {sequence, Config({{"num_hidden_layers", 1}}),
       "tensor bert.encoder.layer.1.attention.output.LayerNorm.bias is not part of BertForSequenceClassification"},
      {sequence, Config({{"vocab_size", 41}}),
       "tensor bert.embeddings.word_embeddings.weight has shape [40, 32]; config.json expects [41, 32]"},
      {"bert_model", Config({{"architectures", {"BertForTokenClassification"}}}),
       "tensor classifier.bias [2] is missing"},
      {sequence, Header("bert.pooler.dense.bias", "bert.pooler.dense.b1as"),
       "tensor bert.pooler.dense.bias [32] is missing"},
      {sequence, Header("\"classifier.bias\"", "\"classifier.extr\""), "tensor classifier.bias [3] is missing"},
      {"bert_model", Header("pooler.dense.bias", "pooler.dense.more"),
       "tensor pooler.dense.more is not part of BertModel"},
      {sequence, Header("\"F32\",\"shape\":[3]", "\"I32\",\"shape\":[3]"),
       "dtype I32; F64, F32, F16 and BF16 are read"},
      {"bert_model", Config({{"vocab_size", 39}}), "has shape [40, 32]; config.json expects [39, 32]"},
      {shards, shard_of("../model.safetensors"), "the path of a .safetensors file in this folder is expected"},
      {shards,
       Json(kIndex,
            [](json& index) {
              for (json& file : index["weight_map"]) file = "none.safetensors";
            }),
       "none.safetensors: no such file"},
      {shards, Json(kIndex, [](json& index) { index.erase("weight_map"); }), "weight_map: an object is expected"},
      {shards, Without("model-00002-of-00002.safetensors"), "model-00002-of-00002.safetensors: no such file"},
      {sequence,
       [](const fs::path& folder) {
         std::string bytes = ReadBytes(folder / "model.safetensors");
         bytes[bytes.size() - 1] = bytes[bytes.size() - 2] = '\xff';
         WriteFile(folder / "model.safetensors", bytes);
       },
       "weights must be finite"},
  };
}

TEST(HuggingFaceRefusedTest, EveryFolderSaysWhatIsWrong) {
  const std::vector<ChangedFolder> folders = BadFolders();
  ASSERT_GE(folders.size(), 40u);
  ExpectMessages(tests::TestdataFolder() + "_hugging_face", folders);
}

class AddedTokenTest : public ::testing::Test {
 protected:
  LoadedModel LoadWith(const std::string& name, const Change& change) {
    const fs::path folder = temporary_.path() + "/1";
    fs::copy(tests::TestdataFolder() + name + "/1", folder, fs::copy_options::recursive);
    change(folder);
    return LoadModel(folder);
  }

  static std::string Refusal(const absl::Status& status) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }

 private:
  const TemporaryFolder temporary_;
};

// Tokenizers have more tokens than their model in public folders: one that was added and never trained.
TEST_F(AddedTokenTest, BeyondTheModelIsRefusedWhereATextHasIt) {
  const LoadedModel model = LoadWith("_hugging_face/bert_sequence", Added({"<extra>", "<more>"}));
  const std::string good = "the cat", bad = "the cat <more>";
  const std::string refusal = ": the tokenizer makes token 41, \"<more>\", of it; the model has 40 tokens (vocab_size)";
  EXPECT_TRUE(model->PrepareText(good, &good, TruncateMode::kRefuse).ok());
  EXPECT_EQ(Refusal(model->PrepareText(bad, nullptr, TruncateMode::kRefuse).status()), "text" + refusal);
  EXPECT_EQ(Refusal(model->PrepareText(good, &bad, TruncateMode::kRefuse).status()), "second" + refusal);
  EXPECT_EQ(Refusal(model->PrepareText(bad, nullptr, TruncateMode::kHead).status()), "text" + refusal);
  EXPECT_EQ(Refusal(model->Tokenize(bad).status()), "text" + refusal);
  EXPECT_EQ(Refusal(model->Prepare({7, 40}, TruncateMode::kRefuse).status()),
            "token_ids[1] is 40; the vocabulary has 40 entries");
}

TEST_F(AddedTokenTest, BeyondTheModelIsRefusedWhereAChatHasIt) {
  const LoadedModel model = LoadWith("_chat/qwen3", Added({"<extra>"}, 278));
  const auto chat = [&](const std::string& text) {
    return model->PrepareChat({{"user", text}}, absl::CivilSecond(2026, 3, 4)).status();
  };
  EXPECT_EQ(chat("hello"), absl::OkStatus());
  EXPECT_EQ(Refusal(chat("hello <extra>")),
            "messages: the tokenizer makes token 278, \"<extra>\", of it; the model has 278 tokens (vocab_size)");
}

// Texts of one part are served.
TEST_F(AddedTokenTest, TypesBeyondTheModelAreRefusedWithASecondText) {
  const LoadedModel model = LoadWith("_hugging_face/bert_sequence", Template("pair", 2, 2));
  const std::string text = "the cat";
  EXPECT_TRUE(model->PrepareText(text, nullptr, TruncateMode::kRefuse).ok());
  EXPECT_EQ(
      Refusal(model->PrepareText(text, &text, TruncateMode::kRefuse).status()),
      "second gets tokens of type 2 from the tokenizer's template; the model has types up to 1 (type_vocab_size)");
}

// Tied weights that differ are no model of transformers.
TEST(HuggingFaceRefusedTest, TiedWeightsThatDiffer) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path() + "/1";
  fs::copy(tests::TestdataFolder() + "_hugging_face/bert_masked_untied/1", folder, fs::copy_options::recursive);
  const std::unique_ptr<Backend> backend = MakeBackend();
  ASSERT_TRUE(edgewise::LoadModel(folder, *backend).ok());
  Config({{"tie_word_embeddings", true}})(folder);
  const auto model = edgewise::LoadModel(folder, *backend);
  EXPECT_NE(std::string(model.status().message()).find("differ; they are one weight (tied)"), std::string::npos)
      << model.status();
}

// What a task does not read is listed, and nothing else.
TEST(HuggingFaceSkippedTest, ListsTensorsOfOtherTasks) {
  const std::string folder = tests::TestdataFolder() + "_hugging_face/";
  const auto skipped = [&](const std::string& name) { return LoadModel(folder + name + "/1")->skipped_tensors(); };
  const std::vector<std::string> pooler = {"pooler.dense.bias", "pooler.dense.weight"};
  EXPECT_EQ(skipped("bert_model"), pooler);
  EXPECT_EQ(skipped("bert_sequence"), std::vector<std::string>());
  EXPECT_EQ(skipped("bert_regression"), std::vector<std::string>());
  const std::vector<std::string> untied = skipped("bert_masked_untied");
  EXPECT_NE(std::find(untied.begin(), untied.end(), "cls.seq_relationship.weight"), untied.end());
  const std::vector<std::string> masks = {"h.0.attn.bias", "h.0.attn.masked_bias", "h.1.attn.bias",
                                          "h.1.attn.masked_bias"};
  EXPECT_EQ(skipped("gpt2_causal"), masks);
  EXPECT_EQ(skipped("gpt2_untied"), std::vector<std::string>());
  const std::vector<std::string> old = skipped("bert_sentence_cls");
  EXPECT_NE(std::find(old.begin(), old.end(), "bert.embeddings.position_ids"), old.end());
}

}  // namespace
}  // namespace edgewise::testing
