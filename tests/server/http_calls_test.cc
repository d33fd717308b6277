// Requests over HTTP are those of gRPC: the same answers, deadlines, cancellation, refusals, drain and counters.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>

#include <thread>

#include "tests/server/cpu_time.h"
#include "tests/server/http_fixture.h"

namespace edgewise::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string JsonOf(const google::protobuf::Message& message) {
  std::string text;
  EXPECT_TRUE(google::protobuf::util::MessageToJsonString(message, &text).ok());
  return text;
}

TEST(HttpCallsTest, PredictIsThatOfGrpcToTheByte) {
  HttpServerFixture http;
  for (const uint32_t inputs : {1u, 1000u}) {  // the latter is prepared apart
    v1::PredictRequest request = SmallRequest();
    for (uint32_t i = 1; i < inputs; ++i) *request.add_inputs() = request.inputs(0);
    request.mutable_ensemble()->set_samples(3);
    request.mutable_ensemble()->set_seed(5);
    request.mutable_outputs()->set_logits(true);
    v1::PredictResponse expected, answer;
    ASSERT_TRUE(http.server.Predict(request, expected).ok());
    const HttpReply reply = HttpClient(http.port()).Post(kPredict, JsonOf(request), "X-Request-Id: mine\r\n");
    ASSERT_EQ(reply.code, 200) << reply.body;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(reply.body, &answer).ok());
    ASSERT_EQ(answer.predictions_size(), expected.predictions_size());
    for (int i = 0; i < answer.predictions_size(); ++i) {
      EXPECT_EQ(answer.predictions(i).SerializeAsString(), expected.predictions(i).SerializeAsString());
    }
    EXPECT_EQ(answer.input_tokens(), 4u * inputs);
    EXPECT_EQ(answer.request_id(), "mine");
    EXPECT_EQ(reply.field("X-Request-Id"), "mine");
  }
}

TEST(HttpCallsTest, GenerateIsThatOfGrpcAsEvents) {
  HttpServerFixture http;
  const Generated expected = Generate(http.server, ShortRequest());
  const HttpReply reply = HttpClient(http.port()).Post(kGenerate, JsonOf(ShortRequest()));
  ASSERT_EQ(reply.code, 200) << reply.body;
  EXPECT_EQ(reply.field("Content-Type"), "text/event-stream");
  EXPECT_EQ(reply.field("X-Accel-Buffering"), "no") << "or nginx keeps tokens back";
  size_t token = 0;
  for (size_t at = 0, end; (end = reply.body.find("\n\n", at)) != std::string::npos; at = end + 2, ++token) {
    v1::GenerateResponse message;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(reply.body.substr(at + 6, end - at - 6), &message).ok());
    ASSERT_LT(token, expected.messages.size());
    EXPECT_EQ(message.token_id(), expected.messages[token].token_id());
    EXPECT_EQ(message.log_probability(), expected.messages[token].log_probability());
  }
  EXPECT_EQ(token, expected.messages.size());
}

TEST(HttpCallsTest, ErrorsHaveTheShapeOfTheApi) {
  HttpServerFixture http;
  const HttpReply unknown = http.Post(kPredict, {{"model", "nothing"}, {"inputs", {json::object()}}});
  EXPECT_EQ(unknown.code, 404);
  EXPECT_EQ(json::parse(unknown.body)["status"], "NOT_FOUND");
  const HttpReply wrong = http.Post(kPredict, {{"model", "sbm"}, {"inputs", {{{"sequence", {{"text", "x"}}}}}}});
  EXPECT_EQ(wrong.code, 400);
  EXPECT_EQ(json::parse(wrong.body)["code"], 3);
  EXPECT_THAT(json::parse(wrong.body)["field"].get<std::string>(), HasSubstr("inputs[0]"));
  EXPECT_EQ(json::parse(HttpClient(http.port()).Post(kPredict, "{").body)["status"], "INVALID_ARGUMENT");
}

