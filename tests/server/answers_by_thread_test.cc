// Which threads write a long answer: none that serves the calls of everybody, whatever the method, the route and the
// field of the request are.
#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/cores.h"
#include "oip/v2/open_inference.pb.h"
#include "server/handler/long_work_threads.h"
#include "tests/server/http_fixture.h"
#include "tests/server/thread_allocations.h"

namespace edgewise::server {
namespace {

using google::protobuf::FieldDescriptor;
using nlohmann::json;
using tests::Allocations;
using tests::kLittle;

ServerOptions Options() {
  ServerOptions options = HttpOptions("");
  const std::string data = tests::TestdataFolder();
  options.models = {{"sbm", data + "/sbm/1"},
                    {"encoder", data + "_sentence/mean/1"},
                    {"ranker", data + "_sentence/cross_encoder/1"},
                    {"classes", data + "_sentence/cross_encoder_labels/1"},
                    {"writer", data + "_chat/llama3/1"}};
  options.reflection = true;
  return options;
}

json Many(size_t n, const json& value) { return json(std::vector<json>(n, value)); }

class AnswersByThreadTest : public ::testing::Test {
 protected:
  // Connections and threads take memory once, which is not work of an answer.
  AnswersByThreadTest() {
    http_.server.Call("/edgewise.v1.InferenceService/ListModels", "");
    http_.Get("/v1/models");
  }

  // `call` is answered, and by other threads than those that everybody needs. These have read a message, of `sent`
  // bytes over HTTP, so that only large pieces are the answer's.
  static void ExpectApart(const std::string& name, uint64_t Allocations::*where, const std::function<void()>& call,
                          uint64_t sent = 0) {
    const Allocations bytes = tests::AllocationsDuring(call);
    EXPECT_LT(bytes.largest_of_calls, kLittle) << name << ", on the thread of calls";
    EXPECT_LT(bytes.largest_of_http, kLittle + sent) << name << ", on the thread of HTTP";
    EXPECT_LT(bytes.answers, kLittle) << name << ", on the thread of answers";
    EXPECT_GT(bytes.*where, kLittle) << name << ", where it belongs";
  }

  v1::PredictRequest Request(const std::string& model, int inputs, const std::string& text) const {
    v1::PredictRequest request;
    request.set_model(model);
    while (request.inputs_size() < inputs) {
      v1::Sequence& sequence = *request.add_inputs()->mutable_sequence();
      if (!text.empty()) sequence.set_text(text);
      while (text.empty() && sequence.token_ids().values_size() < 40) sequence.mutable_token_ids()->add_values(3);
    }
    return request;
  }

  HttpServerFixture http_{Options()};
};

// A Predict whose answer is long by each field of OutputOptions.
std::map<std::string, v1::PredictRequest> LongByEachOutput(
    const std::function<v1::PredictRequest(const std::string&, int, const std::string&)>& make) {
  const std::set<std::string> no_longer = {"stride", "dimensions"};  // these make no answer longer
  const std::map<std::string, std::pair<const char*, int>> models = {{"layer_stats", {"sbm", 512}},
                                                                     {"key_degrees", {"sbm", 200}},
                                                                     {"graph", {"sbm", 40}},
                                                                     {"each_sample", {"sbm", 32}},
                                                                     {"token_scores", {"writer", 40}},
                                                                     {"alternatives", {"writer", 8}},
                                                                     {"token_embeddings", {"encoder", 200}},
                                                                     {"input_tokens", {"writer", 200}},
                                                                     {"logits", {"writer", 60}},
                                                                     {"top_k", {"writer", 60}}};
  std::map<std::string, v1::PredictRequest> requests;
  const google::protobuf::Descriptor& type = *v1::OutputOptions::descriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (no_longer.count(field.name()) > 0) continue;
    const auto model = models.find(field.name());
    EXPECT_NE(model, models.end()) << "an answer that is long by outputs." << field.name() << " belongs here";
    if (model == models.end()) continue;
    const std::string text = model->second.first == std::string("sbm") ? "" : "the cat sat on the mat";
    v1::PredictRequest& request = requests[field.name()] = make(model->second.first, model->second.second, text);
    v1::OutputOptions& outputs = *request.mutable_outputs();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) outputs.GetReflection()->SetBool(&outputs, &field, true);
    if (field.name() == "top_k") outputs.set_top_k(200);
    if (field.name() == "alternatives") outputs.set_alternatives(20);
    if (field.name() == "alternatives") outputs.set_token_scores(true);
    if (field.name() == "each_sample") request.mutable_ensemble()->set_samples(16);
  }
  return requests;
}

