// The log of calls over both fronts: one line each, and a count of those that are refused.
#include "server/observe/call_log.h"

#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "oip/v2/open_inference.pb.h"
#include "server/base/status_details.h"
#include "server/guard/auth.h"
#include "server/http/message.h"
#include "tests/server/http_fixture.h"
#include "tests/server/written_log.h"

namespace edgewise::server {
namespace {

using nlohmann::json;
using ::testing::StartsWith;

constexpr char kToken[] = "0123456789abcdef";
constexpr char kBearer[] = "Authorization: Bearer 0123456789abcdef\r\n";

TEST(LoggedFieldTest, HasTheNamesOfOurMessagesAndNoOther) {
  for (const char* field : {"inputs", "inputs[0].sequence.text", "budget.max_edges", "Content-Type", "X-Request-Id",
                            "messages[3].content[12]", "parameters.timeout", "graph.layers[0].heads[1].keys[22]"}) {
    EXPECT_EQ(LoggedField(FieldError(field, "is wrong")), field);
  }
  for (const char* field : {"secret", "inputs[secret]", "inputs[0].secret", "inputs[0]secret", "inputs[]", "inputs[0",
                            "inputs]0[", "inputs[[0]]", "parameters.sequence_secret", ".", "inputs..text"}) {
    EXPECT_EQ(LoggedField(FieldError(field, "is wrong")), "unknown field") << field;
  }
  EXPECT_EQ(LoggedField(absl::InvalidArgumentError("inputs")), "");
  EXPECT_EQ(LoggedField(absl::OkStatus()), "");
}

TEST(RetryAfterTest, HasTheSecondsOfTheStatus) {
  for (const auto& [seconds, field] : {std::pair(89.0, "89"), {2.0, "2"}, {0.05, "1"}}) {
    absl::Status status = absl::ResourceExhaustedError("full");
    SetRetryDelay(status, seconds);
    const HttpAnswer answer = ErrorAnswer({429, status}, PlainError);
    EXPECT_THAT(answer.fields, ::testing::Contains(std::pair<std::string, std::string>("Retry-After", field)));
  }
}

// The lines of the events by their request_id; one for each.
std::map<std::string, json> ById(const WrittenLog& log, const std::vector<std::string>& events) {
  std::map<std::string, json> lines;
  for (json& line : log.Lines(events)) {
    const std::string id = line["request_id"];
    EXPECT_FALSE(lines.contains(id)) << "logged twice: " << line << " and " << lines[id];
    lines[id] = std::move(line);
  }
  return lines;
}

// All series of refusals on a page of metrics.
double Refusals(const std::string& page) {
  double sum = 0.0;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("edgewise_refusals_total{")) sum += std::stod(line.substr(line.rfind(' ')));
  }
  return sum;
}

// A server whose calls need a token.
class CallLogTest : public ::testing::Test {
 protected:
  CallLogTest() {
    folder_.Write("tokens", absl::StrCat(kToken, "\n"));
    ServerOptions options = HttpOptions();
    options.security.auth_token_file = folder_.path() + "/tokens";
    options.message_timeout = milliseconds(100);
    options.max_message_bytes = 100000;
    options.reflection = true;
    options.clock = clock_.read();
    test_ = std::make_unique<TestServer>(options);
  }

  // Sends the bytes and reads the answer. Seconds go by, so that its line is not held back.
  void Send(const std::string& bytes) {
    HttpClient client(test_->server().http_port());
    client.Send(bytes);
    client.Read();
    clock_.Advance(seconds(2));
  }
  grpc::Status Call(const std::string& path, const std::string& bytes, const std::string& token = kToken) {
    clock_.Advance(seconds(2));
    return test_->Call(path, bytes, nullptr, token);
  }
  ::testing::AssertionResult WaitForRefusals(double count) {
    return WaitUntil("refusals to be counted", [&] { return Refusals(test_->HttpGet("/metrics")) == count; });
  }

  TestFolder folder_;
  TestClock clock_;
  WrittenLog log_;
  std::unique_ptr<TestServer> test_;
};

