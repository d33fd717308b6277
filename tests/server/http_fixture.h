// A server with the HTTP front on loopback. Includes gRPC.
#ifndef EDGEWISE_TESTS_SERVER_HTTP_FIXTURE_H_
#define EDGEWISE_TESTS_SERVER_HTTP_FIXTURE_H_

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/generate_calls.h"
#include "tests/server/http_client.h"
#include "tests/server/test_server.h"

namespace edgewise::server {

inline constexpr char kPredict[] = "/edgewise/v1/predict", kGenerate[] = "/edgewise/v1/generate";

inline ServerOptions HttpOptions(const std::string& repository = tests::TestdataFolder()) {
  ServerOptions options = TestOptions(repository);
  options.http_listen = "127.0.0.1:0";
  return options;
}

class HttpServerFixture {
 public:
  explicit HttpServerFixture(const ServerOptions& options = HttpOptions()) : server(options) {}

  int port() { return server.server().http_port(); }
  HttpReply Get(const std::string& path, const std::string& fields = "") {
    return HttpClient(port()).Ask("GET", path, fields);
  }
  HttpReply Post(const std::string& path, const nlohmann::json& body, const std::string& fields = "") {
    return HttpClient(port()).Post(path, body.dump(), fields);
  }
  // The body of a 200.
  nlohmann::json Answer(const std::string& path, const nlohmann::json& body) {
    const HttpReply reply = Post(path, body);
    EXPECT_EQ(reply.code, 200) << reply.body;
    return reply.code == 200 ? nlohmann::json::parse(reply.body) : nlohmann::json();
  }
  // The events of a stream, without [DONE].
  std::vector<nlohmann::json> Events(const std::string& path, const nlohmann::json& body) {
    const HttpReply reply = Post(path, body);
    EXPECT_EQ(reply.code, 200) << reply.body;
    EXPECT_EQ(reply.field("Content-Type"), "text/event-stream");
    std::vector<nlohmann::json> events;
    for (size_t at = 0, end; (end = reply.body.find("\n\n", at)) != std::string::npos; at = end + 2) {
      const std::string event = reply.body.substr(at, end - at);
      EXPECT_EQ(event.substr(0, 6), "data: ") << event;
      if (event != "data: [DONE]") events.push_back(nlohmann::json::parse(event.substr(6)));
    }
    return events;
  }

  TestServer server;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_HTTP_FIXTURE_H_
