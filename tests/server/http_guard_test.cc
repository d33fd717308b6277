// Who may ask the HTTP front, and what may be sent to it: each promise of the gRPC port holds there.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/guard/auth.h"
#include "tests/server/http_fixture.h"

namespace edgewise::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const json kSmall = {{"model", "sbm"}, {"inputs", {{{"sequence", {{"tokenIds", {{"values", {1, 2, 3, 4}}}}}}}}}};

TEST(HttpGuardTest, AnOpenAddressNeedsTlsOrAnExplicitWord) {
  ServerOptions options;
  options.http_listen = "0.0.0.0:8000";
  EXPECT_THAT(MakeCredentials(options).status().message(), HasSubstr("--http_listen=0.0.0.0:8000 is not a loopback"));
  options.security.insecure_bind = true;
  EXPECT_TRUE(MakeCredentials(options).ok());
  options.security.auth_token_file = "tokens";
  EXPECT_THAT(MakeCredentials(options).status().message(), HasSubstr("--auth_token_file with --http_listen"));
}

TEST(HttpGuardTest, EveryRouteButHealthAndThePageNeedsTheTokenWhenThereIsOne) {
  TestFolder folder;
  folder.Write("tokens", "0123456789abcdef\n");
  ServerOptions options = HttpOptions();
  options.security.auth_token_file = folder.path() + "/tokens";
  HttpServerFixture http(options);
  for (const char* path :
       {"/livez", "/readyz", "/health", "/healthz", "/v2/health/live", "/v2/health/ready", "/", "/page/page.js"}) {
    EXPECT_EQ(http.Get(path).code, 200) << path;
  }
  EXPECT_EQ(HttpClient(http.port()).Ask("OPTIONS", "*").code, 204);
  const std::string bearer = "Authorization: Bearer ";
  for (const char* path : {"/metrics", "/v1/models", "/v1/models/sbm", "/v2", "/v2/models/sbm", "/v2/models/stats"}) {
    EXPECT_EQ(http.Get(path).code, 401) << path;
    EXPECT_EQ(http.Get(path, bearer + "0123456789abcdeX\r\n").code, 401) << path;
    EXPECT_EQ(http.Get(path, absl::StrCat(bearer, "0123456789abcdef\r\n", bearer, "0123456789abcdef\r\n")).code, 400)
        << path;
    EXPECT_EQ(http.Get(path, bearer + "0123456789abcdef\r\n").code, 200) << path;
  }
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/embeddings", kPredict,
                           "/edgewise/v1/generate", "/v2/models/sbm/infer", "/v2/repository/index"}) {
    const HttpReply reply = http.Post(path, kSmall);
    EXPECT_EQ(reply.code, 401) << path;
    EXPECT_EQ(reply.field("WWW-Authenticate"), "Bearer");
    EXPECT_NE(http.Post(path, kSmall, bearer + "0123456789abcdef\r\n").code, 401) << path;
  }
  EXPECT_EQ(json::parse(http.Get("/v1/models").body)["error"]["code"], "invalid_api_key");
}

