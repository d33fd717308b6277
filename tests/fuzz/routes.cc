// Fuzz target of the whole HTTP front: a server in this process that has a model of each task, and one client.
#include <sys/socket.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/server.h"
#include "tests/fuzz/targets.h"
#include "tests/server/http_client.h"

namespace edgewise::fuzz {
namespace {

using server::HttpClient;
using server::HttpReply;

constexpr char kData[] = EDGEWISE_FUZZ_TESTDATA;
// One of each task.
constexpr std::pair<const char*, const char*> kModels[] = {{"sbm", "/sbm"},
                                                           {"lm", "/lm-ssa-local"},
                                                           {"encoder", "_sentence/mean"},
                                                           {"ranker", "_sentence/cross_encoder"},
                                                           {"classes", "_hugging_face/bert_sequence"},
                                                           {"words", "_hugging_face/bert_tokens"},
                                                           {"writer", "_hugging_face/gpt2_untied"},
                                                           {"images", "_images/vit_classes"}};

// Lives until the process ends.
class Front {
 public:
  Front() {
    server::ServerOptions options;
    for (const auto& [name, folder] : kModels) options.models.emplace_back(name, absl::StrCat(kData, folder, "/1"));
    options.listen = options.http_listen = "127.0.0.1:0";
    options.metrics_listen = "";
    options.backend.num_threads = 1;
    options.warm_up = std::chrono::milliseconds(0);
    options.limits.max_inputs = 16;  // so that no request takes long
    options.limits.max_samples = 8;
    options.limits.max_new_tokens = 32;
    options.limits.allow_graphs = true;
    options.max_message_bytes = 64 << 10;
    auto started = server::Server::Start(options);
    if (!started.ok()) throw std::runtime_error(started.status().ToString());
    server_ = *std::move(started);
    if (!server_->WaitUntilLoaded(std::chrono::minutes(2))) throw std::runtime_error("the models do not load");
    Connect();
  }

  // The answer to a request that is whole.
  HttpReply Ask(const std::string& request) {
    client_->Send(request);
    HttpReply reply = client_->Read();
    if (reply.code == 0 || reply.field("Connection") == "close") Connect();
    return reply;
  }
  // The answer to any bytes, after which nothing comes.
  HttpReply Send(const std::string& bytes) {
    client_->Send(bytes);
    shutdown(client_->fd(), SHUT_WR);
    HttpReply reply = client_->Read();
    Connect();
    return reply;
  }

 private:
  void Connect() {
    if (client_) {
      const linger reset{1, 0};  // or ports run out: the system keeps those of connections that end otherwise
      setsockopt(client_->fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
    client_ = std::make_unique<HttpClient>(server_->http_port());
  }

  std::unique_ptr<server::Server> server_;
  std::unique_ptr<HttpClient> client_;
};

bool IsPath(const std::string& path) {
  return absl::StartsWith(path, "/") && path.find_first_of(" \r\n\t") == std::string::npos && path.size() < 256;
}

}  // namespace

void FuzzRoutes(const std::string& bytes) {
  static Front& front = *new Front;
  static int64_t number = 0;
  const size_t line = bytes.find('\n');
  const bool post = absl::StartsWith(bytes, "POST ");
  HttpReply reply;
  if (line != std::string::npos && post && IsPath(bytes.substr(5, line - 5))) {
    const std::string id = std::to_string(++number);
    reply = front.Ask(
        HttpClient::Posted(bytes.substr(5, line - 5), bytes.substr(line + 1), "X-Request-Id: " + id + "\r\n"));
    Require(reply.code != 0, "a whole request has an answer");
    Require(reply.field("X-Request-Id") == id || reply.code == 400, "an answer is that of its request");
  } else {
    reply = front.Send(bytes);
  }
  Require(reply.code == 0 || (reply.code >= 100 && reply.code < 500), "no request is the server's fault");
  if (reply.field("Content-Type") == "application/json" && !reply.body.empty()) {
    Require(nlohmann::json::accept(reply.body), "an answer is JSON");
  }
}

}  // namespace edgewise::fuzz
