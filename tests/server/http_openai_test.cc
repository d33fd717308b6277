// OpenAI's API over a real port: the same answers as gRPC's in that API's shapes.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/server/http_fixture.h"

namespace edgewise::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kModel[] = "gpt2_untied";  // with a chat template

class OpenAiTest : public ::testing::Test {
 protected:
  HttpServerFixture http_{HttpOptions(tests::TestdataFolder() + "_hugging_face")};

  std::string Written(const v1::GenerateRequest& request) {
    const Generated generated = Generate(http_.server, request);
    EXPECT_TRUE(generated.status.ok()) << generated.status.error_message();
    return generated.text();
  }
  static v1::GenerateRequest Sampled(uint64_t seed, uint32_t tokens) {
    v1::GenerateRequest request;
    request.set_model(kModel);
    request.set_max_new_tokens(tokens);
    request.set_temperature(1.0);
    request.mutable_ensemble()->set_seed(seed);
    request.set_overflow(v1::STOP);
    return request;
  }
};

json Chat(uint64_t seed = 7) {
  return {
      {"model", kModel}, {"messages", {{{"role", "user"}, {"content", "hello"}}}}, {"max_tokens", 12}, {"seed", seed}};
}

TEST_F(OpenAiTest, ModelsAreThoseThatServe) {
  const json list = json::parse(http_.Get("/v1/models").body);
  EXPECT_EQ(list["object"], "list");
  std::vector<std::string> ids;
  for (const json& model : list["data"]) ids.push_back(model["id"]);
  EXPECT_THAT(ids, ::testing::Contains(kModel));
  for (const std::string& id : {std::string(kModel), std::string(kModel) + "@1", std::string(kModel) + "%401"}) {
    const json model = json::parse(http_.Get("/v1/models/" + id).body);
    EXPECT_EQ(model["object"], "model") << model;
    EXPECT_EQ(model["edgewise"]["task"], "causal-lm");
  }
  for (const char* id : {"nothing", "gpt2_untied@2"}) {
    const HttpReply unknown = http_.Get(std::string("/v1/models/") + id);
    EXPECT_EQ(unknown.code, 404);
    const json error = json::parse(unknown.body)["error"];
    EXPECT_EQ(error["code"], "model_not_found");
    EXPECT_EQ(error["param"], "model");
    EXPECT_EQ(error["type"], "invalid_request_error");
  }
}

TEST_F(OpenAiTest, ACompletionIsTheTextThatGenerateWrites) {
  v1::GenerateRequest request = Sampled(7, 12);
  request.mutable_prompt()->set_text("hello");
  const std::string text = Written(request);
  const json answer =
      http_.Answer("/v1/completions", {{"model", kModel}, {"prompt", "hello"}, {"max_tokens", 12}, {"seed", 7}});
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["choices"][0]["text"], text);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["choices"][0]["edgewise"]["seed"], 7);
  EXPECT_EQ(answer["choices"][0]["edgewise"]["density"], 1.0);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 12);
  EXPECT_EQ(answer["usage"]["total_tokens"], 12 + answer["usage"]["prompt_tokens"].get<int>());
  // Negative seeds are those of 64 bits.
  request.mutable_ensemble()->set_seed(~uint64_t{0});
  EXPECT_EQ(
      http_.Answer(
          "/v1/completions",
          {{"model", kModel}, {"prompt", "hello"}, {"max_tokens", 12}, {"seed", ~uint64_t{0}}})["choices"][0]["text"],
      Written(request));
  EXPECT_EQ(
      http_.Answer("/v1/completions",
                   {{"model", kModel}, {"prompt", "hello"}, {"max_tokens", 12}, {"seed", -1}})["choices"][0]["text"],
      Written(request));
}

