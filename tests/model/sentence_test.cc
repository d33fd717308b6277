// Folders that sentence-transformers saved, against its encode and predict (tests/reference/make_sentence_folders.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "tests/model/model_builder.h"
#include "tests/model/near.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string SentenceFolder(const std::string& name) { return tests::TestdataFolder() + "_sentence/" + name; }

json ReadFile(const fs::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

std::vector<std::string> SentenceCases() {
  std::vector<std::string> cases;
  for (const auto& entry : fs::directory_iterator(tests::TestdataFolder() + "_sentence")) {
    cases.push_back(entry.path().filename().string());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

const Prompt* PromptOf(const Model& model, const std::string& name) {
  return name.empty() ? nullptr : &model.config().prompts.at(name);
}

absl::StatusOr<ModelSequence> Prepare(const Model& model, const json& entry) {
  const std::string second = entry.value("second", "");
  const Prompt* const prompt = PromptOf(model, entry.value("prompt_name", model.config().default_prompt));
  return model.PrepareText(entry["text"], entry.contains("second") ? &second : nullptr, TruncateMode::kTail, NoBounds(),
                           prompt);
}

// What a client gets: an embedding, the value of one label, the logits of several, or each one's probability.
std::vector<float> Answer(const Model& model, ModelSequence sequence) {
  ModelInput input;
  input.sequences.push_back(std::move(sequence));
  const InputResult result = RunOne(model, input);
  EXPECT_TRUE(result.status.ok()) << result.status;
  const ModelConfig& config = model.config();
  if (config.task == ModelTask::kSequenceClassification && !config.multi_label) return result.logits;
  std::vector<float> numbers = result.probabilities;
  if (config.task != ModelTask::kEmbedding) return numbers;
  numbers.resize(static_cast<size_t>(config.embedding_size));
  double squares = 0.0;
  for (const float number : numbers) squares += static_cast<double>(number) * number;
  for (float& number : numbers) number = config.normalize ? static_cast<float>(number / std::sqrt(squares)) : number;
  return numbers;
}

class SentenceTest : public ::testing::TestWithParam<std::string> {};

TEST_P(SentenceTest, NumbersAreThoseOfTheLibraryInFloat64) {
  const LoadedModel model = LoadModel(SentenceFolder(GetParam()) + "/1");
  const json texts = ReadFile(SentenceFolder(GetParam()) + "/golden.json")["texts"];
  ASSERT_GE(texts.size(), 3u);
  Comparison comparison;
  for (const json& entry : texts) {
    absl::StatusOr<ModelSequence> sequence = Prepare(*model, entry);
    ASSERT_TRUE(sequence.ok()) << entry["text"] << sequence.status();
    comparison.Add(Answer(*model, *std::move(sequence)), entry[entry.contains("scores") ? "scores" : "embedding"],
                   entry["text"].get<std::string>() + " " + entry.value("prompt_name", "-"));
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, SentenceTest, ::testing::ValuesIn(SentenceCases()),
                         [](const auto& info) { return info.param; });

TEST(SentenceFoldersTest, BothReleasesAreThere) {
  const std::vector<std::string> expected = {"cls_prompts",
                                             "cross_encoder",
                                             "cross_encoder_labels",
                                             "cross_encoder_logits",
                                             "cross_encoder_sigmoids",
                                             "dense",
                                             "excluded_prompts",
                                             "last_token",
                                             "mean",
                                             "old_cross_encoder",
                                             "old_dense",
                                             "old_last_token",
                                             "old_mean",
                                             "truncate_dim"};
  EXPECT_EQ(SentenceCases(), expected);
}

// Each of max_seq_length, model_max_length and max_position_embeddings is the smallest once, and the largest.
TEST(SentenceFoldersTest, TextsAreCutWhereTheLibraryCutsThem) {
  const json golden = ReadFile(SentenceFolder("last_token") + "/golden.json");
  ASSERT_EQ(golden["limits"].size(), 9u);
  Comparison comparison;
  for (const json& entry : golden["limits"]) {
    const TemporaryFolder temporary;
    const fs::path folder = temporary.path() + "/1";
    fs::copy(SentenceFolder("last_token") + "/1", folder, fs::copy_options::recursive);
    for (const auto& [file, field] : {std::pair("sentence_bert_config.json", "max_seq_length"),
                                      std::pair("tokenizer_config.json", "model_max_length"),
                                      std::pair("config.json", "max_position_embeddings")}) {
      json value = ReadFile(folder / file);
      if (!entry[field].is_null()) value[field] = entry[field];
      WriteFile(folder / file, value.dump());
    }
    const LoadedModel model = LoadModel(folder);
    absl::StatusOr<ModelSequence> sequence = Prepare(*model, entry);
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    EXPECT_GT(sequence->truncated_tokens, 0u) << "the text is longer";
    json limits = entry;
    limits.erase("embedding");
    comparison.Add(Answer(*model, *std::move(sequence)), entry["embedding"], limits.dump());
  }
}

// Pads of a batch are nobody's: an answer beside others is the answer alone, whatever rows the model reads.
TEST(SentenceFoldersTest, AnAnswerBesideOthersIsTheAnswerAlone) {
  for (const char* name : {"excluded_prompts", "last_token", "dense", "cls_prompts", "old_cross_encoder"}) {
    const LoadedModel model = LoadModel(SentenceFolder(name) + "/1");
    std::vector<ModelInput> inputs;
    const json texts = ReadFile(SentenceFolder(name) + "/golden.json")["texts"];
    ASSERT_GE(texts.size(), 3u);
    for (const json& entry : texts) {
      inputs.emplace_back().sequences.push_back(*Prepare(*model, entry));
    }
    const std::vector<InputResult> together = RunAll(*model, inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_TRUE(SameBytes(together[i], RunOne(*model, inputs[i]))) << name << " " << i;
    }
  }
}

// Beside inputs that want none, and whatever rows the head reads, rows of tokens change nothing else.
TEST(SentenceFoldersTest, RowsOfTokensAreThoseThatArePooled) {
  for (const char* name : {"excluded_prompts", "mean", "last_token", "cls_prompts"}) {
    const LoadedModel model = LoadModel(SentenceFolder(name) + "/1");
    const ModelConfig& config = model->config();
    std::vector<ModelInput> inputs;
    const json texts = ReadFile(SentenceFolder(name) + "/golden.json")["texts"];
    ASSERT_GE(texts.size(), 3u);
    for (const json& entry : texts) {
      inputs.emplace_back().sequences.push_back(*Prepare(*model, entry));
    }
    const std::vector<InputResult> plain = RunAll(*model, inputs);
    for (size_t i = 0; i < inputs.size(); i += 2) inputs[i].token_rows = true;
    const std::vector<InputResult> results = RunAll(*model, inputs);
    const auto columns = static_cast<size_t>(config.hidden_size);
    for (size_t i = 0; i < inputs.size(); ++i) {
      SCOPED_TRACE(std::string(name) + " " + std::to_string(i));
      EXPECT_TRUE(SameBytes(results[i], RunOne(*model, inputs[i])));
      EXPECT_EQ(results[i].logits, plain[i].logits);
      const auto tokens = static_cast<size_t>(inputs[i].sequences[0].valid());
      ASSERT_EQ(results[i].token_rows.size(), i % 2 == 0 ? tokens * columns : 0u);
      if (i % 2 != 0) continue;
      const bool one = ReadsOneRow(config);
      const size_t first =
          config.pooling == Pooling::kLast ? tokens - 1 : static_cast<size_t>(inputs[i].sequences[0].pooled_from);
      const size_t end = one ? first + 1 : tokens;
      for (size_t c = 0; c < columns; ++c) {
        double sum = 0.0;
        for (size_t row = first; row < end; ++row) sum += double{results[i].token_rows[row * columns + c]};
        EXPECT_NEAR(sum / static_cast<double>(end - first), results[i].logits[c], 1e-5) << c;
      }
    }
  }
}

// The prompt's tokens are left out as far as truncation leaves them.
TEST(SentenceFoldersTest, RowsOfThePromptAreLeftOut) {
  const LoadedModel model = LoadModel(SentenceFolder("excluded_prompts") + "/1");
  const auto pooled_from = [&](const std::string& name, const std::string& text, TruncateMode truncate) {
    return model->PrepareText(text, nullptr, truncate, NoBounds(), PromptOf(*model, name))->pooled_from;
  };
  EXPECT_EQ(pooled_from("query", "the cat", TruncateMode::kRefuse), 5);  // [CLS] is the good dog
  EXPECT_EQ(pooled_from("document", "the cat", TruncateMode::kRefuse), 0);
  EXPECT_EQ(pooled_from("", "the cat", TruncateMode::kRefuse), 0);
  std::string text;
  for (int i = 0; i < 36; ++i) text += "cat ";
  EXPECT_EQ(pooled_from("query", text, TruncateMode::kTail), 5);
  EXPECT_EQ(pooled_from("query", text, TruncateMode::kHead), 3);
  EXPECT_EQ(pooled_from("query", text + text, TruncateMode::kHead), 1) << "[CLS] is no part of the text";
}

// sentence-transformers takes the last token of a prompt for the template's only where a file names it.
TEST(SentenceFoldersTest, ATokenBehindThePromptCountsWhereNoFileNamesIt) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path() + "/1";
  fs::copy(SentenceFolder("excluded_prompts") + "/1", folder, fs::copy_options::recursive);
  json tokens = ReadFile(folder / "tokenizer_config.json");
  EXPECT_EQ(LoadModel(folder)->config().prompts.at("query").tokens, 5);
  tokens["sep_token"] = nullptr;
  WriteFile(folder / "tokenizer_config.json", tokens.dump());
  EXPECT_EQ(LoadModel(folder)->config().prompts.at("query").tokens, 6);
  tokens["sep_token"] = "[SEP]";
  tokens["model_max_length"] = 1e30;
  WriteFile(folder / "tokenizer_config.json", tokens.dump());
  json settings = ReadFile(folder / "sentence_bert_config.json");
  settings["max_seq_length"] = 1e30;
  WriteFile(folder / "sentence_bert_config.json", settings.dump());
  EXPECT_EQ(LoadModel(folder)->config().max_text_tokens, 0) << "no limit";
}

TEST(SentenceFoldersTest, FieldsThatMakeNoDifferenceAreListed) {
  const auto skipped = [](const std::string& name) { return LoadModel(SentenceFolder(name) + "/1")->skipped_fields(); };
  const std::vector<std::string> expected = {"config_sentence_transformers.json: __version__",
                                             "config_sentence_transformers.json: similarity_fn_name"};
  EXPECT_EQ(skipped("mean"), expected);
  EXPECT_EQ(skipped("cross_encoder"), std::vector<std::string>{"config_sentence_transformers.json: __version__"});
  EXPECT_EQ(skipped("old_cross_encoder"), std::vector<std::string>());
}

}  // namespace
}  // namespace edgewise::testing
