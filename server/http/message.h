// A request of HTTP and its answer, without a connection.
#ifndef EDGEWISE_SERVER_HTTP_MESSAGE_H_
#define EDGEWISE_SERVER_HTTP_MESSAGE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace edgewise::server {

struct HttpRequest {
  std::string method;
  std::string path;                    // as sent, without host and query
  std::string host;                    // that the client reaches the server by, with or without a port; empty: none
  std::vector<std::string> arguments;  // the segments that the route's path leaves open, decoded
  std::string id;                      // X-Request-Id; empty: none
  std::string if_none_match;           // as sent
  bool takes_gzip = false;
  std::string json_length;  // Inference-Header-Content-Length; empty: none
  std::string body;
};

struct HttpAnswer {
  int code = 200;
  std::string type = "application/json";
  std::string body;
  const char* cache = "no-store";
  std::vector<std::pair<std::string, std::string>> fields = {};
};

// Why a request is not served. Code 0: it is.
struct HttpRefusal {
  int code = 0;
  absl::Status status;
};

// The code of HTTP for an error.
int HttpCodeOf(const absl::Status& status);

// How an API shows an error with that code; one function for each API. They are pure.
using ErrorBody = std::string (*)(const absl::Status& status, int code);

// The answer to a refused request. 429 and 503 say when to come again.
HttpAnswer ErrorAnswer(const HttpRefusal& refusal, ErrorBody body);

// {"error": "<message>"}: where no API is known.
std::string PlainError(const absl::Status& status, int code);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_MESSAGE_H_
