// Special tokens of every file that names some, and tokenizers that are not read or larger than their model.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/field_error.h"
#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr absl::CivilSecond kNow(2026, 3, 4, 15, 6, 7);

// A copy of a folder of tests/testdata*, which a test changes before it loads it.
class TokenFoldersTest : public ::testing::Test {
 protected:
  void CopyOf(const std::string& name) {
    fs::remove_all(Folder());
    fs::copy(tests::TestdataFolder() + name + "/1", Folder(), fs::copy_options::recursive);
  }
  fs::path Folder() const { return temporary_.path() + "/1"; }
  json Read(const std::string& name) const {
    std::ifstream file(Folder() / name);
    return json::parse(file);
  }
  void Write(const std::string& name, const json& value) const { WriteFile(Folder() / name, value.dump()); }
  LoadedModel Load() const { return LoadModel(Folder()); }

  // The chat model with these files beside tokenizer.json, and the template for one message.
  LoadedModel Chat(json config, const json& map, const std::string& source) {
    CopyOf("_chat/qwen3");
    config["tokenizer_class"] = "PreTrainedTokenizerFast";
    config["chat_template"] = source;
    Write("tokenizer_config.json", config);
    if (!map.is_null()) Write("special_tokens_map.json", map);
    return Load();
  }

 private:
  const TemporaryFolder temporary_;
};

const std::vector<chat::Message> kHello = {{"user", "hello"}};
constexpr char kBothEnds[] = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}";

TEST_F(TokenFoldersTest, ChatsHaveTheTokensOfSpecialTokensMap) {
  const json map = {{"bos_token", "<|im_start|>"}, {"eos_token", {{"content", "<|im_end|>"}, {"lstrip", false}}}};
  const std::string prompt = "<|im_start|>hello<|im_end|>";
  for (const json& config : {json::object(), json{{"bos_token", nullptr}, {"eos_token", "<|endoftext|>"}}}) {
    const LoadedModel model = Chat(config, map, kBothEnds);
    ASSERT_TRUE(model->chat_template().ok()) << model->chat_template().status();
    EXPECT_EQ(*model->chat_template()->Render(kHello, kNow), prompt);
    const auto sequence = model->PrepareChat(kHello, kNow);
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    EXPECT_EQ(sequence->token_ids.front(), model->tokenizer()->Id("<|im_start|>"));
    EXPECT_EQ(sequence->token_ids.back(), model->tokenizer()->Id("<|im_end|>"));
  }
  // Where tokenizer_config.json has added_tokens_decoder, transformers does not read the map.
  const LoadedModel model =
      Chat({{"bos_token", nullptr}, {"eos_token", "<|endoftext|>"}, {"added_tokens_decoder", json::object()}}, map,
           kBothEnds);
  EXPECT_EQ(*model->chat_template()->Render(kHello, kNow), "hello<|endoftext|>");
}

TEST_F(TokenFoldersTest, ATemplateThatNamesATokenOfNoFileStopsNoLoadAndIsRefused) {
  const LoadedModel model = Chat({{"eos_token", "<|im_end|>"}}, nullptr, kBothEnds);
  const absl::Status status = model->PrepareChat(kHello, kNow).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(FieldOf(status), "messages");
  EXPECT_NE(
      status.message().find("tokenizer_config.json: chat_template: line 1: it writes bos_token, which no file of the "
                            "folder gives"),
      std::string::npos)
      << status;
}

TEST_F(TokenFoldersTest, ChatsTakeTemplateArguments) {
  const LoadedModel model =
      Chat({{"eos_token", "<|im_end|>"}}, nullptr,
           "{{ messages[0].content }}{% if thinks is false %}, quickly{% endif %}{{ eos_token }}");
  const auto ids = [&](const std::string& arguments) {
    const auto sequence = model->PrepareChat(kHello, kNow, NoBounds(), arguments);
    EXPECT_TRUE(sequence.ok()) << sequence.status();
    return sequence.ok() ? sequence->token_ids : std::vector<int32_t>();
  };
  EXPECT_EQ(ids(""), ids(R"({"thinks": true})"));
  EXPECT_EQ(ids(R"({"thinks": false})"), *model->Tokenize("hello, quickly<|im_end|>"));
  EXPECT_EQ(FieldOf(model->PrepareChat(kHello, kNow, NoBounds(), "[]").status()), "template_arguments");
  EXPECT_EQ(FieldOf(model->PrepareChat(kHello, kNow, NoBounds(), R"({"eos_token": ""})").status()),
            "template_arguments.eos_token");
}

