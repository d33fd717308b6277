// Which heads, hosts, origins and paths are served.
#include <gtest/gtest.h>

#include <string>

#include "server/http/head.h"
#include "server/http/routes.h"

namespace edgewise::server {
namespace {

int CodeOf(const std::string& fields, const std::string& line = "POST / HTTP/1.1") {
  return CheckHead(line + "\r\n" + fields + "\r\n").code;
}

TEST(HttpHeadTest, WhatAnotherPartyMayReadOtherwiseIsRefused) {
  EXPECT_EQ(CodeOf("Host: a\r\nContent-Length: 3\r\n"), 0);
  EXPECT_EQ(CodeOf("Host: a\r\nTransfer-Encoding: chunked\r\n"), 0);
  EXPECT_EQ(CodeOf("Host: a\r\nTRANSFER-encoding:\tChunked \r\n"), 0);
  for (const char* fields : {
           "Content-Length: 3\r\nContent-Length: 3\r\n",
           "Content-Length: 3\r\ncontent-length: 4\r\n",
           "Content-Length: 3, 3\r\n",
           "Content-Length: +3\r\n",
           "Content-Length: -1\r\n",
           "Content-Length:\r\n",
           "Content-Length: 0x3\r\n",
           "Content-Length: 3 3\r\n",
           "Content-Length: 9999999999999999999\r\n",
           "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: gzip, chunked\r\n",
           "Transfer-Encoding: chunked, chunked\r\n",
           "Transfer-Encoding: identity\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
           "X: a\r\n folded\r\n",
           "X: a\r\n\tfolded\r\n",
           "Host: a\r\nHost: b\r\n",
           "Authorization: Bearer a\r\nauthorization: Bearer a\r\n",
           "Content-Type: application/json\r\nContent-type: text/plain\r\n",
           "Inference-Header-Content-Length: 101\r\nInference-Header-Content-Length: 5\r\n",
           "X-Request-Id: a\r\nX-Request-ID: b\r\n",
           "X-Request-Timeout-Ms: 1000\r\nx-request-timeout-ms: 0\r\n",
           "X: a\nY: b\r\n",
           "X: a\rY: b\r\n",
           "no colon\r\n",
           ": empty\r\n",
           "X: \x01\r\n",
           "X: \x7f\r\n",
       }) {
    EXPECT_EQ(CodeOf(fields), 400) << fields;
  }
  EXPECT_EQ(CodeOf(std::string("X: a\0b\r\n", 8)), 400) << "a NUL";
  EXPECT_EQ(CodeOf("Transfer-Encoding: chunked\r\n", "POST / HTTP/1.0"), 400);
  EXPECT_EQ(CodeOf("Content-Encoding: gzip\r\n"), 415);
  EXPECT_EQ(CodeOf("Content-Encoding: identity\r\n"), 0);
  EXPECT_EQ(CodeOf("Accept: a\r\nAccept: b\r\nX-Request-Id: a\r\nAuthorization: b\r\n"), 0);
}

TEST(HttpHeadTest, AHundredFieldsAreTakenAndNoMore) {
  std::string fields;
  for (int i = 0; i < 100; ++i) fields += "X: y\r\n";
  EXPECT_EQ(CodeOf(fields), 0);
  EXPECT_EQ(CodeOf(fields + "X: y\r\n"), 431);
}

TEST(HttpHostTest, AddressesLocalhostAndNamesOfTheFlagAreServed) {
  const std::vector<std::string> names = {"edge.example.com", "*.svc.local"};
  for (const char* host :
       {"127.0.0.1", "127.0.0.1:8000", "10.1.2.3:80", "[::1]", "[::1]:8000", "[2001:db8::1]:1", "localhost",
        "LocalHost:8000", "edge.example.com", "EDGE.example.com:443", "a.svc.local", "a.b.svc.local:8000"}) {
    EXPECT_TRUE(IsServedHost(host, names)) << host;
  }
  for (const char* host :
       {"", "evil.com", "localhost.evil.com", "127.0.0.1.evil.com", "1.2.3", "svc.local", "xsvc.local",
        "edge.example.com.", "::1", "[::1", "[::1]x", "localhost:", "localhost:8x", "localhost:80:80", "[127.0.0.1]"}) {
    EXPECT_FALSE(IsServedHost(host, names)) << host;
  }
  EXPECT_TRUE(IsServedHost("anything", {"*"}));
}

TEST(HttpHostTest, OriginsAreItsOwnAndThoseOfTheFlag) {
  const std::vector<std::string> origins = {"https://app.example.com"};
  for (const char* origin : {"http://localhost:8000", "https://localhost:8000", "https://app.example.com"}) {
    EXPECT_TRUE(IsAllowedOrigin(origin, "localhost:8000", origins)) << origin;
  }
  for (const char* origin : {"null", "", "http://localhost", "http://localhost:8001", "http://app.example.com",
                             "https://app.example.com.evil.com", "file://localhost:8000", "localhost:8000"}) {
    EXPECT_FALSE(IsAllowedOrigin(origin, "localhost:8000", origins)) << origin;
  }
  EXPECT_FALSE(IsAllowedOrigin("http://", "", {}));
}

TEST(HttpRoutesTest, AnOpenSegmentIsDecodedAndNeverEmptyOrMore) {
  Routes routes;
  routes.Add({.method = "GET", .path = "/v1/models", .error = PlainError});
  routes.Add({.method = "GET", .path = "/v1/models/{}", .error = PlainError});
  const auto argument = [&](const char* path) {
    const Routes::Match match = routes.Find("GET", path);
    return match.route == nullptr ? std::string("none") : match.arguments.empty() ? "" : match.arguments[0];
  };
  EXPECT_EQ(argument("/v1/models"), "");
  EXPECT_EQ(argument("/v1/models/a%40%31"), "a@1");
  for (const char* path : {"/v1/models/", "/v1/models/a/b", "/v1/models/a%4", "/v1/models/a%zz", "/v1/models/%00",
                           "/v1", "/v1/modelss", "//v1/models", "/v1//models", "/"}) {
    EXPECT_EQ(argument(path), "none") << path;
  }
  EXPECT_EQ(argument("/v1/models/a%2Fb"), "a/b") << "a name, no path";
  EXPECT_EQ(routes.Find("HEAD", "/v1/models").refusal.code, 0);
  EXPECT_EQ(routes.Find("POST", "/v1/models").refusal.code, 405);
}

}  // namespace
}  // namespace edgewise::server