TEST_F(OpenAiTest, AChatIsTheTextThatGenerateWritesWholeOrAsAStream) {
  v1::GenerateRequest request = Sampled(7, 12);
  v1::ChatMessage& message = *request.add_messages();
  message.set_role("user");
  message.set_content("hello");
  const std::string text = Written(request);
  const json answer = http_.Answer("/v1/chat/completions", Chat());
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], text);

  json streamed = Chat();
  streamed["stream"] = true;
  streamed["stream_options"] = {{"include_usage", true}};
  std::string joined;
  const std::vector<json> events = http_.Events("/v1/chat/completions", streamed);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events[0]["choices"][0]["delta"], json({{"role", "assistant"}, {"content", ""}}));
  for (const json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["id"], events[0]["id"]);
    if (event["choices"].empty()) continue;
    joined += event["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(joined, text);
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], answer["choices"][0]["finish_reason"]);
  EXPECT_EQ(events.back()["usage"], answer["usage"]);
  EXPECT_THAT(http_.Post("/v1/chat/completions", streamed).body, ::testing::EndsWith("data: [DONE]\n\n"));
}

TEST_F(OpenAiTest, TheFirstOfSeveralChoicesIsTheOneAlone) {
  json body = Chat(3);
  const std::string alone = http_.Answer("/v1/chat/completions", body)["choices"][0]["message"]["content"];
  body["n"] = 3;
  const json choices = http_.Answer("/v1/chat/completions", body)["choices"];
  ASSERT_EQ(choices.size(), 3u);
  EXPECT_EQ(choices[0]["message"]["content"], alone);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(choices[i]["index"], i);
    json same = Chat();
    same["seed"] = choices[i]["edgewise"]["seed"];
    EXPECT_LT(same["seed"].get<uint64_t>(), uint64_t{1} << 53) << "clients read it as a double";
    EXPECT_EQ(http_.Answer("/v1/chat/completions", same)["choices"][0]["message"], choices[i]["message"]);
  }
  EXPECT_NE(choices[0]["edgewise"]["seed"], choices[1]["edgewise"]["seed"]);
  // Each of several prompts has its choices, and is counted once.
  const json answer = http_.Answer(
      "/v1/completions", {{"model", kModel}, {"prompt", {"hello", "a b"}}, {"n", 2}, {"max_tokens", 4}, {"seed", 5}});
  ASSERT_EQ(answer["choices"].size(), 4u);
  EXPECT_LE(answer["usage"]["completion_tokens"], 16);
  int prompt_tokens = 0;
  for (int i = 0; i < 2; ++i) {
    const json one = http_.Answer(
        "/v1/completions", {{"model", kModel}, {"prompt", i == 0 ? "hello" : "a b"}, {"max_tokens", 4}, {"seed", 5}});
    EXPECT_EQ(answer["choices"][2 * i]["text"], one["choices"][0]["text"]);
    prompt_tokens += one["usage"]["prompt_tokens"].get<int>();
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"], prompt_tokens);
}

TEST_F(OpenAiTest, WithoutAMaximumATextEndsWithTheContext) {
  const json answer = http_.Answer("/v1/completions", {{"model", kModel}, {"prompt", "hello"}, {"seed", 7}});
  const json model = json::parse(http_.Get(std::string("/v1/models/") + kModel).body);
  EXPECT_LE(answer["usage"]["total_tokens"].get<int>(), model["edgewise"]["max_tokens"].get<int>() + 1);
  EXPECT_THAT(answer["choices"][0]["finish_reason"], ::testing::AnyOf("length", "stop"));
}