TEST_F(TokenFoldersTest, TheTemplateForToolsIsThatOfTransformers) {
  const json tools =
      json::array({{{"name", "default"}, {"template", "plain"}}, {{"name", "tool_use"}, {"template", "tools"}}});
  CopyOf("_chat/qwen3");
  Write("tokenizer_config.json", {{"chat_template", tools}});
  const auto prompt = [&](const std::string& arguments) {
    return *Load()->chat_template()->Render(kHello, kNow, NoBounds(), *chat::Arguments::Read(arguments));
  };
  EXPECT_EQ(prompt(""), "plain");
  EXPECT_EQ(prompt(R"({"tools": [{}]})"), "tools");
  WriteFile(Folder() / "chat_template.jinja", "of a file");
  EXPECT_EQ(prompt(R"({"tools": [{}]})"), "of a file") << "files count alone where there is one";
  fs::create_directory(Folder() / "additional_chat_templates");
  WriteFile(Folder() / "additional_chat_templates" / "tool_use.jinja", "tools of a file");
  EXPECT_EQ(prompt(R"({"tools": [{}]})"), "tools of a file");
  EXPECT_EQ(prompt(R"({"tools": null})"), "of a file");
}

TEST_F(TokenFoldersTest, WordsBeyondTheModelAreRefusedWhereATextHasThem) {
  CopyOf("_hugging_face/bert_sequence");
  json file = Read("tokenizer.json");
  file["model"]["vocab"]["zebra"] = 40;
  Write("tokenizer.json", file);
  const LoadedModel model = Load();
  EXPECT_TRUE(model->PrepareText("the cat", nullptr, TruncateMode::kRefuse).ok());
  EXPECT_EQ(model->PrepareText("the zebra", nullptr, TruncateMode::kRefuse).status().message(),
            "text: the tokenizer makes token 40, \"zebra\", of it; the model has 40 tokens (vocab_size)");
}

TEST_F(TokenFoldersTest, ANamedTokenThatTokenizerJsonLacksComesBehindTheOthers) {
  CopyOf("_hugging_face/bert_sequence");
  Write("special_tokens_map.json", {{"bos_token", "<new>"}});
  json config = Read("tokenizer_config.json");
  config.erase("added_tokens_decoder");
  Write("tokenizer_config.json", config);
  const LoadedModel model = Load();
  EXPECT_EQ(model->PrepareText("the <new>", nullptr, TruncateMode::kRefuse).status().message(),
            "text: the tokenizer makes token 40, \"<new>\", of it; the model has 40 tokens (vocab_size)");
}

TEST_F(TokenFoldersTest, BlankLinesBehindVocabTxtAreNoTokensOfTexts) {
  CopyOf("_hugging_face/bert_masked_untied");
  const std::string text = "The [MASK] sat on the mat.";
  const auto before = Load()->PrepareText(text, nullptr, TruncateMode::kRefuse);
  std::ofstream(Folder() / "vocab.txt", std::ios::app) << "\n\n";
  const auto after = Load()->PrepareText(text, nullptr, TruncateMode::kRefuse);
  ASSERT_TRUE(before.ok() && after.ok()) << after.status();
  EXPECT_EQ(after->token_ids, before->token_ids);
}

TEST_F(TokenFoldersTest, ATokenizerThatIsNotReadIsNamedWithWhatToDo) {
  const std::pair<std::vector<const char*>, const char*> cases[] = {
      {{"vocab.json", "merges.txt"}, "vocab.json, merges.txt"},
      {{"tokenizer.model"}, "tokenizer.model"},
      {{"sentencepiece.bpe.model"}, "sentencepiece.bpe.model"}};
  for (const auto& [files, shown] : cases) {
    CopyOf("_chat/qwen3");
    fs::remove(Folder() / "tokenizer.json");
    EXPECT_EQ(Load()->config().tokenizer.unread, "");
    for (const char* file : files) WriteFile(Folder() / file, "{}");
    const LoadedModel model = Load();
    const std::string reason =
        "texts are read by tokenizer.json, which the folder lacks (it has " + std::string(shown) +
        "); AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers writes it";
    EXPECT_EQ(model->config().tokenizer.unread, reason);
    EXPECT_EQ(model->Tokenize("hello").status().message(),
              "text: this model has no tokenizer; send token_ids, or mend its folder: " + reason);
  }
}

}  // namespace
}  // namespace edgewise::testing
