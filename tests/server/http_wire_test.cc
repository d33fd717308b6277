// HTTP/1.1 as RFC 9112 has it, and what reading it costs.
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/server/cpu_time.h"
#include "tests/server/http_fixture.h"

namespace edgewise::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const json kFourTokens = {{"model", "sbm"}, {"inputs", {{{"sequence", {{"tokenIds", {{"values", {1, 2, 3, 4}}}}}}}}}};

class HttpWireTest : public ::testing::Test {
 protected:
  static ServerOptions Options() {
    ServerOptions options = HttpOptions();
    options.max_message_bytes = kMost;
    options.http_hosts = {"edge.example.com"};
    return options;
  }
  HttpReply Send(const std::string& bytes, bool no_body = false) {
    HttpClient client(http_.port());
    client.Send(bytes);
    return client.Read(no_body);
  }

  static constexpr uint64_t kMost = 8 << 20;
  const std::string chunked_ = absl::StrCat("POST ", kPredict,
                                            " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                                            "Transfer-Encoding: chunked\r\n\r\n");
  HttpServerFixture http_{Options()};
};

TEST_F(HttpWireTest, TheHostOfAnAbsoluteTargetStandsForTheField) {
  const auto code = [&](const std::string& target, const std::string& host = "localhost",
                        const std::string& more = "") {
    return Send(absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: ", host, "\r\n", more, "\r\n")).code;
  };
  for (const char* target :
       {"http://127.0.0.1/v1/models", "HTTP://localhost:8000/v1/models?x=/", "https://edge.example.com/v1/models",
        "http://[::1]:80/v1/models/sbm", "http://localhost", "http://localhost?x"}) {
    EXPECT_EQ(code(target), 200) << target;
  }
  EXPECT_EQ(code("http://localhost/v1/models", "evil.com"), 200) << "Host is not looked at";
  for (const char* target : {"http://evil.com/v1/models", "http://localhost@evil.com/v1/models",
                             "http://localhost.evil.com", "http://localhost:x/v1/models"}) {
    EXPECT_EQ(code(target), 403) << target;
  }
  for (const char* target : {"http:///v1/models", "http://", "ftp://localhost/v1/models", "localhost/v1/models", "*",
                             "localhost:80", "http:/v1/models"}) {
    EXPECT_EQ(code(target), 400) << target;
  }
  EXPECT_EQ(code("http://localhost/nothing"), 404);
  EXPECT_EQ(code("http://localhost/v1/models", "evil.com", "Origin: http://localhost\r\n"), 200);
  EXPECT_EQ(code("http://127.0.0.1/v1/models", "localhost", "Origin: http://localhost\r\n"), 403);
  EXPECT_EQ(Send("GET http://localhost/v1/models HTTP/1.1\r\n\r\n").code, 400) << "without the field";
}

TEST_F(HttpWireTest, OneEmptyLineInFrontOfARequestIsSkipped) {
  HttpClient client(http_.port());
  for (const char* line : {"\r\n", "", "\r\n"}) {
    client.Send(absl::StrCat(line, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    EXPECT_EQ(client.Read().code, 200);
  }
  client.Send("\r");
  client.Send("\n");
  EXPECT_EQ(client.Ask("GET", "/livez").code, 200) << "in two parts";
  client.Send("\r\n\r\nGET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.Read().code, 400) << "two";
  EXPECT_TRUE(client.Ended());
}

TEST_F(HttpWireTest, TheServerAsAWholeHasOptions) {
  HttpClient client(http_.port());
  for (const char* target : {"*", "http://localhost"}) {
    EXPECT_EQ(client.Ask("OPTIONS", target).code, 204) << target;
  }
  EXPECT_EQ(client.Ask("GET", "/livez").code, 200) << "on the same connection";
  EXPECT_EQ(Send("OPTIONS * HTTP/1.1\r\nHost: evil.com\r\n\r\n").code, 403);
  EXPECT_EQ(Send("OPTIONS * HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx").code, 400);
  EXPECT_EQ(Send("OPTIONS http://localhost/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n").code, 405);
}

TEST_F(HttpWireTest, AHeadThatCannotEndIsAnsweredAtOnce) {
  for (const char* head : {"GET /livez HTTP/1.1\nHost: localhost\n\n", "\nGET", "GET / HTTP/1.1\r\nHost: a\r\n\n"}) {
    EXPECT_EQ(Send(head).code, 400) << head;
  }
}

TEST_F(HttpWireTest, KServesFirstVersionIsNotFoundAndSaysWhatIsServed) {
  for (const char* path : {"/v1/models/sbm:predict", "/v1/models/nothing:explain"}) {
    const HttpReply reply = http_.Post(path, {{"instances", {1}}});
    EXPECT_EQ(reply.code, 404) << path;
    EXPECT_THAT(reply.body, HasSubstr("/v2/models/NAME/infer"));
    EXPECT_EQ(reply.field("Allow"), "");
  }
  EXPECT_EQ(http_.Post("/v1/models/sbm", json::object()).code, 405);
  EXPECT_THAT(http_.Post("/v1/models:x", json::object()).body, ::testing::Not(HasSubstr("infer")));
}

TEST_F(HttpWireTest, GetTakesNoBody) {
  EXPECT_EQ(Send("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}").code, 400);
}

// A client that waits for the answer before it sends the data has it.
TEST_F(HttpWireTest, TheSizeOfAChunkBeyondTheLimitIsRefusedAtOnce) {
  for (const char* size : {"7FFFFFFFFFFFFFFF", "800001"}) {
    HttpClient client(http_.port());
    client.Send(absl::StrCat(chunked_, "1\r\n{\r\n", size, "\r\n"));
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.code, 413) << size;
    EXPECT_THAT(reply.body, HasSubstr("the server takes at most 8388608"));
    EXPECT_TRUE(client.Ended());
  }
}

// One line of a chunk without an end, and many that end.
TEST_F(HttpWireTest, ExtensionsWithoutEndAreRefused) {
  std::string many;
  for (int i = 0; i < 3000; ++i) many += "1;a=b\r\n \r\n";
  EXPECT_EQ(Send(chunked_ + many).code, 431);
  EXPECT_EQ(Send(absl::StrCat(chunked_, "1;", std::string(20000, 'x'))).code, 431);
  EXPECT_EQ(Send(absl::StrCat(chunked_, "0\r\nX: ", std::string(20000, 'x'))).code, 431);
}

// On the threads of the port, which all clients share: a chunk costs what its bytes cost.
TEST_F(HttpWireTest, ABodyInSmallChunksCostsWhatItsBytesCost) {
  std::string chunks;
  for (int i = 0; i < 1 << 20; ++i) chunks += "1\r\n \r\n";
  chunks += "0\r\n\r\n";
  const auto cost = [&](const std::string& request) {
    uint64_t least = std::numeric_limits<uint64_t>::max();
    for (int i = 0; i < 3; ++i) {
      const uint64_t before = CpuTimeOf("http");
      EXPECT_EQ(Send(request).code, 400);
      least = std::min(least, CpuTimeOf("http") - before);
    }
    return least;
  };
  const uint64_t whole = cost(HttpClient::Posted(kPredict, std::string(chunks.size(), ' ')));
  const uint64_t in_chunks = cost(chunked_ + chunks);
  EXPECT_LT(in_chunks, 10 * whole) << "the same bytes as a body of a known length: " << whole << " ns";
  RecordProperty("whole_ns", static_cast<int>(whole));
  RecordProperty("chunks_ns", static_cast<int>(in_chunks));
}

TEST_F(HttpWireTest, RequestsThatComeTogetherAreAllAnswered) {
  std::string all;
  for (int i = 0; i < 400; ++i) {
    all += "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
    const std::string body = kFourTokens.dump() + std::string(i % 50 == 0 ? 50000 : 100, ' ');
    all += HttpClient::Posted(kPredict, body, absl::StrCat("X-Request-Id: ", i, "\r\n"));
  }
  HttpClient client(http_.port());
  std::jthread sender([&] { client.Send(all); });
  for (int i = 0; i < 400; ++i) {
    ASSERT_EQ(client.Read().code, 200) << i;
    const HttpReply reply = client.Read();
    ASSERT_EQ(reply.code, 200) << i;
    ASSERT_EQ(reply.field("X-Request-Id"), std::to_string(i));
  }
  sender.join();
  EXPECT_TRUE(http_.server.WaitForMetric("edgewise_call_memory_bytes", 0.0));
}

TEST_F(HttpWireTest, BytesBehindANulAreReadOnEveryRoute) {
  for (const char* path : {kPredict, kGenerate, "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/embed",
                           "/embed_all", "/similarity", "/predict", "/rerank", "/tokenize", "/decode", "/v1/rerank",
                           "/v2/rerank", "/", "/v2/models/sbm/infer", "/v2/repository/index"}) {
    for (const std::string& body : {std::string("{}\0", 3), std::string("{}\0}{\xff", 6)}) {
      const HttpReply reply = HttpClient(http_.port()).Post(path, body);
      EXPECT_TRUE(reply.code == 400 || reply.code == 422) << path << ": " << reply.code;
      EXPECT_THAT(reply.body, HasSubstr("the body is no JSON, at byte 3")) << path;
    }
  }
}

// The limit that a value of the right type would be told.
TEST_F(HttpWireTest, AValueOfAnotherTypeIsToldTheRealLimit) {
  struct Limited {
    const char* path;
    std::string before;  // the body in front of the value
    std::string behind;
    const char* beyond;  // a value of the right type
    const char* limit;
  };
  const std::string writes = R"({"model":"lm-dense","prompt":[1],)", embeds = R"({"model":"encoder","input":"a",)";
  const auto native = [](const char* field) { return absl::StrCat(R"({"model":"sbm","inputs":[{}],)", field, ":"); };
  const std::vector<Limited> all = {
      {"/v1/completions", writes + R"("max_tokens":)", "}", "4097", "4096"},
      {"/v1/completions", writes + R"("n":)", "}", "129", "128"},
      {"/v1/completions", writes + R"("temperature":)", "}", "-1", "0"},
      {"/v1/completions", writes + R"("top_p":)", "}", "2", "1"},
      {"/v1/completions", writes + R"("presence_penalty":)", "}", "3", "-2"},
      {"/v1/completions", writes + R"("frequency_penalty":)", "}", "3", "-2"},
      {"/v1/completions", writes + R"("edgewise":{"min_p":)", "}}", "2", "1"},
      {"/v1/completions", writes + R"("edgewise":{"repetition_penalty":)", "}}", "101", "100"},
      {"/v1/completions", writes + R"("edgewise":{"samples":)", "}}", "257", "256"},
      {"/v1/completions", writes + R"("edgewise":{"priority":)", "}}", "4", "3"},
      {"/v1/completions", writes + R"("edgewise":{"max_density":)", "}}", "2", "1"},
      {"/v1/chat/completions", R"({"model":"lm-dense","messages":[],"logprobs":true,"top_logprobs":)", "}", "21", "20"},
      {kPredict, native(R"("ensemble":{"samples")"), "}}", "257", "256"},
      {kPredict, native(R"("priority")"), "}", "4", "3"},
      {kPredict, native(R"("ensemble":{"tolerance")"), "}}", "-1", "0"},
      {kGenerate, R"({"model":"lm-dense","prompt":{"tokenIds":{"values":[1]}},"maxNewTokens":)", "}", "4097", "4096"},
      {"/v2/models/sbm/infer",
       R"({"inputs":[{"name":"input_ids","datatype":"INT64","shape":[1,2],"data":[1,2]}],"parameters":{"samples":)",
       "}}", "257", "256"},
  };
  for (const Limited& one : all) {
    for (const char* value : {"\"abcd\"", "true", one.beyond}) {
      const std::string body = one.before + value + one.behind;
      const HttpReply reply = HttpClient(http_.port()).Post(one.path, body);
      EXPECT_EQ(reply.code, 400) << body;
      const size_t at = reply.body.find(value == std::string("\"abcd\"") ? "abcd" : value);
      EXPECT_NE(at, std::string::npos) << "the value: " << reply.body;
      EXPECT_NE(reply.body.find(one.limit, at == std::string::npos ? 0 : at + 1), std::string::npos)
          << "the limit " << one.limit << ": " << reply.body;
    }
  }
}

}  // namespace
}  // namespace edgewise::server
