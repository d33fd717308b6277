// OpenAI's /v1/embeddings over a real port: the numbers are those of Predict.
#include <gmock/gmock.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "tests/server/http_fixture.h"

namespace edgewise::server {
namespace {

using nlohmann::json;

class OpenAiEmbeddingsTest : public ::testing::Test {
 protected:
  v1::PredictResponse Predict(const std::vector<std::string>& texts, uint32_t dimensions = 0) {
    v1::PredictRequest request;
    request.set_model("old_last_token");
    for (const std::string& text : texts) request.add_inputs()->mutable_sequence()->set_text(text);
    request.mutable_outputs()->set_dimensions(dimensions);
    request.mutable_ensemble()->set_seed(1);
    v1::PredictResponse response;
    const grpc::Status status = http_.server.Predict(request, response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  static std::vector<float> Of(const v1::PredictResponse& response, int input) {
    const auto& embedding = response.predictions(input).embedding();
    return {embedding.begin(), embedding.end()};
  }

  HttpServerFixture http_{HttpOptions(tests::TestdataFolder() + "_sentence")};
};

TEST_F(OpenAiEmbeddingsTest, NumbersAreThoseOfPredictAsTextAndInBase64) {
  const v1::PredictResponse expected = Predict({"hello", "a b"});
  const json body = {{"model", "old_last_token"}, {"input", {"hello", "a b"}}, {"edgewise", {{"seed", 1}}}};
  const json answer = http_.Answer("/v1/embeddings", body);
  EXPECT_EQ(answer["object"], "list");
  EXPECT_EQ(answer["model"], "old_last_token");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], expected.input_tokens());
  json packed = body;
  packed["encoding_format"] = "base64";
  const json base64 = http_.Answer("/v1/embeddings", packed);
  ASSERT_EQ(answer["data"].size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(answer["data"][i]["index"], i);
    EXPECT_EQ(answer["data"][i]["embedding"].get<std::vector<float>>(), Of(expected, i));
    std::string bytes;
    ASSERT_TRUE(absl::Base64Unescape(base64["data"][i]["embedding"].get<std::string>(), &bytes));
    std::vector<float> unpacked(bytes.size() / sizeof(float));
    std::memcpy(unpacked.data(), bytes.data(), bytes.size());
    EXPECT_EQ(unpacked, Of(expected, i));
    EXPECT_EQ(answer["data"][i]["edgewise"]["edges"], expected.predictions(i).edges().edges());
  }
}

TEST_F(OpenAiEmbeddingsTest, DimensionsAndTokensAreTaken) {
  const json cut = http_.Answer("/v1/embeddings", {{"model", "old_last_token"}, {"input", "hello"}, {"dimensions", 4}});
  EXPECT_EQ(cut["data"][0]["embedding"].get<std::vector<float>>(), Of(Predict({"hello"}, 4), 0));
  const json lists = http_.Answer("/v1/embeddings", {{"model", "old_last_token"}, {"input", {{5, 6, 7}, {8, 9}}}});
  const json alone = http_.Answer("/v1/embeddings", {{"model", "old_last_token"}, {"input", {8, 9}}});
  ASSERT_EQ(lists["data"].size(), 2u);
  ASSERT_EQ(alone["data"].size(), 1u);
  EXPECT_EQ(lists["data"][1]["embedding"], alone["data"][0]["embedding"]);
  EXPECT_EQ(alone["usage"]["prompt_tokens"], 2);
}

TEST_F(OpenAiEmbeddingsTest, SeedsThatAreDrawnAreDoubles) {
  for (int i = 0; i < 8; ++i) {
    const json answer = http_.Answer("/v1/embeddings", {{"model", "old_last_token"}, {"input", "hello"}});
    EXPECT_LT(answer["edgewise"]["seed"].get<uint64_t>(), uint64_t{1} << 53);
  }
}

TEST_F(OpenAiEmbeddingsTest, LongInputsAreRefusedOrCut) {
  std::string text = "red";
  for (int i = 0; i < 50; ++i) text += " cat";
  json body = {{"model", "old_last_token"}, {"input", {"a", text}}, {"edgewise", {{"seed", 1}}}};
  const HttpReply refused = http_.Post("/v1/embeddings", body);
  EXPECT_EQ(refused.code, 400);
  EXPECT_EQ(json::parse(refused.body)["error"]["param"], "input[1]");
  body["input"] = text;
  EXPECT_EQ(json::parse(http_.Post("/v1/embeddings", body).body)["error"]["param"], "input");
  for (const v1::Truncate truncate : {v1::HEAD, v1::TAIL}) {
    v1::PredictRequest request;
    request.set_model("old_last_token");
    request.add_inputs()->mutable_sequence()->set_text(text);
    request.mutable_inputs(0)->mutable_sequence()->set_truncate(truncate);
    request.mutable_ensemble()->set_seed(1);
    v1::PredictResponse expected;
    ASSERT_TRUE(http_.server.Predict(request, expected).ok());
    body["input"] = text;
    body["edgewise"]["truncate"] = v1::Truncate_Name(truncate);
    const json answer = http_.Answer("/v1/embeddings", body);
    EXPECT_EQ(answer["data"][0]["embedding"].get<std::vector<float>>(), Of(expected, 0));
  }
}

TEST_F(OpenAiEmbeddingsTest, WhatIsNotTakenIsNamed) {
  const auto param = [&](const json& more) {
    json body = {{"model", "old_last_token"}, {"input", "x"}};
    body.update(more);
    const HttpReply reply = http_.Post("/v1/embeddings", body);
    EXPECT_EQ(reply.code, 400) << more;
    return json::parse(reply.body)["error"]["param"].get<std::string>();
  };
  EXPECT_EQ(param({{"encoding_format", "int8"}}), "encoding_format");
  EXPECT_EQ(param({{"dimensions", 0}}), "dimensions");
  EXPECT_EQ(param({{"dimensions", 100000}}), "dimensions");
  EXPECT_EQ(param({{"input", json::array()}}), "input");
  EXPECT_EQ(param({{"input", {{{"type", "text"}}}}}), "input");
  EXPECT_EQ(param({{"input", {1, -5}}}), "input[0][1]");
  EXPECT_EQ(param({{"inputs", "x"}}), "inputs");
  EXPECT_EQ(param({{"truncate", true}}), "truncate");
  EXPECT_EQ(param({{"edgewise", {{"truncate", 7}}}}), "edgewise.truncate");
  for (const char* name : {"top_k", "min_p", "repetition_penalty"}) {
    EXPECT_EQ(param({{"edgewise", {{name, 1}}}}), std::string("edgewise.") + name);
  }
}

}  // namespace
}  // namespace edgewise::server