TEST_F(AnswersByThreadTest, WhateverIsLongInAnAnswerIsNoWorkForTheThreadsOfEverybody) {
  if (UsableCores() == 1) GTEST_SKIP() << "the engine ends requests itself";
  const auto make = [this](const std::string& model, int inputs, const std::string& text) {
    return Request(model, inputs, text);
  };
  for (const auto& [field, request] : LongByEachOutput(make)) {
    const v1::PredictRequest& sent = request;
    ExpectApart("Predict, " + field, &Allocations::long_answers, [&] {
      v1::PredictResponse response;
      const grpc::Status status = http_.server.Predict(sent, response);
      EXPECT_TRUE(status.ok()) << status.error_message();
    });
    ExpectApart("PredictStream, " + field, &Allocations::long_answers, [&] {
      CallContext context;
      const auto stream = http_.server.stub().PredictStream(&context);
      stream->Write(sent);
      stream->WritesDone();
      v1::PredictStreamResponse response;
      EXPECT_TRUE(stream->Read(&response) && response.has_response()) << response.ShortDebugString();
      EXPECT_TRUE(stream->Finish().ok());
    });
    std::string body;
    ASSERT_TRUE(google::protobuf::util::MessageToJsonString(sent, &body).ok());
    ExpectApart(
        "/edgewise/v1/predict, " + field, &Allocations::long_answers,
        [&] { EXPECT_EQ(HttpClient(http_.port()).Post(kPredict, body).code, 200); }, body.size());
  }
}

TEST_F(AnswersByThreadTest, OfEveryRoute) {
  if (UsableCores() == 1) GTEST_SKIP() << "the engine ends requests itself";
  const json texts = Many(300, "the cat sat on the mat"), few = Many(200, "the cat sat");
  const json infer = {{"inputs", {{{"name", "text"}, {"datatype", "BYTES"}, {"shape", {200}}, {"data", few}}}}};
  const json chat = {{{"role", "user"}, {"content", "the cat"}}};
  const std::map<std::string, std::pair<std::string, json>> bodies = {
      // by route: the path, and what is sent there
      {"/v1/embeddings", {"/v1/embeddings", {{"model", "encoder"}, {"input", texts}}}},
      {"/v1/completions",
       {"/v1/completions",
        {{"model", "writer"}, {"prompt", "the cat"}, {"max_tokens", 60}, {"n", 8}, {"logprobs", 5}, {"echo", true}}}},
      {"/v1/chat/completions",
       {"/v1/chat/completions",
        {{"model", "writer"},
         {"messages", chat},
         {"max_tokens", 60},
         {"n", 8},
         {"logprobs", true},
         {"top_logprobs", 20}}}},
      {"/embed", {"/models/encoder/embed", {{"inputs", texts}}}},
      {"/embed_all", {"/models/encoder/embed_all", {{"inputs", few}}}},
      {"/similarity",
       {"/models/encoder/similarity", {{"inputs", {{"source_sentence", "the"}, {"sentences", Many(300, "cat")}}}}}},
      {"/predict", {"/models/classes/predict", {{"inputs", Many(300, {"the cat"})}}}},
      {"/rerank", {"/models/ranker/rerank", {{"query", "the"}, {"texts", texts}, {"return_text", true}}}},
      {"/", {"/models/encoder", {{"inputs", texts}}}},
      {"/v1/rerank", {"/v1/rerank", {{"model", "ranker"}, {"query", "the"}, {"documents", texts}}}},
      {"/v2/rerank", {"/v2/rerank", {{"model", "ranker"}, {"query", "the"}, {"documents", texts}}}},
      {"/v2/models/{}/infer", {"/v2/models/encoder/infer", infer}},
      {"/v2/models/{}/versions/{}/infer", {"/v2/models/encoder/versions/1/infer", infer}},
      {"/edgewise/v1/predict", {}},    // the test above
      {"/edgewise/v1/generate", {}}};  // its events are short
  // Written on threads for long messages; `/tokenize` and `/decode` with the texts themselves.
  const std::set<std::string> apart = {"/tokenize",
                                       "/decode",
                                       "/info",
                                       "/metrics",
                                       "/openapi.json",
                                       "/v1/models",
                                       "/v2/models/{}/stats",
                                       "/v2/models/stats",
                                       "/v2/models/{}/config",
                                       "/v2/models/{}",
                                       "/edgewise/v1/models",
                                       "/edgewise/v1/models/{}",
                                       "/v2/repository/index"};
  // A model, or whether the server serves; and files of the page, which nobody writes.
  const std::set<std::string> is_short = {
      "/v1/models/{}",      "/v2", "/livez", "/readyz", "/health", "/healthz", "/v2/health/live", "/v2/health/ready",
      "/v2/models/{}/ready"};
  std::set<std::string> seen;
  const json document = json::parse(http_.Get("/openapi.json").body);
  for (const auto& [documented, _] : document["paths"].items()) {
    std::string path = std::regex_replace(documented, std::regex("\\{[^}]*\\}"), "{}");
    const bool page = path == "/" ? !document["paths"][documented].contains("post") : path.rfind("/page", 0) == 0;
    if (page) continue;
    if (path.rfind("/models/{}", 0) == 0) path = path.size() > 10 ? path.substr(10) : "/";  // TEI's second name
    if (path.rfind("/v2", 0) == 0 && bodies.count(path) == 0)
      path = std::regex_replace(path, std::regex("/versions/\\{\\}"), "");
    if (!seen.insert(path).second || apart.count(path) > 0 || is_short.count(path) > 0) continue;
    const auto body = bodies.find(path);
    ASSERT_NE(body, bodies.end()) << "a long answer of " << path << " belongs here";
    const auto& [target, sent] = body->second;
    if (target.empty()) continue;
    ExpectApart(path, &Allocations::long_answers, [&, &where = target, &what = sent] {
      const HttpReply reply = http_.Post(where, what);
      EXPECT_EQ(reply.code, 200) << where << reply.body.substr(0, 300);
    });
  }
  EXPECT_GT(seen.size(), 30u);
}

