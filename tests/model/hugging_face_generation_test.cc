// Texts that Hugging Face language models write, against greedy ones of transformers in float64
// (tests/reference/causal_goldens.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/forward/generation.h"
#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;

std::string ModelFolder(const std::string& name) { return tests::TestdataFolder() + "_hugging_face/" + name; }

json GenerationsOf(const std::string& name) {
  std::ifstream file(ModelFolder(name) + "/golden.json");
  return json::parse(file).value("generations", json::array());
}

std::vector<std::string> CasesWithGenerations() {
  std::vector<std::string> cases;
  for (const auto& entry : std::filesystem::directory_iterator(tests::TestdataFolder() + "_hugging_face")) {
    const std::string name = entry.path().filename().string();
    if (!GenerationsOf(name).empty()) cases.push_back(name);
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

struct Written {
  std::vector<int32_t> ids;
  std::vector<std::string> texts;  // of each token
  std::string text;
  FinishReason finish = FinishReason::kNone;
};

Written Write(const Model& model, ModelSequence prompt, const GenerationOptions& options) {
  Written written;
  auto generation = Generation::Create(model, std::move(prompt), options);
  EXPECT_TRUE(generation.ok()) << generation.status();
  while (generation.ok() && !(*generation)->done()) {
    const absl::Status status = (*generation)->Step();
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return written;
    if (const auto token = (*generation)->TakeToken()) {
      written.ids.push_back(token->token_id);
      written.texts.push_back(token->text);
      written.text += token->text;
    }
  }
  if (generation.ok()) written.finish = (*generation)->finish_reason();
  return written;
}

Written WriteGolden(const Model& model, const json& entry, std::vector<std::string> stop = {}) {
  GenerationOptions options;
  options.max_new_tokens = entry["max_new_tokens"].get<uint32_t>();
  options.overflow = Overflow::kStop;
  options.stop = std::move(stop);
  auto prompt = entry.contains("text")
                    ? model.PrepareText(entry["text"].get<std::string>(), nullptr, TruncateMode::kRefuse)
                    : model.Prepare(entry["token_ids"].get<std::vector<int32_t>>(), TruncateMode::kRefuse);
  EXPECT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->token_ids, entry["token_ids"].get<std::vector<int32_t>>());
  return Write(model, *std::move(prompt), options);
}

class HuggingFaceGenerationTest : public ::testing::TestWithParam<std::string> {};

TEST_P(HuggingFaceGenerationTest, GreedyTextsAreThoseOfTransformers) {
  const LoadedModel model = LoadModel(ModelFolder(GetParam()) + "/1");
  const json golden = GenerationsOf(GetParam());
  bool stops = false, full = false, whole = false;
  for (const json& entry : golden) {
    const auto expected = entry["new_token_ids"].get<std::vector<int32_t>>();
    const size_t sure = entry["sure"].get<size_t>(), context = model->config().max_position_embeddings;
    const Written written = WriteGolden(*model, entry);
    ASSERT_GE(written.ids.size(), sure) << entry;
    EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + static_cast<int64_t>(sure), written.ids.begin()))
        << entry;
    if (sure < expected.size()) continue;
    EXPECT_EQ(written.ids.size(), expected.size()) << entry;
    EXPECT_EQ(written.text, entry["new_text"].get<std::string>());
    EXPECT_EQ(written.finish == FinishReason::kStop, entry["finish"] == "stop") << entry;
    stops = stops || written.finish == FinishReason::kStop;
    full = full || entry["token_ids"].size() + expected.size() == context + 1;
    whole = whole || written.finish == FinishReason::kLength;
  }
  EXPECT_TRUE(stops && full && whole) << "each way to end has a text that is sure";
}

INSTANTIATE_TEST_SUITE_P(Folders, HuggingFaceGenerationTest, ::testing::ValuesIn(CasesWithGenerations()),
                         [](const auto& info) { return info.param; });

// The generation whose text is the longest of those that end by themselves.
json Ended(const std::string& name) {
  json longest;
  for (const json& entry : GenerationsOf(name)) {
    const bool longer = longest.is_null() || entry["new_token_ids"].size() > longest["new_token_ids"].size();
    if (entry["finish"] == "stop" && longer) longest = entry;
  }
  return longest;
}

TEST(HuggingFaceGenerationsTest, AnEndTokenIsATokenWithoutText) {
  const LoadedModel model = LoadModel(ModelFolder("gpt2_causal") + "/1");
  EXPECT_EQ(model->config().end_token_ids, std::vector<int32_t>{2});  // of config.json
  EXPECT_EQ(LoadModel(ModelFolder("gpt2_untied") + "/1")->config().end_token_ids, (std::vector<int32_t>{0, 2}));
  const Written written = WriteGolden(*model, Ended("gpt2_causal"));
  EXPECT_EQ(written.ids.back(), 2);
  EXPECT_EQ(written.texts.back(), "");
}

TEST(HuggingFaceGenerationsTest, AStopStringEndsTheTextBeforeIt) {
  const LoadedModel model = LoadModel(ModelFolder("gpt2_causal") + "/1");
  const json entry = Ended("gpt2_causal");
  const std::string text = entry["new_text"].get<std::string>();
  ASSERT_GE(text.size(), 6u);
  const std::string stop = text.substr(text.size() / 2, 2);
  const Written written = WriteGolden(*model, entry, {stop});
  EXPECT_EQ(written.text, text.substr(0, text.find(stop)));
  EXPECT_EQ(written.finish, FinishReason::kStop);
  EXPECT_LT(written.ids.size(), entry["new_token_ids"].size());
  // What might have begun a stop string is text when another token ends it.
  EXPECT_EQ(WriteGolden(*model, entry, {text.substr(text.size() - 2) + "never"}).text, text);
}

TEST(HuggingFaceGenerationsTest, WithoutATokenizerThereAreIdsAlone) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path() + "/1";
  std::filesystem::copy(ModelFolder("gpt2_causal") + "/1", folder);
  std::filesystem::remove(folder + "/tokenizer.json");
  const LoadedModel model = LoadModel(folder);
  const json entry = Ended("gpt2_causal");
  const Written written = WriteGolden(*model, entry);
  EXPECT_EQ(written.ids, entry["new_token_ids"].get<std::vector<int32_t>>());
  EXPECT_EQ(written.text, "");
}

}  // namespace
}  // namespace edgewise::testing