TEST(HttpGuardTest, OtherNamesAndOriginsAreForbidden) {
  ServerOptions options = HttpOptions();
  options.http_hosts = {"edge.example.com"};
  options.http_origins = {"https://app.example.com"};
  HttpServerFixture http(options);
  const auto code = [&](const std::string& fields) {
    HttpClient client(http.port());
    client.Send("GET /v1/models HTTP/1.1\r\n" + fields + "\r\n");
    return client.Read().code;
  };
  EXPECT_EQ(code("Host: localhost\r\n"), 200);
  EXPECT_EQ(code("Host: edge.example.com:8000\r\n"), 200);
  EXPECT_EQ(code("Host: evil.com\r\n"), 403);
  EXPECT_EQ(code(""), 400);
  EXPECT_EQ(code("Host: localhost\r\nOrigin: http://evil.com\r\n"), 403);
  EXPECT_EQ(code("Host: localhost\r\nOrigin: null\r\n"), 403);
  EXPECT_EQ(code("Host: localhost\r\nOrigin: http://localhost\r\n"), 200);

  const std::string origin = "Origin: https://app.example.com\r\n";
  const HttpReply reply = http.Get("/v1/models", origin);
  EXPECT_EQ(reply.code, 200);
  EXPECT_EQ(reply.field("Access-Control-Allow-Origin"), "https://app.example.com");
  EXPECT_EQ(reply.field("Vary"), "Origin");
  HttpClient client(http.port());
  const HttpReply preflight = client.Ask("OPTIONS", kPredict,
                                         origin +
                                             "Access-Control-Request-Method: POST\r\n"
                                             "Access-Control-Request-Headers: content-type, authorization\r\n");
  EXPECT_EQ(preflight.code, 204);
  EXPECT_EQ(preflight.field("Access-Control-Allow-Methods"), "GET, POST");
  EXPECT_EQ(preflight.field("Access-Control-Allow-Headers"), "content-type, authorization");
  EXPECT_EQ(client.Post(kPredict, kSmall.dump(), origin).code, 200) << "on the same connection";
  EXPECT_EQ(http.Post(kPredict, kSmall, "Origin: http://evil.com\r\n").code, 403);
  EXPECT_EQ(http.server.Metric(R"(edgewise_requests_total{code="OK",model="sbm",version="1"})"), 1.0);
}