TEST_F(AnswersByThreadTest, TextsThatComeBackCountAsTheAnswer) {
  if (UsableCores() == 1) GTEST_SKIP() << "the engine ends requests itself";
  const json texts = Many(2, std::string(64 << 10, 'a'));
  const std::pair<std::string, json> asked[] = {
      {"/models/ranker/rerank", {{"query", "the"}, {"texts", texts}, {"return_text", true}, {"truncate", true}}},
      {"/v2/rerank", {{"model", "ranker"}, {"query", "the"}, {"documents", texts}, {"return_documents", true}}}};
  for (const auto& [path, body] : asked) {
    ExpectApart(
        path, &Allocations::long_answers,
        [&, &where = path, &what = body] {
          const HttpReply reply = http_.Post(where, what);
          EXPECT_EQ(reply.code, 200) << reply.body.substr(0, 300);
          EXPECT_GT(reply.body.size(), size_t{128 << 10}) << where;
        },
        4 * body.dump().size());  // bodies are read by the thread of HTTP
  }
}

TEST_F(AnswersByThreadTest, DescriptionsOfModelsAreMadeApart) {
  for (const char* path : {"/edgewise/v1/models", "/edgewise/v1/models/writer", "/v1/models", "/v2/models/stats",
                           "/v2/models/writer", "/v2/models/writer/config"}) {
    const Allocations bytes = tests::AllocationsDuring([&] { EXPECT_EQ(http_.Get(path).code, 200) << path; });
    EXPECT_GT(bytes.preparation, 0u) << path;
  }
  inference::ModelConfigRequest config;
  config.set_name("writer");
  v1::GetModelRequest get;
  get.set_model("writer");
  const std::pair<const char*, std::string> calls[] = {
      {"/edgewise.v1.InferenceService/ListModels", ""},
      {"/edgewise.v1.InferenceService/GetModel", get.SerializeAsString()},
      {"/inference.GRPCInferenceService/ModelConfig", config.SerializeAsString()},
      {"/inference.GRPCInferenceService/ModelMetadata", config.SerializeAsString()},
      {"/inference.GRPCInferenceService/ModelStatistics", ""},
      {"/inference.GRPCInferenceService/RepositoryIndex", ""}};
  for (const auto& [method, message] : calls) {
    const Allocations bytes = tests::AllocationsDuring(
        [&, &path = method, &sent = message] { EXPECT_TRUE(http_.server.Call(path, sent).ok()) << path; });
    EXPECT_GT(bytes.preparation, 0u) << method;
  }
}

TEST_F(AnswersByThreadTest, AShortAnswerTakesNoOtherThread) {
  const Allocations bytes = tests::AllocationsDuring([&] {
    v1::PredictResponse response;
    EXPECT_TRUE(http_.server.Predict(Request("sbm", 1, ""), response).ok());
    EXPECT_EQ(http_.Post("/v1/embeddings", {{"model", "encoder"}, {"input", "the cat"}}).code, 200);
    EXPECT_EQ(http_.Post("/v1/completions", {{"model", "writer"}, {"prompt", "the cat"}}).code, 200);
  });
  EXPECT_EQ(bytes.long_answers, 0u);
}

}  // namespace
}  // namespace edgewise::server