TEST_F(CallLogTest, EachRefusalOfHttpHasOneLine) {
  struct Refusal {
    std::string line, fields, body;
    int code;
    const char *route, *status, *reason, *field;
    bool known = true;  // the token, when it is refused
  };
  const std::string json_type = "Content-Type: application/json\r\n", here = "Host: localhost\r\n", token = kBearer;
  const std::string usual = here + token + json_type;
  const std::string embeddings = "POST /v1/embeddings";
  const std::vector<Refusal> refusals = {
      {"GET /nothing", usual, "", 404, "_other", "UNIMPLEMENTED", "not_served", "", false},
      {"DELETE /predict", usual, "", 405, "_other", "UNIMPLEMENTED", "not_served", "", false},
      {"GET /v2/repository/models/x", usual, "", 400, "_other", "UNIMPLEMENTED", "not_served", "", false},
      {"GET /v1/models/none", usual, "", 404, "/v1/models/{}", "NOT_FOUND", "invalid", ""},
      {"GET /v1/models", here + "Authorization: Bearer 0123456789abcdeX\r\n", "", 401, "/v1/models", "UNAUTHENTICATED",
       "unauthenticated", "", false},
      {"GET /metrics", here, "", 401, "/metrics", "UNAUTHENTICATED", "unauthenticated", "", false},
      {"GET /page/none", here, "", 404, "/page/{}", "NOT_FOUND", "invalid", "", false},
      {"GET /livez", here, "x", 400, "/livez", "INVALID_ARGUMENT", "invalid", "", false},
      {embeddings, usual, "{", 400, "/v1/embeddings", "INVALID_ARGUMENT", "invalid", ""},
      {embeddings, usual, R"({"secret":1})", 400, "/v1/embeddings", "INVALID_ARGUMENT", "invalid", "unknown field"},
      {embeddings, usual, R"({"model":"none","input":"x"})", 404, "/v1/embeddings", "NOT_FOUND", "invalid", ""},
      {"POST /v1/completions", usual, R"({"model":"sbm","prompt":"x","temperature":-1})", 400, "/v1/completions",
       "INVALID_ARGUMENT", "invalid", "temperature"},
      {"POST /embed", usual, R"({"model":"sbm","inputs":5})", 422, "/embed", "INVALID_ARGUMENT", "invalid", "inputs"},
      {"POST /models/sbm/tokenize", usual, R"({"inputs":"x"})", 424, "/models/{}/tokenize", "INVALID_ARGUMENT",
       "invalid", "model"},
      {"POST /v2/rerank", usual, R"({"model":"none","query":"x","documents":["y"]})", 404, "/v2/rerank", "NOT_FOUND",
       "invalid", ""},
      {"POST /v2/models/sbm/infer", usual, R"({"inputs":5})", 400, "/v2/models/{}/infer", "INVALID_ARGUMENT", "invalid",
       "inputs"},
      {"POST /edgewise/v1/predict", usual, R"({"model":"sbm","inputs":[{}]})", 400, "/edgewise/v1/predict",
       "INVALID_ARGUMENT", "invalid", "inputs[0].sequence"},
      {"POST /edgewise/v1/generate", usual, R"({"maxNewTokens":-1})", 400, "/edgewise/v1/generate", "INVALID_ARGUMENT",
       "invalid", "max_new_tokens"},
      {embeddings, "Host: evil.example\r\n", "", 403, "/v1/embeddings", "INVALID_ARGUMENT", "invalid", "Host", false},
      {embeddings, here + "Origin: http://evil.example\r\n", "", 403, "/v1/embeddings", "INVALID_ARGUMENT", "invalid",
       "Origin", false},
      {embeddings, usual + "X-Request-Timeout-Ms: 0\r\n", "", 400, "/v1/embeddings", "INVALID_ARGUMENT", "invalid",
       "X-Request-Timeout-Ms", false},
      {embeddings, here + token + "Content-Type: text/plain\r\n", "x", 415, "/v1/embeddings", "INVALID_ARGUMENT",
       "invalid", "Content-Type"},
      {embeddings, usual, std::string(100001, 'x'), 413, "/v1/embeddings", "RESOURCE_EXHAUSTED", "invalid", ""},
      {embeddings, usual + "Content-Length: 9\r\n", "", 408, "/v1/embeddings", "DEADLINE_EXCEEDED", "deadline", ""},
  };
  for (size_t i = 0; i < refusals.size(); ++i) {
    const Refusal& refusal = refusals[i];
    const std::string length =
        refusal.body.empty() ? "" : absl::StrCat("Content-Length: ", refusal.body.size(), "\r\n");
    Send(absl::StrCat(refusal.line, " HTTP/1.1\r\n", refusal.fields, length, "X-Request-Id: ", i, "\r\n\r\n",
                      refusal.body));
  }
  Send("POST /v1/embeddings HTTP/1.1\r\nX: " + std::string(9000, 'x') + "\r\n\r\n");  // 431
  HttpClient gone(test_->server().http_port());
  gone.Send("POST /v1/embeddings HTTP/1.1\r\n" + usual + "Content-Length: 9\r\nX-Request-Id: gone\r\n\r\n");
  gone.Close();
  EXPECT_TRUE(WaitForRefusals(static_cast<double>(refusals.size()) + 2));
  EXPECT_EQ(test_->Metric(R"(edgewise_refusals_total{code="415",reason="invalid"})"), 1.0);
  EXPECT_EQ(test_->Metric(R"(edgewise_refusals_total{code="401",reason="unauthenticated"})"), 2.0);
  log_.Stop();
  std::map<std::string, json> lines = ById(log_, {"refused", "call", "request", "generation"});
  EXPECT_EQ(lines.size(), refusals.size() + 2);
  for (size_t i = 0; i < refusals.size(); ++i) {
    const Refusal& refusal = refusals[i];
    const json line = lines[absl::StrCat(i)];
    SCOPED_TRACE(absl::StrCat(refusal.line, " ", i, " ", line.dump()));
    ASSERT_FALSE(line.is_null());
    EXPECT_EQ(line["event"], "refused");
    EXPECT_EQ(line["level"], "warning");
    EXPECT_EQ(line["http_code"], refusal.code);
    EXPECT_EQ(line["code"], refusal.status);
    EXPECT_EQ(line["route"], refusal.route);
    EXPECT_EQ(line["reason"], refusal.reason);
    EXPECT_EQ(line.value("field", ""), refusal.field);
    EXPECT_EQ(line["peer"], "ipv4:127.0.0.1");
    EXPECT_EQ(line["principal"] != line["peer"], refusal.known);
  }
  EXPECT_EQ(lines[""]["http_code"], 431);
  EXPECT_EQ(lines["gone"]["code"], "CANCELLED");
  EXPECT_EQ(lines["gone"]["http_code"], 499);
}

