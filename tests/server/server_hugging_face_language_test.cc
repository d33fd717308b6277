// Language models in Hugging Face folders over a real port: texts through their own tokenizer, both ways.
#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/server/generate_calls.h"

namespace edgewise::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json Golden(const std::string& model, const char* part) {
  std::ifstream file(tests::TestdataFolder() + "_hugging_face/" + model + "/golden.json");
  return json::parse(file)[part];
}

v1::GenerateRequest Prompt(const std::string& model, const std::string& text, uint32_t tokens) {
  v1::GenerateRequest request;
  request.set_model(model);
  request.mutable_prompt()->set_text(text);
  request.set_max_new_tokens(tokens);
  request.set_overflow(v1::STOP);
  return request;
}

class ServerHuggingFaceLanguageTest : public ::testing::Test {
 protected:
  TestServer server_{TestOptions(tests::TestdataFolder() + "_hugging_face")};
  v1::PredictResponse response_;
};

TEST_F(ServerHuggingFaceLanguageTest, GenerateWritesWhatTransformersWrites) {
  for (const char* model : {"gpt2_causal", "gpt2_untied"}) {
    for (const json& entry : Golden(model, "generations")) {
      if (!entry.contains("text") || entry["sure"] != entry["new_token_ids"].size()) continue;
      const Generated generated =
          Generate(server_, Prompt(model, entry["text"].get<std::string>(), entry["max_new_tokens"].get<uint32_t>()));
      ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
      EXPECT_EQ(generated.tokens(), entry["new_token_ids"].get<std::vector<int32_t>>());
      EXPECT_EQ(generated.text(), entry["new_text"].get<std::string>());
      EXPECT_EQ(generated.messages.back().finish_reason(), entry["finish"].get<std::string>());
      EXPECT_EQ(generated.messages.back().prompt_tokens(), entry["token_ids"].size()) << "the template's among them";
    }
  }
}

v1::GenerateRequest Chat(const std::string& model, const json& messages) {
  v1::GenerateRequest request;
  request.set_model(model);
  for (const json& one : messages) {
    v1::ChatMessage& message = *request.add_messages();
    message.set_role(one["role"].get<std::string>());
    message.set_content(one["content"].get<std::string>());
  }
  request.set_max_new_tokens(8);
  return request;
}

TEST_F(ServerHuggingFaceLanguageTest, AChatIsAnsweredAsTransformersAnswersIt) {
  int special = 0;
  for (const json& entry : Golden("gpt2_untied", "chats")) {
    const v1::GenerateRequest request = Chat("gpt2_untied", entry["messages"]);
    const Generated generated = Generate(server_, request);
    ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
    ASSERT_EQ(entry["sure"], entry["new_token_ids"].size());
    EXPECT_EQ(generated.tokens(), entry["new_token_ids"].get<std::vector<int32_t>>());
    EXPECT_EQ(generated.text(), entry["new_text"].get<std::string>());
    EXPECT_EQ(generated.messages.back().prompt_tokens(), entry["token_ids"].size());
    // The same tokens sent as they are give the same numbers.
    v1::GenerateRequest tokens = request;
    tokens.clear_messages();
    for (const json& id : entry["token_ids"]) tokens.mutable_prompt()->mutable_token_ids()->add_values(id.get<int>());
    const Generated same = Generate(server_, tokens);
    ASSERT_EQ(same.tokens(), generated.tokens());
    for (size_t i = 0; i < same.messages.size(); ++i) {
      EXPECT_EQ(same.messages[i].log_probability(), generated.messages[i].log_probability());
    }
    // What a user writes is searched for special tokens, as transformers does it.
    const std::string said = entry["messages"].back()["content"].get<std::string>();
    special += said.find("<|im_end|>") != std::string::npos;
  }
  EXPECT_EQ(special, 1);
}

// The template writes the date, so the answer is the golden one on the golden day.
TEST(ServerChatTest, TheDateIsThatOfTheServersClock) {
  std::ifstream file(tests::TestdataFolder() + "_chat/llama3/golden.json");
  const json chat = json::parse(file)["chats"][0];
  v1::GenerateRequest request = Chat("llama3", chat["messages"]);
  request.set_max_new_tokens(chat["max_new_tokens"].get<uint32_t>());
  ServerOptions options = TestOptions(tests::TestdataFolder() + "_chat");
  std::atomic<int> day = 4;
  options.local_time = [&day] { return absl::CivilSecond(2026, 3, day, 23, 59, 59); };
  TestServer server(options);
  const Generated then = Generate(server, request);
  ASSERT_TRUE(then.status.ok()) << then.status.error_message();
  EXPECT_EQ(then.tokens(), chat["new_token_ids"].get<std::vector<int32_t>>());
  EXPECT_EQ(then.messages.back().prompt_tokens(), chat["token_ids"].size());
  day = 5;
  const Generated later = Generate(server, request);
  ASSERT_TRUE(later.status.ok()) << later.status.error_message();
  EXPECT_NE(later.messages[0].log_probability(), then.messages[0].log_probability());
}