// A page of another origin can post any type of a form without asking first.
TEST(HttpGuardTest, ABodyIsJsonAndNotCompressed) {
  HttpServerFixture http;
  const std::string body = kSmall.dump();
  const auto code = [&](const std::string& fields) {
    HttpClient client(http.port());
    client.Send("POST " + std::string(kPredict) + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n" + fields + "\r\n" + body);
    return client.Read().code;
  };
  EXPECT_EQ(code("Content-Type: application/json\r\n"), 200);
  EXPECT_EQ(code("content-type: Application/JSON; charset=utf-8\r\n"), 200);
  for (const char* type :
       {"", "Content-Type: text/plain\r\n", "Content-Type: application/x-www-form-urlencoded\r\n",
        "Content-Type: application/jsonx\r\n", "Content-Type: application/json\r\nContent-Encoding: gzip\r\n"}) {
    EXPECT_EQ(code(type), 415) << type;
  }
}

TEST(HttpGuardTest, RequestsThatAreReadInTwoWaysEndTheirConnection) {
  HttpServerFixture http;
  const std::string start = "POST " + std::string(kPredict) +
                            " HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                            "application/json\r\n";
  for (const char* rest :
       {"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", "X: a\r\n folded\r\nContent-Length: 2\r\n\r\n{}",
        "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n"}) {
    HttpClient client(http.port());
    client.Send(start + rest + "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(client.Read().code, 400) << rest;
    EXPECT_TRUE(client.Ended()) << rest;
  }
  HttpClient chunks(http.port());
  std::string body;
  for (const char byte : kSmall.dump()) body += std::string("1\r\n") + byte + "\r\n";
  chunks.Send(start + "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(chunks.Read().code, 100);
  chunks.Send(body + "0\r\n\r\n");
  EXPECT_EQ(chunks.Read().code, 200);
  EXPECT_EQ(chunks.Post(kPredict, kSmall.dump()).code, 200) << "on the same connection";
}

TEST(HttpGuardTest, TheLimitOfMessagesIsThatOfBodies) {
  ServerOptions options = HttpOptions();
  options.max_message_bytes = 100000;
  HttpServerFixture http(options);
  const std::string start = "POST " + std::string(kPredict) +
                            " HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                            "application/json\r\n";
  HttpClient told(http.port());
  told.Send(start + "Content-Length: 100001\r\n\r\n");
  const HttpReply reply = told.Read();
  EXPECT_EQ(reply.code, 413);
  EXPECT_THAT(reply.body, HasSubstr("the server takes at most 100000"));
  EXPECT_TRUE(told.Ended());
  HttpClient chunks(http.port());
  chunks.Send(start + "Transfer-Encoding: chunked\r\n\r\n186a1\r\n" + std::string(100001, ' '));
  EXPECT_EQ(chunks.Read().code, 413);
  // 100,000 are taken, white space too, and prepared apart.
  std::string body = kSmall.dump();
  body.resize(100000, ' ');
  EXPECT_EQ(HttpClient(http.port()).Post(kPredict, body).code, 200);
  const std::string deep = "{\"inputs\":" + std::string(70, '[') + std::string(70, ']') + "}";
  EXPECT_EQ(HttpClient(http.port()).Post(kPredict, deep).code, 400);
}

TEST(HttpGuardTest, ABodyThatDoesNotComeInTimeEndsItsConnection) {
  ServerOptions options = HttpOptions();
  options.message_timeout = milliseconds(100);
  HttpServerFixture http(options);
  HttpClient client(http.port());
  client.Send("POST " + std::string(kPredict) +
              " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              "Content-Length: 1000\r\n\r\n{");
  EXPECT_EQ(client.Read().code, 408);
  EXPECT_TRUE(client.Ended());
  EXPECT_TRUE(http.server.WaitForMetric("edgewise_call_memory_bytes", 0.0));
}

TEST(HttpGuardTest, BodiesOfOneClientStayWithinItsShareOfTheMemory) {
  ServerOptions options = HttpOptions();
  options.max_memory = uint64_t{32} << 20;
  options.max_message_bytes = uint64_t{4} << 20;
  HttpServerFixture http(options);
  const std::string half = "POST " + std::string(kPredict) +
                           " HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                           "application/json\r\nContent-Length: 4000000\r\n\r\n" +
                           std::string(2000000, ' ');
  const double limit = http.server.Metric("edgewise_call_memory_limit_bytes");
  std::vector<std::unique_ptr<HttpClient>> clients;
  int refused = 0;
  for (int i = 0; i < 16; ++i) {
    clients.push_back(std::make_unique<HttpClient>(http.port()));
    clients.back()->Send(half);
    if (i == 0) {
      EXPECT_TRUE(WaitUntil("the first body to be counted",
                            [&] { return http.server.Metric("edgewise_call_memory_bytes") >= 2000000; }));
    }
    EXPECT_LE(http.server.Metric("edgewise_call_memory_bytes"), limit);
  }
  EXPECT_TRUE(WaitUntil("a refusal", [&] {
    for (const auto& client : clients) {
      char byte;
      if (recv(client->fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1) ++refused;
    }
    return refused > 0;
  }));
  for (const auto& client : clients) {
    char byte;
    if (recv(client->fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) != 1) continue;
    const HttpReply reply = client->Read();
    EXPECT_EQ(reply.code, 429);
    EXPECT_EQ(reply.field("Retry-After"), "1");
    break;
  }
  clients.clear();
  EXPECT_TRUE(http.server.WaitForMetric("edgewise_call_memory_bytes", 0.0));
  EXPECT_EQ(http.Post(kPredict, kSmall).code, 200);
}

TEST(HttpGuardTest, ConnectionsBeyondTheLimitAreClosedAndThoseThatEndMakeRoom) {
  ServerOptions options = HttpOptions();
  options.max_connections_per_peer = 8;
  HttpServerFixture http(options);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<HttpClient>(http.port()));
    EXPECT_EQ(clients.back()->Ask("GET", "/livez").code, 200);
  }
  EXPECT_TRUE(HttpClient(http.port()).Ended());
  clients.resize(4);
  EXPECT_TRUE(WaitUntil("room", [&] { return http.Get("/livez").code == 200; }));
}

TEST(HttpGuardTest, AConnectionWithoutAWholeRequestGivesWayAndOneThatIsAnsweredDoesNot) {
  ServerOptions options = HttpOptions();
  options.max_connections = 4;
  HttpServerFixture http(options);
  HttpClient answered(http.port()), idle(http.port()), head(http.port()), body(http.port());
  answered.Send(HttpClient::Posted(
      kGenerate,
      json({{"model", "lm-dense"}, {"prompt", {{"tokenIds", {{"values", {1, 2}}}}}}, {"maxNewTokens", 4096}}).dump()));
  EXPECT_THAT(answered.ReadHead(), HasSubstr("200 OK"));
  EXPECT_EQ(idle.Ask("GET", "/livez").code, 200);
  head.Send("GET /livez HTTP/1.1\r\nHo");
  body.Send("POST " + std::string(kPredict) +
            " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{");
  std::vector<std::unique_ptr<HttpClient>> others;
  for (int i = 0; i < 2; ++i) {
    others.push_back(std::make_unique<HttpClient>(http.port(), 2 + i));
    EXPECT_EQ(others.back()->Ask("GET", "/livez").code, 200) << i;
  }
  EXPECT_TRUE(head.Ended());
  EXPECT_TRUE(body.Ended());
  EXPECT_EQ(idle.Ask("GET", "/livez").code, 200) << "it has been idle for less long";
  for (const auto& other : others) EXPECT_EQ(other->Ask("GET", "/livez").code, 200);
  std::string token;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(answered.NextChunk(&token) && !token.empty()) << i;
}

TEST(HttpGuardTest, OneAddressLeavesRoomForOthersHoweverFewDescriptorsThereAre) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{1024, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  HttpServerFixture http;
  setrlimit(RLIMIT_NOFILE, &before);
  std::vector<std::unique_ptr<HttpClient>> held;
  for (int i = 0; i < 64; ++i) {
    held.push_back(std::make_unique<HttpClient>(http.port(), 2));
    EXPECT_EQ(held.back()->Ask("GET", "/livez").code, 200) << i;
  }
  EXPECT_EQ(HttpClient(http.port(), 2).Ask("GET", "/livez").code, 0) << "an eighth of 496 would be less";
  EXPECT_EQ(http.Get("/livez").code, 200);
}

TEST(HttpGuardTest, AnyBytesHaveAnAnswerOrTheEndAndTheNextRequestIsServed) {
  HttpServerFixture http;
  std::mt19937_64 random(1);
  const std::string good = HttpClient::Posted(kPredict, kSmall.dump(), "Connection: close\r\n");
  for (int i = 0; i < 400; ++i) {
    const std::string bytes = Damaged(good, random);
    HttpClient client(http.port());
    client.Send(bytes);
    shutdown(client.fd(), SHUT_WR);
    const HttpReply reply = client.Read();
    EXPECT_TRUE(reply.code == 0 || (reply.code >= 200 && reply.code < 500)) << reply.code << "\n" << bytes;
  }
  EXPECT_EQ(http.Post(kPredict, kSmall).code, 200);
  EXPECT_TRUE(http.server.WaitForMetric("edgewise_call_memory_bytes", 0.0));
}

TEST(HttpGuardTest, ThePortSpeaksTlsWithTheSameFiles) {
  TestFolder folder;
  const std::string cd = "cd " + folder.path() + " && ";
  const std::string make = cd +
                           "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=client -addext "
                           "subjectAltName=IP:127.0.0.1 -keyout key.pem -out certificate.pem 2> /dev/null";
  if (std::system(make.c_str()) != 0) GTEST_SKIP() << "openssl is not installed";
  ServerOptions options = HttpOptions();
  options.security = {.tls_certificate = folder.path() + "/certificate.pem",
                      .tls_key = folder.path() + "/key.pem",
                      .tls_client_ca = folder.path() + "/certificate.pem"};
  HttpServerFixture http(options);
  // `more`: arguments of a client of OpenSSL. Returns what it was answered.
  const auto ask = [&](const std::string& more) {
    const std::string command =
        cd +
        "printf 'GET /v1/models HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' | timeout 60 openssl "
        "s_client -quiet -verify_quiet -CAfile certificate.pem -connect 127.0.0.1:" +
        std::to_string(http.port()) + " " + more + " > answer 2> /dev/null";
    [[maybe_unused]] const int ended = std::system(command.c_str());
    std::ifstream file(folder.path() + "/answer");
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_THAT(ask("-cert certificate.pem -key key.pem"), ::testing::StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_EQ(ask(""), "") << "without a certificate";
  EXPECT_EQ(ask("-cert certificate.pem -key key.pem -tls1_1"), "");
  HttpClient plain(http.port());
  plain.Send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(plain.Read().code, 0);
}

}  // namespace
}  // namespace edgewise::server