TEST_F(OpenAiTest, ALongPromptIsRefusedOrCutAndAChatIsNotCut) {
  std::string text = "red";
  for (int i = 0; i < 50; ++i) text += " cat";
  json body = {{"model", kModel}, {"prompt", text}, {"max_tokens", 1}, {"seed", 7}};
  EXPECT_EQ(http_.Post("/v1/completions", body).code, 400);
  body["edgewise"] = {{"truncate", "HEAD"}};
  body["max_tokens"] = 9;  // beyond the context
  v1::GenerateRequest request = Sampled(7, 9);
  request.set_overflow(v1::HALVE);
  request.mutable_prompt()->set_text(text);
  request.mutable_prompt()->set_truncate(v1::HEAD);
  EXPECT_EQ(http_.Answer("/v1/completions", body)["choices"][0]["text"], Written(request));
  EXPECT_EQ(http_.Answer("/v1/completions", body)["usage"]["completion_tokens"], 9);
  body.erase("max_tokens");
  EXPECT_EQ(json::parse(http_.Post("/v1/completions", body).body)["error"]["param"], "max_tokens");
  body["max_tokens"] = 9;
  json unknown = body;
  unknown["edgewise"]["truncate"] = 7;
  EXPECT_EQ(json::parse(http_.Post("/v1/completions", unknown).body)["error"]["param"], "edgewise.truncate");
  body["echo"] = true;
  json chat = Chat();
  chat["edgewise"] = body["edgewise"];
  for (const auto& [path, refused] : {std::pair("/v1/completions", body), {"/v1/chat/completions", chat}}) {
    const HttpReply reply = http_.Post(path, refused);
    EXPECT_EQ(reply.code, 400);
    EXPECT_EQ(json::parse(reply.body)["error"]["param"], "edgewise.truncate") << reply.body;
  }
}

TEST_F(OpenAiTest, ScoresOfPromptsMayEndWithinAStepOfTheChoices) {
  const json prompts = std::vector<std::string>(16, "the cat sat on the mat");
  const json body = {{"model", kModel}, {"prompt", prompts}, {"n", 8},   {"max_tokens", 8},
                     {"logprobs", 5},   {"echo", true},      {"seed", 3}};
  const json first = http_.Answer("/v1/completions", body)["choices"];
  ASSERT_EQ(first.size(), 128u);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(http_.Answer("/v1/completions", body)["choices"], first);
}

TEST_F(OpenAiTest, ContentMayComeInPartsAndFromADeveloper) {
  const auto write = [&](const json& messages) {
    json body = Chat();
    body["messages"] = messages;
    return http_.Answer("/v1/chat/completions", body)["choices"][0]["message"]["content"];
  };
  EXPECT_EQ(write({{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "hello"}}}}}}),
            write({{{"role", "user"}, {"content", "hello"}}}));
  EXPECT_EQ(write({{{"role", "developer"}, {"content", "be kind"}}, {{"role", "user"}, {"content", "hello"}}}),
            write({{{"role", "system"}, {"content", "be kind"}}, {{"role", "user"}, {"content", "hello"}}}));
}

TEST_F(OpenAiTest, FieldsThatAskForNothingAreTaken) {
  json body = Chat();
  const json plain = http_.Answer("/v1/chat/completions", body)["choices"][0]["message"];
  for (const auto& [field, value] : std::vector<std::pair<std::string, json>>{{"user", "me"},
                                                                              {"metadata", {{"a", "b"}}},
                                                                              {"store", false},
                                                                              {"service_tier", "auto"},
                                                                              {"response_format", {{"type", "text"}}},
                                                                              {"tools", json::array()},
                                                                              {"tool_choice", "auto"},
                                                                              {"presence_penalty", 0},
                                                                              {"frequency_penalty", 0.0},
                                                                              {"logit_bias", json::object()},
                                                                              {"logprobs", false},
                                                                              {"top_logprobs", nullptr},
                                                                              {"top_p", 1},
                                                                              {"temperature", 1.0},
                                                                              {"n", 1},
                                                                              {"stop", nullptr},
                                                                              {"parallel_tool_calls", true},
                                                                              {"prompt_cache_retention", "24h"},
                                                                              {"field_of_tomorrow", nullptr},
                                                                              {"modalities", {"text"}}}) {
    body[field] = value;
  }
  body["messages"][0]["name"] = "bob";
  body["messages"][0]["reasoning_content"] = nullptr;
  EXPECT_EQ(http_.Answer("/v1/chat/completions", body)["choices"][0]["message"], plain);
}