TEST(HttpCallsTest, TheDeadlineIsThatOfTheField) {
  TestClock clock;
  ServerOptions options = HttpOptions();
  options.clock = clock.read();
  HttpServerFixture http(options);
  std::jthread running([&] {
    const HttpReply late =
        HttpClient(http.port()).Post(kPredict, JsonOf(SlowRequest()), "X-Request-Timeout-Ms: 3600000\r\n");
    EXPECT_EQ(late.code, 504);
    EXPECT_EQ(json::parse(late.body)["message"], "the deadline has passed");
  });
  EXPECT_TRUE(http.server.WaitForMetric(OfSbm("executions_total"), 1));
  clock.Advance(std::chrono::hours(1));
  running.join();
  EXPECT_EQ(http.server.Metric(R"(edgewise_requests_total{code="DEADLINE_EXCEEDED",model="sbm",version="1"})"), 1.0);
  for (const char* wrong : {"0", "-1", "1.5", "x", "86400001"}) {
    EXPECT_EQ(http.Get("/v1/models", std::string("X-Request-Timeout-Ms: ") + wrong + "\r\n").code, 400) << wrong;
  }
}

TEST(HttpCallsTest, AClientThatGoesCancelsItsWork) {
  HttpServerFixture http;
  HttpClient predict(http.port());
  predict.Send(HttpClient::Posted(kPredict, JsonOf(SlowRequest())));
  EXPECT_TRUE(http.server.WaitForMetric(OfSbm("executions_total"), 1));
  predict.Close();
  EXPECT_TRUE(http.server.WaitForMetric(R"(edgewise_requests_total{code="CANCELLED",model="sbm",version="1"})", 1.0));

  HttpClient stream(http.port());
  stream.Send(HttpClient::Posted(kGenerate, JsonOf(LongRequest())));
  EXPECT_THAT(stream.ReadHead(), HasSubstr("200 OK"));
  std::string chunk;
  EXPECT_TRUE(stream.NextChunk(&chunk));
  stream.Close();
  EXPECT_TRUE(http.server.WaitForMetric(Ended("lm-ssa-local", "CANCELLED"), 1.0));

  const std::string tokens = Of("lm-ssa-local", "generated_tokens_total");
  const double before = http.server.Metric(tokens);
  HttpClient chat(http.port());
  chat.Send(HttpClient::Posted("/v1/completions", json{{"model", "lm-ssa-local"},
                                                       {"prompt", {3, 1, 4}},
                                                       {"n", 3},
                                                       {"max_tokens", 40},
                                                       {"edgewise", {{"samples", 256}}}}
                                                      .dump()));
  EXPECT_TRUE(WaitUntil("a token", [&] { return http.server.Metric(tokens) > before; }));
  chat.Close();
  EXPECT_TRUE(WaitUntil("the end", [&] { return http.server.Metric(Of("lm-ssa-local", "generations_running")) == 0; }));
  EXPECT_TRUE(http.server.WaitForMetric("edgewise_call_memory_bytes", 0.0));
}

// Loans of the engine's turns (queue.h): it does not wake for the calls of a client that is alone.
TEST(HttpCallsTest, ThePortsThreadComputesForALoneClientAndTheEngineForSeveral) {
  HttpServerFixture http;
  HttpClient one(http.port()), other(http.port());
  const std::string body = JsonOf(SmallRequest());
  const auto engine_ran = [&](HttpClient& second) {
    const uint64_t before = CpuTimeOf("engine");
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(one.Post(kPredict, body).code, 200);
      EXPECT_EQ(second.Post(kPredict, body).code, 200);
    }
    return CpuTimeOf("engine") != before;
  };
  EXPECT_TRUE(WaitUntil("loans", [&] { return !engine_ran(one); }));
  EXPECT_TRUE(engine_ran(other));
}

TEST(HttpCallsTest, AFullQueueSaysWhenToComeAgain) {
  ServerOptions options = HttpOptions();
  options.queue.max_requests = 1;
  HttpServerFixture http(options);
  HttpClient running(http.port()), waiting(http.port());
  running.Send(HttpClient::Posted(kPredict, JsonOf(SlowRequest())));
  EXPECT_TRUE(http.server.WaitForMetric(OfSbm("executions_total"), 1));
  waiting.Send(HttpClient::Posted(kPredict, JsonOf(SmallRequest())));
  EXPECT_TRUE(http.server.WaitForMetric(OfSbm("queue_requests"), 1));
  const HttpReply refused = HttpClient(http.port()).Post(kPredict, JsonOf(SmallRequest()));
  EXPECT_EQ(refused.code, 429);
  EXPECT_GE(std::atoi(refused.field("Retry-After").c_str()), 1);
}