TEST_F(CallLogTest, EachRefusalOfGrpcHasOneLine) {
  struct Refusal {
    const char* path;
    std::string bytes;
    const char *status, *reason, *field;
    const char* token = kToken;
  };
  v1::PredictRequest no_input, no_model = SmallRequest("none");
  no_input.set_model("sbm");
  no_input.add_inputs();
  v1::GenerateRequest no_prompt;
  no_prompt.set_model("lm-dense");
  no_prompt.set_temperature(-1.0);
  no_prompt.set_max_new_tokens(1);
  v1::GetModelRequest none;
  none.set_model("none");
  inference::ModelInferRequest infer;
  infer.set_model_name("sbm");
  const std::string broken = "\x0a\x7f";
  const std::vector<Refusal> refusals = {
      {"/edgewise.v1.InferenceService/Predict", broken, "INVALID_ARGUMENT", "invalid", ""},
      {"/edgewise.v1.InferenceService/Predict", no_input.SerializeAsString(), "INVALID_ARGUMENT", "invalid",
       "inputs[0].sequence"},
      {"/edgewise.v1.InferenceService/Predict", no_model.SerializeAsString(), "NOT_FOUND", "invalid", ""},
      {"/edgewise.v1.InferenceService/Predict", std::string(100001, '\0'), "RESOURCE_EXHAUSTED", "invalid", ""},
      {"/edgewise.v1.InferenceService/Predict", "", "UNAUTHENTICATED", "unauthenticated", "", ""},
      {"/edgewise.v1.InferenceService/Generate", no_prompt.SerializeAsString(), "INVALID_ARGUMENT", "invalid",
       "temperature"},
      {"/edgewise.v1.InferenceService/GetModel", none.SerializeAsString(), "NOT_FOUND", "invalid", ""},
      {"/inference.GRPCInferenceService/ModelInfer", infer.SerializeAsString(), "INVALID_ARGUMENT", "invalid",
       "inputs"},
      {"/inference.GRPCInferenceService/ModelMetadata", broken, "INVALID_ARGUMENT", "invalid", ""},
      {"/inference.GRPCInferenceService/ServerLive", broken, "INVALID_ARGUMENT", "invalid", ""},
      {"/grpc.health.v1.Health/Check", "\x0a\x04none", "NOT_FOUND", "invalid", ""},
      {"/grpc.health.v1.Health/Check", "", "UNAUTHENTICATED", "unauthenticated", "", "0123456789abcdeX"},
      {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", broken, "INVALID_ARGUMENT", "invalid", ""},
      {"_other", "", "UNIMPLEMENTED", "not_served", ""},
      {"_other", "", "UNAUTHENTICATED", "unauthenticated", "", ""},
  };
  for (const Refusal& refusal : refusals) {
    const bool other = std::string(refusal.path) == "_other";
    EXPECT_FALSE(Call(other ? "/no.such.Service/Method" : refusal.path, refusal.bytes, refusal.token).ok());
  }
  EXPECT_TRUE(WaitForRefusals(static_cast<double>(refusals.size())));
  EXPECT_EQ(test_->Metric(R"(edgewise_refusals_total{code="UNAUTHENTICATED",reason="unauthenticated"})"), 3.0);
  log_.Stop();
  const std::vector<json> lines = log_.Lines({"refused", "call", "request", "generation"});
  ASSERT_EQ(lines.size(), refusals.size());
  for (size_t i = 0; i < refusals.size(); ++i) {
    const Refusal& refusal = refusals[i];
    const json& line = lines[i];
    SCOPED_TRACE(absl::StrCat(i, " ", line.dump()));
    EXPECT_EQ(line["event"], "refused");
    EXPECT_EQ(line["method"], refusal.path);
    EXPECT_EQ(line["code"], refusal.status);
    EXPECT_EQ(line["reason"], refusal.reason);
    EXPECT_EQ(line.value("field", ""), refusal.field);
    EXPECT_THAT(line["peer"].get<std::string>(), StartsWith("ipv4:127.0.0.1:"));
    EXPECT_EQ(line["principal"] == "ipv4:127.0.0.1", std::string(refusal.status) == "UNAUTHENTICATED");
  }
  EXPECT_EQ(lines[1]["model"], "sbm");
  EXPECT_FALSE(lines[2].contains("model")) << "the server has none of that name";
}

TEST_F(CallLogTest, EachMessageOfAStreamIsACall) {
  grpc::ClientContext context;
  context.AddMetadata("authorization", absl::StrCat("Bearer ", kToken));
  const auto stream = test_->stub().PredictStream(&context);
  v1::PredictRequest right = SmallRequest(), wrong = SmallRequest();
  right.set_request_id("right");
  wrong.set_request_id("wrong");
  wrong.add_inputs();
  EXPECT_TRUE(stream->Write(right));
  EXPECT_TRUE(stream->Write(wrong));
  stream->WritesDone();
  v1::PredictStreamResponse response;
  while (stream->Read(&response)) {
  }
  EXPECT_TRUE(stream->Finish().ok());
  log_.Stop();
  std::map<std::string, json> lines = ById(log_, {"refused", "call", "request"});
  EXPECT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines["right"]["code"], "OK");
  EXPECT_EQ(lines["wrong"]["field"], "inputs[1].sequence");
  for (const auto& [id, line] : lines) {
    EXPECT_EQ(line["method"], "/edgewise.v1.InferenceService/PredictStream");
    EXPECT_EQ(line["principal"].get<std::string>().size(), 16u) << line;
    EXPECT_THAT(line["peer"].get<std::string>(), StartsWith("ipv4:127.0.0.1:"));
  }
}