TEST_F(OpenAiTest, FieldsThatAreNotServedAreNamed) {
  const auto refused = [&](const std::string& path, const json& more, const std::string& param) {
    json body = path == "/v1/completions" ? json{{"model", kModel}, {"prompt", "a"}} : Chat();
    body.update(more);
    const HttpReply reply = http_.Post(path, body);
    EXPECT_EQ(reply.code, 400) << more;
    const json error = json::parse(reply.body)["error"];
    EXPECT_EQ(error["param"], param) << error;
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_THAT(error["message"].get<std::string>(), ::testing::StartsWith(param));
  };
  const std::string chat = "/v1/chat/completions", completions = "/v1/completions";
  refused(completions, {{"suffix", "x"}}, "suffix");
  refused(completions, {{"best_of", 2}}, "best_of");
  refused(completions, {{"echo", true}, {"stream", true}}, "echo");
  refused(completions, {{"max_tokens", 0}}, "max_tokens");
  refused(chat, {{"echo", true}}, "echo");
  refused(completions, {{"logprobs", 21}}, "logprobs");
  refused(completions, {{"logprobs", 2.5}}, "logprobs");
  refused(completions, {{"seed", "5"}}, "seed");
  refused(completions, {{"seed", 1.5}}, "seed");
  refused(completions, {{"seed", 1e20}}, "seed");
  refused(chat, {{"tools", 5}}, "tools");
  refused(completions, {{"logprobs", true}}, "logprobs");
  refused(completions, {{"logprobs", 1}, {"top_logprobs", 1}}, "top_logprobs");
  refused(chat, {{"logprobs", 1}}, "logprobs");
  refused(chat, {{"top_logprobs", 1}}, "top_logprobs");
  refused(chat, {{"logprobs", true}, {"top_logprobs", 21}}, "top_logprobs");
  refused(chat, {{"frequency_penalty", -2.5}}, "frequency_penalty");
  refused(chat, {{"edgewise", {{"min_p", 2}}}}, "edgewise.min_p");
  refused(chat, {{"edgewise", {{"repetition_penalty", 0}}}}, "edgewise.repetition_penalty");
  refused(completions, {{"messages", Chat()["messages"]}}, "messages");
  refused(completions, {{"tools", {{{"type", "function"}}}}}, "tools");
  refused(chat, {{"logit_bias", {{"5", 1}}}}, "logit_bias");
  refused(chat, {{"response_format", {{"type", "json_object"}}}}, "response_format");
  refused(chat, {{"tool_choice", "required"}}, "tool_choice");
  refused(chat, {{"presence_penalty", 2.5}}, "presence_penalty");
  refused(chat, {{"audio", {{"voice", "x"}}}}, "audio");
  refused(chat, {{"colour", "red"}}, "colour");
  refused(chat, {{"prompt", "x"}}, "prompt");
  refused(chat, {{"n", 0}}, "n");
  refused(chat, {{"n", 129}}, "n");
  refused(chat, {{"max_tokens", 5000}}, "max_tokens");
  refused(chat, {{"max_tokens", 5}, {"max_completion_tokens", 6}}, "max_tokens");
  refused(chat, {{"temperature", -1}}, "temperature");
  refused(chat, {{"top_p", 1.5}}, "top_p");
  refused(chat, {{"stop", json::array({1})}}, "stop");
  refused(chat, {{"stream_options", {{"include_usage", true}}}}, "stream_options");
  refused(chat, {{"edgewise", {{"max_density", 2.0}}}}, "edgewise.max_density");
  refused(chat, {{"edgewise", {{"samples", 10000}}}}, "edgewise.samples");
  refused(chat, {{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}},
          "messages[0].content[0].type");
  refused(chat, {{"messages", {{{"role", "robot"}, {"content", "x"}}}}}, "messages[0].role");
  // Fields have the names that the body gives them, also where ours is another.
  for (const char* name : {"min_p", "repetition_penalty", "priority", "max_new_tokens", "template_arguments"}) {
    refused(completions, {{name, 1}}, name);
  }
  for (const bool echo : {false, true}) {
    const auto prompt = [&](const json& is, const std::string& param) {
      json more = {{"prompt", is}, {"max_tokens", echo ? 0 : 4}};
      if (echo) more["echo"] = true;
      refused(completions, more, param);
    };
    prompt({1, 2, 999999}, "prompt[2]");
    prompt({{1}, {2, 999999}}, "prompt[1][1]");
  }
  // So are the rules of what nothing is written by.
  const auto scored = [&](const json& more, const std::string& param) {
    json body = {{"echo", true}, {"max_tokens", 0}};
    body.update(more);
    refused(completions, body, param);
  };
  scored({{"temperature", -4}}, "temperature");
  scored({{"presence_penalty", 55}}, "presence_penalty");
  scored({{"edgewise", {{"min_p", 9}}}}, "edgewise.min_p");
  scored({{"stop", std::vector<std::string>(30, "x")}}, "stop");
}