// Its client reads nothing, so the generation stops after as many tokens as may wait.
TEST(HttpCallsTest, AStreamThatIsNotReadIsNotWrittenOn) {
  ServerOptions options = HttpOptions();
  options.unsent_tokens = 4;
  options.limits.max_new_tokens = 100000;
  HttpServerFixture http(options);
  HttpClient stream(http.port());
  const int little = 4096;
  setsockopt(stream.fd(), SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
  v1::GenerateRequest request = LongRequest();
  request.mutable_ensemble()->set_samples(1);
  request.set_max_new_tokens(100000);
  stream.Send(HttpClient::Posted(kGenerate, JsonOf(request)));
  double last = -1.0;
  EXPECT_TRUE(WaitUntil("a stop", [&] {
    const double now = http.server.Metric(Of("lm-ssa-local", "generated_tokens_total"));
    std::this_thread::sleep_for(milliseconds(300));
    return std::exchange(last, now) == now && now > 0;
  }));
  EXPECT_LT(last, 100000.0) << "the kernel holds some, the server 4";
}

TEST(HttpCallsTest, ADrainFinishesWhatRunsAndRefusesWhatComes) {
  TestClock clock;
  ServerOptions options = HttpOptions();
  options.clock = clock.read();
  HttpServerFixture http(options);
  HttpClient stream(http.port()), idle(http.port()), late(http.port());
  const int little = 4096;  // the stream runs until it is read
  setsockopt(stream.fd(), SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
  stream.Send(HttpClient::Posted(kGenerate, JsonOf(ShortRequest("lm-dense", 4096))));
  EXPECT_THAT(stream.ReadHead(), HasSubstr("200 OK"));
  EXPECT_EQ(idle.Ask("GET", "/readyz").code, 200);
  http.server.server().AnnounceDrain();
  EXPECT_EQ(http.Get("/readyz").code, 503);
  EXPECT_EQ(HttpClient(http.port()).Post(kPredict, JsonOf(SmallRequest())).code, 200) << "until the drain";
  late.Send("POST /edgewise/v1/predict HTTP/1.1\r\nHost: localhost\r\n");
  EXPECT_EQ(http.Get("/livez").code, 200);  // by the thread that has read the half head before
  TestDrain drain(http.server, clock);
  EXPECT_TRUE(idle.Ended());
  EXPECT_TRUE(WaitUntil("the drain", [&] { return http.server.Health("") != 1; }));
  late.Send("Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}");
  const HttpReply refused = late.Read();
  EXPECT_EQ(refused.code, 503);
  EXPECT_EQ(refused.field("Retry-After"), "1");
  EXPECT_TRUE(late.Ended());
  int events = 0;
  for (std::string chunk; stream.NextChunk(&chunk) && !chunk.empty();) ++events;
  EXPECT_EQ(events, 4096);
  EXPECT_TRUE(drain.WaitForEnd());
}

TEST(HttpCallsTest, RequestsAreCountedByRouteAndKindOfCode) {
  HttpServerFixture http;
  const auto counted = [&](const std::string& route, const std::string& code) {
    return "edgewise_http_requests_total{code=\"" + code + "\",route=\"" + route + "\"}";
  };
  EXPECT_EQ(http.server.Metric(counted("/v1/models/{}", "2xx")), 0.0) << "from the start";
  http.Get("/v1/models/sbm");
  http.Get("/v1/models/nothing");
  http.Get("/nothing/at/all");
  HttpClient(http.port()).Post(kPredict, JsonOf(SmallRequest()));
  HttpClient(http.port()).Post(kPredict, "{");
  // Counted once they are written, which their client may see first.
  EXPECT_TRUE(http.server.WaitForMetric(counted("/v1/models/{}", "2xx"), 1.0));
  EXPECT_TRUE(http.server.WaitForMetric(counted("/v1/models/{}", "4xx"), 1.0));
  EXPECT_TRUE(http.server.WaitForMetric(counted("_other", "4xx"), 1.0));
  EXPECT_TRUE(http.server.WaitForMetric(counted(kPredict, "2xx"), 1.0));
  EXPECT_TRUE(http.server.WaitForMetric(counted(kPredict, "4xx"), 1.0));
  EXPECT_EQ(http.server.Metric(R"(edgewise_requests_total{code="OK",model="sbm",version="1"})"), 1.0);
  EXPECT_EQ(http.server.Metric(R"(edgewise_requests_total{code="INVALID_ARGUMENT",model="_other",version="_other"})"),
            1.0);
}

}  // namespace
}  // namespace edgewise::server
