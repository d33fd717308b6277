// Texts of Hugging Face folders, by the folder's own tokenizer, against transformers
// (tests/reference/make_hugging_face.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "tests/model/near.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;

std::string TextFolder(const std::string& name) { return tests::TestdataFolder() + "_hugging_face/" + name; }

json TextsOf(const std::string& name) {
  std::ifstream file(TextFolder(name) + "/golden.json");
  return json::parse(file).value("texts", json::array());
}

std::vector<std::string> CasesWithTexts() {
  std::vector<std::string> cases;
  for (const auto& entry : std::filesystem::directory_iterator(tests::TestdataFolder() + "_hugging_face")) {
    const std::string name = entry.path().filename().string();
    if (!TextsOf(name).empty()) cases.push_back(name);
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

absl::StatusOr<ModelSequence> Prepare(const Model& model, const json& entry) {
  const std::string second = entry.value("second", "");
  const json& how = entry["truncate"];
  return model.PrepareText(entry["text"], entry.contains("second") ? &second : nullptr,
                           how == "HEAD"   ? TruncateMode::kHead
                           : how == "TAIL" ? TruncateMode::kTail
                                           : TruncateMode::kRefuse);
}

class HuggingFaceTextTest : public ::testing::TestWithParam<std::string> {};

TEST_P(HuggingFaceTextTest, TokensAreThoseOfTransformers) {
  const LoadedModel model = LoadModel(TextFolder(GetParam()) + "/1");
  const json texts = TextsOf(GetParam());
  ASSERT_GE(texts.size(), 4u);
  for (const json& entry : texts) {
    const absl::StatusOr<ModelSequence> sequence = Prepare(*model, entry);
    ASSERT_TRUE(sequence.ok()) << entry["text"] << sequence.status();
    EXPECT_EQ(sequence->token_ids, entry["token_ids"].get<std::vector<int32_t>>()) << entry["text"];
    EXPECT_EQ(sequence->token_types, entry.value("token_types", std::vector<int32_t>())) << entry["text"];
    EXPECT_EQ(sequence->truncated_tokens, entry["truncated"].get<uint32_t>()) << entry["text"];
    std::vector<std::vector<uint32_t>> offsets;
    for (const tokenizers::Span& span : sequence->offsets) offsets.push_back({span.begin, span.end});
    EXPECT_EQ(offsets, entry.value("offsets", std::vector<std::vector<uint32_t>>())) << entry["text"];
  }
}

TEST_P(HuggingFaceTextTest, AnswersAreThoseOfTransformersInFloat64) {
  const LoadedModel model = LoadModel(TextFolder(GetParam()) + "/1");
  Comparison comparison;
  for (const json& entry : TextsOf(GetParam())) {
    ModelInput input;
    input.sequences.push_back(*Prepare(*model, entry));
    const InputResult result = RunOne(*model, input);
    ASSERT_TRUE(result.status.ok()) << entry["text"];
    const bool embeds = model->config().task == ModelTask::kEmbedding;
    std::vector<float> got = embeds ? result.probabilities : result.logits;
    if (embeds && model->config().normalize) {
      double squares = 0.0;
      for (const float value : got) squares += static_cast<double>(value) * value;
      for (float& value : got) value = static_cast<float>(value / std::sqrt(squares));
    }
    const json& numbers = entry[embeds ? "embedding" : "logits"];
    ASSERT_EQ(got.size(), numbers.flatten().size()) << entry["text"];
    std::span<const float> rest(got);
    for (const json& row : numbers[0].is_array() ? numbers : json::array({numbers})) {
      comparison.Add(rest.first(row.size()), row, entry["text"].get<std::string>());
      rest = rest.subspan(row.size());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, HuggingFaceTextTest, ::testing::ValuesIn(CasesWithTexts()),
                         [](const auto& info) { return info.param; });

TEST(HuggingFaceTextsTest, EveryKindOfFolderHasTexts) {
  const std::vector<std::string> expected = {"bert_masked",
                                             "bert_masked_untied",
                                             "bert_multi_label",
                                             "bert_regression",
                                             "bert_sequence",
                                             "bert_tokens",
                                             "distilbert_masked",
                                             "distilbert_one_label",
                                             "distilbert_sequence",
                                             "gpt2_causal",
                                             "gpt2_untied",
                                             "modernbert_masked",
                                             "modernbert_masked_untied",
                                             "modernbert_sentence",
                                             "modernbert_sequence",
                                             "modernbert_tokens",
                                             "mpnet_sentence",
                                             "roberta_masked",
                                             "roberta_sequence"};
  EXPECT_EQ(CasesWithTexts(), expected);
}

std::string Refusal(const Model& model, const std::string& text, TruncateMode truncate = TruncateMode::kRefuse) {
  const absl::StatusOr<ModelSequence> sequence = model.PrepareText(text, nullptr, truncate);
  EXPECT_TRUE(absl::IsInvalidArgument(sequence.status())) << sequence.status();
  return std::string(sequence.status().message());
}

TEST(HuggingFaceTextsTest, ATextThatIsTooLongNamesTheLimit) {
  std::string text;
  for (int i = 0; i < 39; ++i) text += "cat ";
  const LoadedModel model = LoadModel(TextFolder("bert_sequence") + "/1");
  EXPECT_EQ(Refusal(*model, text),
            "text has more than 40 tokens, those of the tokenizer's template included; the model takes 40; set "
            "truncate to cut it");
  const LoadedModel limited = LoadModel(TextFolder("mpnet_sentence") + "/1");
  EXPECT_EQ(Refusal(*limited, text),
            "text has more than 24 tokens, those of the tokenizer's template included; the model takes texts of 24 "
            "(max_seq_length, or model_max_length of tokenizer_config.json); set truncate to cut it");
}

TEST(HuggingFaceTextsTest, AMaskIsNeededAndMayBeCutOff) {
  const LoadedModel model = LoadModel(TextFolder("bert_masked") + "/1");
  EXPECT_EQ(Refusal(*model, "the cat"), "text has no mask token ([MASK], 5); a fill-mask model predicts these");
  std::string text = "[MASK] ";
  for (int i = 0; i < 60; ++i) text += "cat ";
  EXPECT_EQ(Refusal(*model, text, TruncateMode::kHead),
            "text has no mask token ([MASK], 5) in what truncation leaves; a fill-mask model predicts these");
}

}  // namespace
}  // namespace edgewise::testing
