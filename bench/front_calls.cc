// Callers of one route over HTTP, or of the same method over gRPC: each sends the same request again as soon as it has
// the whole answer, and nothing is made of answers. Prints {"answered", "failed", "seconds"}.
#include <arpa/inet.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/flags.h"
#include "edgewise/v1/inference.grpc.pb.h"

namespace edgewise::bench {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "front_calls: %s\n", why.c_str());
  std::exit(1);
}

struct Options {
  std::string server, route, body;
  int callers = 8;
  int milliseconds = 1000;
};

// One connection of HTTP/1.1 that stays open.
class HttpCaller {
 public:
  HttpCaller(const std::string& server, const std::string& route, const std::string& body)
      : request_(absl::StrCat("POST ", route, " HTTP/1.1\r\nHost: ", server,
                              "\r\nContent-Type: application/json\r\nContent-Length: ", body.size(), "\r\n\r\n", body)),
        fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const size_t colon = server.rfind(':');
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::atoi(server.substr(colon + 1).c_str())));
    inet_pton(AF_INET, server.substr(0, colon).c_str(), &address.sin_addr);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) Die("no server at " + server);
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~HttpCaller() { close(fd_); }

  // Whether the answer was a 200.
  bool Call() {
    for (size_t sent = 0; sent < request_.size();) {
      const ssize_t n = send(fd_, request_.data() + sent, request_.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) Die("the server closed a connection");
      sent += static_cast<size_t>(n);
    }
    answer_.clear();
    size_t head = 0, length = 0;
    bool chunked = false;
    for (;;) {
      if (head == 0) {
        const size_t end = answer_.find("\r\n\r\n");
        if (end != std::string::npos) {
          head = end + 4;
          const size_t at = answer_.find("Content-Length: ");
          chunked = at >= head;
          if (!chunked) length = std::strtoul(answer_.c_str() + at + 16, nullptr, 10);
        }
      }
      if (head > 0) {
        static constexpr std::string_view kEnd = "0\r\n\r\n";
        const bool ended = chunked ? answer_.size() >= head + kEnd.size() &&
                                         answer_.compare(answer_.size() - kEnd.size(), kEnd.size(), kEnd) == 0
                                   : answer_.size() >= head + length;
        if (ended) return answer_.compare(9, 3, "200") == 0;
      }
      char bytes[32 << 10];
      const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
      if (n <= 0) Die("the server closed a connection");
      answer_.append(bytes, static_cast<size_t>(n));
    }
  }

 private:
  const std::string request_;
  const int fd_;
  std::string answer_;
};

// Calls of one method. All share a channel, as clients of gRPC do.
template <typename Request>
class GrpcCaller {
 public:
  GrpcCaller(const std::shared_ptr<grpc::Channel>& channel, const std::string& json)
      : stub_(v1::InferenceService::NewStub(channel)) {
    const auto status = google::protobuf::util::JsonStringToMessage(json, &request_);
    if (!status.ok()) Die("--body is no request: " + std::string(status.message()));
  }

  bool Call() {
    grpc::ClientContext context;
    if constexpr (std::is_same_v<Request, v1::PredictRequest>) {
      v1::PredictResponse response;
      return stub_->Predict(&context, request_, &response).ok();
    } else {
      const auto reader = stub_->Generate(&context, request_);
      v1::GenerateResponse token;
      while (reader->Read(&token)) {
      }
      return reader->Finish().ok();
    }
  }

 private:
  const std::unique_ptr<v1::InferenceService::Stub> stub_;
  Request request_;
};

// Callers in threads of their own, from now until the time is over.
template <typename Caller>
void Run(const Options& options, const std::function<std::unique_ptr<Caller>()>& make) {
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < options.callers; ++i) {
    callers.push_back(make());
    callers.back()->Call();
  }
  std::atomic<int64_t> answered = 0, failed = 0;
  const Clock::time_point begin = Clock::now();
  const Clock::time_point end = begin + std::chrono::milliseconds(options.milliseconds);
  std::vector<std::thread> threads;
  for (const std::unique_ptr<Caller>& caller : callers) {
    threads.emplace_back([&, one = caller.get()] {
      do one->Call() ? ++answered : ++failed;
      while (Clock::now() < end);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("{\"answered\": %lld, \"failed\": %lld, \"seconds\": %.6f}\n", static_cast<long long>(answered),
              static_cast<long long>(failed), std::chrono::duration<double>(Clock::now() - begin).count());
}

int Main(int argc, char** argv) {
  Options options;
  FlagSet flags("front_calls [FLAGS]", "Callers of one route, for front.py.");
  flags.Add("server", "HOST:PORT", "", &options.server);
  flags.Add("route", "PATH", "a path of HTTP; Predict or Generate: over gRPC", &options.route);
  flags.Add("body", "FILE", "the request in JSON; over gRPC by Protobuf's mapping", &options.body);
  flags.Add("callers", "N", "", &options.callers, {1, 1024});
  flags.Add("milliseconds", "N", "", &options.milliseconds, {1, 600000});
  ParseOrExit(flags, argc, argv);
  std::ifstream file(options.body);
  const std::string body(std::istreambuf_iterator<char>(file), {});
  if (options.route[0] == '/') {
    Run<HttpCaller>(options, [&] { return std::make_unique<HttpCaller>(options.server, options.route, body); });
    return 0;
  }
  const auto channel = grpc::CreateChannel(options.server, grpc::InsecureChannelCredentials());
  if (options.route == "Predict") {
    using Caller = GrpcCaller<v1::PredictRequest>;
    Run<Caller>(options, [&] { return std::make_unique<Caller>(channel, body); });
  } else {
    using Caller = GrpcCaller<v1::GenerateRequest>;
    Run<Caller>(options, [&] { return std::make_unique<Caller>(channel, body); });
  }
  return 0;
}

}  // namespace
}  // namespace edgewise::bench

int main(int argc, char** argv) { return edgewise::bench::Main(argc, argv); }