TEST_F(OpenAiTest, PenaltiesAndMinPAreThoseOfGenerate) {
  int penalties = 0, rest = 0;  // texts that they change
  for (uint64_t seed = 0; seed < 8; ++seed) {
    v1::GenerateRequest request = Sampled(seed, 12);
    request.mutable_prompt()->set_text("hello");
    const std::string plain = Written(request);
    json body = {{"model", kModel}, {"prompt", "hello"}, {"max_tokens", 12}, {"seed", seed}};
    const auto text = [&] { return http_.Answer("/v1/completions", body)["choices"][0]["text"].get<std::string>(); };
    body["presence_penalty"] = -2;
    body["frequency_penalty"] = -1.5;
    request.set_presence_penalty(-2.0);
    request.set_frequency_penalty(-1.5);
    const std::string penalized = Written(request);
    EXPECT_EQ(text(), penalized);
    body["edgewise"] = {{"min_p", 0.5}, {"repetition_penalty", 3}};
    request.set_min_p(0.5);
    request.set_repetition_penalty(3.0);
    const std::string cut = Written(request);
    EXPECT_EQ(text(), cut);
    penalties += penalized != plain ? 1 : 0;
    rest += cut != penalized ? 1 : 0;
  }
  EXPECT_GT(penalties, 0);
  EXPECT_GT(rest, 0);
}

TEST_F(OpenAiTest, LogprobsAreThoseOfGenerateWholeOrAsAStream) {
  v1::GenerateRequest request = Sampled(7, 12);
  request.set_alternatives(3);
  request.mutable_prompt()->set_text("hello");
  Generated generated = Generate(http_.server, request);
  ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
  json body = {{"model", kModel}, {"prompt", "hello"}, {"max_tokens", 12}, {"seed", 7.0}, {"logprobs", 3.0}};
  const json whole = http_.Answer("/v1/completions", body)["choices"][0]["logprobs"];
  ASSERT_EQ(whole["tokens"].size(), generated.messages.size());
  for (size_t t = 0; t < generated.messages.size(); ++t) {
    const v1::GenerateResponse& token = generated.messages[t];
    EXPECT_EQ(whole["token_logprobs"][t], token.log_probability());
    const json& top = whole["top_logprobs"][t];
    EXPECT_EQ(top[whole["tokens"][t].get<std::string>()], token.log_probability());
    double most = -1e9;
    for (const auto& [name, value] : top.items()) most = std::max(most, value.get<double>());
    EXPECT_EQ(most, token.alternatives(0).log_probability());
    EXPECT_LE(top.size(), 4u);
  }
  EXPECT_EQ(whole["text_offset"][0], 0);
  body["stream"] = true;
  json tokens = json::array(), offsets = json::array();
  for (const json& event : http_.Events("/v1/completions", body)) {
    const json& logprobs = event["choices"][0]["logprobs"];
    if (!logprobs.is_object()) continue;
    for (const json& one : logprobs["tokens"]) tokens.push_back(one);
    for (const json& one : logprobs["text_offset"]) offsets.push_back(one);
  }
  EXPECT_EQ(tokens, whole["tokens"]);
  EXPECT_EQ(offsets, whole["text_offset"]);

  request = Sampled(7, 12);
  v1::ChatMessage& message = *request.add_messages();
  message.set_role("user");
  message.set_content("hello");
  request.set_alternatives(2);
  generated = Generate(http_.server, request);
  json chat = Chat();
  chat["logprobs"] = true;
  chat["top_logprobs"] = 2;
  const json content = http_.Answer("/v1/chat/completions", chat)["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), generated.messages.size());
  for (size_t t = 0; t < content.size(); ++t) {
    const v1::GenerateResponse& token = generated.messages[t];
    EXPECT_EQ(content[t]["logprob"], token.log_probability());
    std::string bytes;
    for (const json& byte : content[t]["bytes"]) bytes += static_cast<char>(byte.get<int>());
    EXPECT_EQ(bytes, token.token_bytes());
    ASSERT_EQ(content[t]["top_logprobs"].size(), 2u);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(content[t]["top_logprobs"][static_cast<size_t>(i)]["logprob"], token.alternatives(i).log_probability());
    }
  }
  chat["stream"] = true;
  json streamed = json::array();
  for (const json& event : http_.Events("/v1/chat/completions", chat)) {
    const json& logprobs = event["choices"][0]["logprobs"];
    if (logprobs.is_object()) streamed.insert(streamed.end(), logprobs["content"].begin(), logprobs["content"].end());
  }
  EXPECT_EQ(streamed, content);
  chat.erase("top_logprobs");
  EXPECT_TRUE(
      http_.Events("/v1/chat/completions", chat)[1]["choices"][0]["logprobs"]["content"][0]["top_logprobs"].empty());
}