TEST_F(CallLogTest, MetadataAboveTheLimitEndsItsCallAlone) {
  grpc::ClientContext context;
  context.AddMetadata("authorization", absl::StrCat("Bearer ", kToken));
  const auto stream = test_->stub().PredictStream(&context);
  v1::PredictStreamResponse answer;
  for (const size_t bytes : {7000, 9000, 14000, 7000}) {
    EXPECT_TRUE(stream->Write(SmallRequest()) && stream->Read(&answer)) << "beside it";
    CallContext large;
    large.AddMetadata("authorization", absl::StrCat("Bearer ", kToken));
    large.AddMetadata("x-large", std::string(bytes, 'x'));
    v1::ListModelsResponse models;
    const grpc::Status status = test_->stub().ListModels(&large, {}, &models);
    EXPECT_EQ(status.error_code(), bytes < kMaxMetadata ? grpc::OK : grpc::RESOURCE_EXHAUSTED) << bytes;
    if (!status.ok()) {
      EXPECT_THAT(status.error_message(), ::testing::HasSubstr("; the server takes at most 8192"));
    }
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(test_->Metric("edgewise_connections"), 1.0);
}

TEST_F(CallLogTest, AnsweredCallsHaveOneLineAndProbesNone) {
  v1::GetModelRequest model;
  model.set_model("sbm");
  inference::ModelReadyRequest probe;
  probe.set_name("sbm");
  const std::vector<std::pair<const char*, std::string>> calls = {
      {"/edgewise.v1.InferenceService/Predict", SmallRequest().SerializeAsString()},
      {"/edgewise.v1.InferenceService/ListModels", ""},
      {"/edgewise.v1.InferenceService/GetModel", model.SerializeAsString()},
      {"/inference.GRPCInferenceService/ModelMetadata", probe.SerializeAsString()},  // of the same shape
      {"/inference.GRPCInferenceService/ServerMetadata", ""}};
  for (const auto& [path, bytes] : calls) EXPECT_TRUE(Call(path, bytes).ok()) << path;
  EXPECT_TRUE(Call("/grpc.health.v1.Health/Check", "").ok());
  for (const char* path : {"ServerLive", "ServerReady"}) {
    EXPECT_TRUE(Call(absl::StrCat("/inference.GRPCInferenceService/", path), "").ok());
  }
  EXPECT_TRUE(Call("/inference.GRPCInferenceService/ModelReady", probe.SerializeAsString()).ok());
  const std::string fields = absl::StrCat(kBearer, "X-Request-Id: mine\r\n");
  HttpClient client(test_->server().http_port());
  for (const char* path :
       {"/livez", "/readyz", "/v2/health/live", "/metrics", "/", "/page/page.js", "/v2/models/sbm/ready"}) {
    EXPECT_EQ(client.Ask("GET", path, fields).code, 200) << path;
  }
  const std::vector<const char*> asked = {"/v1/models", "/v2", "/openapi.json", "/edgewise/v1/models"};
  for (const char* path : asked) EXPECT_EQ(client.Ask("GET", path, fields).code, 200) << path;
  const std::string ids = R"({"model":"sbm","inputs":[{"sequence":{"tokenIds":{"values":[1,2,3]}}}]})";
  EXPECT_EQ(client.Post(kPredict, ids, fields).code, 200);
  log_.Stop();
  const std::vector<json> lines = log_.Lines({"refused", "call", "request", "generation"});
  ASSERT_EQ(lines.size(), calls.size() + asked.size() + 1);
  for (size_t i = 0; i < lines.size(); ++i) {
    const json& line = lines[i];
    SCOPED_TRACE(line.dump());
    EXPECT_EQ(line["code"], "OK");
    EXPECT_EQ(line["level"], "info");
    EXPECT_EQ(line["event"], i == 0 || i + 1 == lines.size() ? "request" : "call");
    EXPECT_EQ(line["principal"].get<std::string>().size(), 16u);
    EXPECT_THAT(line["peer"].get<std::string>(), StartsWith("ipv4:127.0.0.1"));
    if (i < calls.size()) {
      EXPECT_EQ(line["method"], calls[i].first);
    } else {
      EXPECT_EQ(line["request_id"], "mine");
      EXPECT_EQ(line["http_code"], 200);
      EXPECT_EQ(line["route"], i + 1 == lines.size() ? kPredict : asked[i - calls.size()]);
    }
  }
  EXPECT_EQ(lines[0]["model"], "sbm");
  EXPECT_EQ(lines[0]["version"], 1);
  EXPECT_EQ(lines[0]["inputs"], 1);
  EXPECT_EQ(lines[2]["model"], "sbm");
}

// As many as the examples have, a third of which generate.
TEST(SeriesTest, TwelveModelsHaveFewerThan1500) {
  TestFolder folder;
  for (int i = 0; i < 12; ++i) folder.AddModel(i % 3 == 0 ? "lm-dense" : "sbm", absl::StrCat("m", i), 1);
  TestServer server(HttpOptions(folder.path()));
  HttpClient client(server.server().http_port());
  EXPECT_EQ(client.Ask("GET", "/no").code, 404);
  std::istringstream lines(server.HttpGet("/metrics"));
  size_t series = 0;
  for (std::string line; std::getline(lines, line);) {
    series += line.starts_with("edgewise_") || line.starts_with("process_");
  }
  RecordProperty("series", static_cast<int>(series));
  constexpr size_t kOfRefusals = 45;  // pairs of a code and a reason that occur
  EXPECT_LT(series, 1500u - kOfRefusals);
  EXPECT_GT(series, 1000u);
}

// At most ten lines a second; the others are told.
TEST_F(CallLogTest, RefusalsThatAreHeldBackAreTold) {
  for (int i = 0; i < 200; ++i) HttpClient(test_->server().http_port()).Ask("GET", "/no");
  test_.reset();
  log_.Stop();
  uint64_t told = 0;
  const std::vector<json> lines = log_.Lines({"refused"});
  for (const json& line : log_.Lines({"refused", "refusals not logged"})) told += line["suppressed"].get<uint64_t>();
  EXPECT_EQ(lines.size() + told, 200u);
}

}  // namespace
}  // namespace edgewise::server
