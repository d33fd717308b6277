// Chats of Llama's and Qwen's folders against transformers in float64 (tests/reference/make_chat_folders.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/forward/generation.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;

using Ids = std::vector<int32_t>;

constexpr absl::CivilSecond kNow(2026, 3, 4, 15, 6, 7);  // as in make_chat_goldens.py

std::string ChatFolder(const std::string& name) { return tests::TestdataFolder() + "_chat/" + name; }

json ChatsOf(const std::string& name) {
  std::ifstream file(ChatFolder(name) + "/golden.json");
  return json::parse(file)["chats"];
}

std::vector<chat::Message> MessagesOf(const json& chat) {
  std::vector<chat::Message> messages;
  for (const json& one : chat["messages"]) messages.push_back({one["role"], one["content"]});
  return messages;
}

class ChatFoldersTest : public ::testing::TestWithParam<const char*> {
 protected:
  const LoadedModel model_ = LoadModel(ChatFolder(GetParam()) + "/1");
};

TEST_P(ChatFoldersTest, PromptsAreThoseOfTransformers) {
  ASSERT_TRUE(model_->chat_template().ok()) << model_->chat_template().status();
  for (const json& chat : ChatsOf(GetParam())) {
    const absl::StatusOr<std::string> prompt = model_->chat_template()->Render(MessagesOf(chat), kNow);
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_EQ(*prompt, chat["prompt"].get<std::string>());
    const absl::StatusOr<ModelSequence> sequence = model_->PrepareChat(MessagesOf(chat), kNow);
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    EXPECT_EQ(sequence->token_ids, chat["token_ids"].get<Ids>()) << "no token of the tokenizer's own template";
  }
}

TEST_P(ChatFoldersTest, GreedyAnswersAreThoseOfTransformers) {
  bool stops = false;
  for (const json& chat : ChatsOf(GetParam())) {
    GenerationOptions options;
    options.max_new_tokens = chat["max_new_tokens"].get<uint32_t>();
    auto generation = Generation::Create(*model_, *model_->PrepareChat(MessagesOf(chat), kNow), options);
    ASSERT_TRUE(generation.ok()) << generation.status();
    Ids got;
    std::string text;
    while (!(*generation)->done()) {
      ASSERT_TRUE((*generation)->Step().ok());
      while (const auto token = (*generation)->TakeToken()) {
        got.push_back(token->token_id);
        text += token->text;
      }
    }
    const auto want = chat["new_token_ids"].get<Ids>();
    ASSERT_EQ(chat["sure"], want.size());
    EXPECT_EQ(got, want);
    EXPECT_EQ(text, chat["new_text"].get<std::string>());
    EXPECT_EQ((*generation)->finish_reason() == FinishReason::kStop, chat["finish"] == "stop");
    stops = stops || chat["finish"] == "stop";
  }
  EXPECT_TRUE(stops);
}

INSTANTIATE_TEST_SUITE_P(Folders, ChatFoldersTest, ::testing::Values("llama3", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ChatDateTest, AnotherDayIsAnotherPromptWhereTheTemplateTellsIt) {
  constexpr absl::CivilSecond kLater(2031, 11, 14);
  const auto prompt = [](const char* name, absl::CivilSecond now) {
    const absl::StatusOr<ModelSequence> sequence =
        LoadModel(ChatFolder(name) + "/1")->PrepareChat({{"user", "What day is it?"}}, now);
    EXPECT_TRUE(sequence.ok()) << sequence.status();
    return sequence.ok() ? sequence->token_ids : Ids();
  };
  EXPECT_NE(prompt("llama3", kNow), prompt("llama3", kLater));
  EXPECT_EQ(prompt("llama3", kNow), prompt("llama3", kNow + 3600)) << "it tells the day alone";
  EXPECT_EQ(prompt("qwen3", kNow), prompt("qwen3", kLater));
}

}  // namespace
}  // namespace edgewise::testing