// As lm-evaluation-harness asks and reads.
TEST_F(OpenAiTest, AnEchoHasTheScoresOfThePromptBeforeWhatIsWritten) {
  v1::PredictRequest score;
  score.set_model(kModel);
  const std::vector<int> ids = {5, 9, 2, 11, 7};
  v1::Sequence& prompt = *score.add_inputs()->mutable_sequence();
  for (const int id : ids) prompt.mutable_token_ids()->add_values(id);
  score.mutable_outputs()->set_each_sample(true);
  v1::PredictResponse scores;
  ASSERT_TRUE(http_.server.Predict(score, scores).ok());
  const v1::Prediction& expected = scores.predictions(0);

  json body = {{"model", kModel}, {"prompt", {ids}},  {"max_tokens", 3},
               {"seed", 7},       {"temperature", 0}, {"logprobs", 1}};
  const json alone = http_.Answer("/v1/completions", body)["choices"][0];
  body["echo"] = true;
  const json answer = http_.Answer("/v1/completions", body);
  const json& choice = answer["choices"][0];
  const json& logprobs = choice["logprobs"];
  const size_t written = alone["logprobs"]["tokens"].size();
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    ASSERT_EQ(logprobs[list].size(), ids.size() + written) << list;
  }
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  double sum = 0.0;
  for (size_t t = 1; t < ids.size(); ++t) {
    const double p = expected.sample_outputs(0).token_probabilities(static_cast<int>(t) - 1);
    EXPECT_EQ(logprobs["token_logprobs"][t], std::log(p));
    sum += logprobs["token_logprobs"][t].get<double>();
    double most = -1e9;
    for (const auto& [name, value] : logprobs["top_logprobs"][t].items()) most = std::max(most, value.get<double>());
    EXPECT_GE(most, logprobs["token_logprobs"][t]);
    EXPECT_GT(most, std::log(1.0 / 1000)) << "the most probable one";
  }
  EXPECT_NEAR(sum, expected.log_likelihood(), 1e-12);
  EXPECT_EQ(choice["edgewise"]["prompt"]["log_likelihood"], expected.log_likelihood());
  EXPECT_EQ(choice["edgewise"]["prompt"]["edges"], expected.edges().edges());
  for (size_t t = 0; t < written; ++t) {
    EXPECT_EQ(logprobs["token_logprobs"][ids.size() + t], alone["logprobs"]["token_logprobs"][t]);
    EXPECT_EQ(logprobs["token_logprobs"][ids.size() + t],
              logprobs["top_logprobs"][ids.size() + t][logprobs["tokens"][ids.size() + t].get<std::string>()]);
  }
  const std::string text = choice["text"], after = alone["text"];
  EXPECT_THAT(text, ::testing::EndsWith(after));
  EXPECT_EQ(answer["usage"]["prompt_tokens"], ids.size());

  body["max_tokens"] = 0;
  const json scored = http_.Answer("/v1/completions", body);
  EXPECT_EQ(scored["choices"][0]["text"], text.substr(0, text.size() - after.size()));
  EXPECT_EQ(scored["choices"][0]["logprobs"]["token_logprobs"].size(), ids.size());
  EXPECT_EQ(scored["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(scored["usage"]["completion_tokens"], 0);
  EXPECT_EQ(scored["usage"]["prompt_tokens"], ids.size());
  body["prompt"] = {"hello", "a b"};
  const json texts = http_.Answer("/v1/completions", body)["choices"];
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts[0]["text"], "hello");
  EXPECT_EQ(texts[1]["text"], "a b");
}