TEST_F(ServerHuggingFaceLanguageTest, AChatThatMakesNoPromptIsRefused) {
  const auto refused = [&](const std::string& model, const json& messages) {
    const Generated generated = Generate(server_, Chat(model, messages));
    EXPECT_EQ(generated.status.error_code(), grpc::INVALID_ARGUMENT);
    return generated.status.error_message();
  };
  const auto user = [](const std::string& content) { return json::array({{{"role", "user"}, {"content", content}}}); };
  EXPECT_EQ(refused("gpt2_causal", user("a")),
            "messages is set; the model's folder has no chat template, so give a prompt");
  EXPECT_EQ(refused("gpt2_untied", json::array({{{"role", "tool"}, {"content", "4"}}})),
            "messages make no prompt by the model's chat template: no tools here");
  EXPECT_THAT(refused("gpt2_untied", user(std::string(100, 'a'))), HasSubstr("; the model takes 40"));
}

TEST_F(ServerHuggingFaceLanguageTest, AModelSaysWhetherItTakesMessages) {
  v1::ListModelsResponse listed;
  grpc::ClientContext context;
  ASSERT_TRUE(server_.stub().ListModels(&context, {}, &listed).ok());
  for (const v1::ModelInfo& model : listed.models()) {
    EXPECT_EQ(model.takes_messages(), model.name() == "gpt2_untied") << model.name();
  }
}

TEST_F(ServerHuggingFaceLanguageTest, APromptIsCutBehindTheTemplatesToken) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += " cat";
  v1::GenerateRequest request = Prompt("gpt2_untied", text, 2);
  EXPECT_THAT(
      Generate(server_, request).status.error_message(),
      HasSubstr("prompt.text has more than 40 tokens, those of the tokenizer's template included; the model takes 40"));
  request.mutable_prompt()->set_truncate(v1::HEAD);
  const Generated generated = Generate(server_, request);
  ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
  EXPECT_EQ(generated.messages.back().prompt_tokens(), 40u);
  EXPECT_EQ(generated.messages.back().truncated_tokens(), 141u);
}

TEST_F(ServerHuggingFaceLanguageTest, PredictScoresATextAndNamesTokens) {
  for (const json& entry : Golden("gpt2_untied", "texts")) {
    v1::PredictRequest request;
    request.set_model("gpt2_untied");
    v1::Sequence& sequence = *request.add_inputs()->mutable_sequence();
    sequence.set_text(entry["text"].get<std::string>());
    v1::Truncate truncate = v1::REFUSE;
    ASSERT_TRUE(v1::Truncate_Parse(entry["truncate"].get<std::string>(), &truncate));
    sequence.set_truncate(truncate);
    request.mutable_outputs()->set_top_k(3);
    const grpc::Status status = server_.Predict(request, response_);
    ASSERT_TRUE(status.ok()) << status.error_message();
    double expected = 0.0;
    for (const json& value : entry["token_log_likelihoods"]) expected += value.get<double>();
    EXPECT_NEAR(response_.predictions(0).log_likelihood(), expected, 1e-4 * std::abs(expected));
  }
  v1::GetModelRequest get;
  get.set_model("gpt2_untied");
  v1::GetModelResponse got;
  grpc::ClientContext context;
  ASSERT_TRUE(server_.stub().GetModel(&context, get, &got).ok());
  ASSERT_EQ(got.model().labels_size(), 40);
  EXPECT_EQ(got.model().labels(0), "<|endoftext|>");
  EXPECT_EQ(got.model().labels(6), " ");
  EXPECT_EQ(got.model().labels(8), "a");
  const v1::Prediction::Top& top = response_.predictions(0).top(0);
  EXPECT_EQ(top.label(), got.model().labels(top.label_id()));
}

TEST_F(ServerHuggingFaceLanguageTest, ALongTextIsScoredInWindows) {
  v1::PredictRequest request;
  request.set_model("gpt2_untied");
  std::string text;
  for (int i = 0; i < 60; ++i) text += " cat";
  request.add_inputs()->mutable_sequence()->set_text(text);
  const grpc::Status status = server_.Predict(request, response_);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response_.predictions(0).scored_tokens(), 180u);
}

}  // namespace
}  // namespace edgewise::server