TEST_F(OpenAiTest, OtherPathsSayWhatThereIs) {
  const HttpReply responses = http_.Post("/v1/responses", {{"model", kModel}, {"input", "x"}});
  EXPECT_EQ(responses.code, 404);
  EXPECT_THAT(json::parse(responses.body)["error"]["message"].get<std::string>(), HasSubstr("/v1/chat/completions"));
  EXPECT_EQ(http_.Get("/v1/chat/completions").code, 405);
  const HttpReply embeddings = http_.Post("/v1/embeddings", {{"model", kModel}, {"input", "x"}});
  EXPECT_EQ(embeddings.code, 400);
  EXPECT_THAT(embeddings.body, HasSubstr("which does causal-lm"));
}

class OpenAiBudgetTest : public ::testing::Test {
 protected:
  HttpServerFixture http_;
};

TEST_F(OpenAiBudgetTest, AnEchoOfSamplesHasNoAlternatives) {
  json body = {{"model", "lm-ssa-local"}, {"prompt", {3, 1, 4, 1, 5}},
               {"max_tokens", 0},         {"echo", true},
               {"logprobs", 1},           {"edgewise", {{"samples", 3}, {"seed", 4}}}};
  const HttpReply refused = http_.Post("/v1/completions", body);
  EXPECT_EQ(refused.code, 400);
  EXPECT_EQ(json::parse(refused.body)["error"]["param"], "logprobs");
  body["logprobs"] = 0;
  const json choice = http_.Answer("/v1/completions", body)["choices"][0];
  double sum = 0.0;
  for (size_t t = 1; t < 5; ++t) sum += choice["logprobs"]["token_logprobs"][t].get<double>();
  EXPECT_NEAR(sum, choice["edgewise"]["prompt"]["log_likelihood"].get<double>(), 1e-12);
  EXPECT_EQ(choice["logprobs"]["tokens"], (json{"token_id:3", "token_id:1", "token_id:4", "token_id:1", "token_id:5"}));
}

TEST_F(OpenAiBudgetTest, NoRowOfAGenerationHasMoreEdgesThanItsCap) {
  const json answer = http_.Answer("/v1/completions", {{"model", "lm-ssa-local"},
                                                       {"prompt", {3, 1, 4, 1, 5, 9, 2, 6}},
                                                       {"max_tokens", 8},
                                                       {"seed", 1},
                                                       {"edgewise", {{"max_density", 0.9}, {"samples", 2}}}});
  v1::GenerateRequest request = ShortRequest("lm-ssa-local", 8);
  for (const int id : {9, 2, 6}) request.mutable_prompt()->mutable_token_ids()->add_values(id);
  request.mutable_budget()->set_max_density(0.9);
  request.mutable_ensemble()->set_samples(2);
  request.mutable_ensemble()->set_seed(1);
  const Generated generated = Generate(http_.server, request);
  ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
  double edges = 0.0;
  for (const v1::GenerateResponse& message : generated.messages) edges += message.edges().edges();
  EXPECT_EQ(answer["choices"][0]["edgewise"]["edges"], edges);
  EXPECT_EQ(answer["choices"][0]["edgewise"]["budget"], generated.messages.back().edges().budget());
}

}  // namespace
}  // namespace edgewise::server
