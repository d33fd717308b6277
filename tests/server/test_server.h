// A server in this process on loopback ports of its own, and what tests ask of it. Includes gRPC.
#ifndef EDGEWISE_TESTS_SERVER_TEST_SERVER_H_
#define EDGEWISE_TESTS_SERVER_TEST_SERVER_H_

#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "edgewise/v1/inference.grpc.pb.h"
#include "server/request/request.h"
#include "server/server.h"
#include "tests/server/test_models.h"
#include "tests/server/wait_until.h"
#include "tests/support/paths.h"

namespace edgewise::server {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A call that ends, whatever the server does.
struct CallContext : grpc::ClientContext {
  CallContext() { set_deadline(std::chrono::system_clock::now() + 2 * kHang); }
};

// The clock of a server: it goes as any, and ahead when told. It must outlive the server.
class TestClock {
 public:
  void Advance(Clock::duration by) { ahead_ += by.count(); }
  std::function<Time()> read() {
    return [this] {
      ++reads_;
      return Clock::now() + Clock::duration(ahead_.load());
    };
  }
  int64_t reads() const { return reads_; }

 private:
  std::atomic<Clock::rep> ahead_ = 0;
  std::atomic<int64_t> reads_ = 0;
};

inline ServerOptions TestOptions(const std::string& repository = tests::TestdataFolder()) {
  ServerOptions options;
  options.model_repository = repository;
  options.listen = "127.0.0.1:0";
  options.metrics_listen = "127.0.0.1:0";
  options.backend.num_threads = 1;
  options.warm_up = std::chrono::milliseconds(0);  // requests of a model whose cost is not known go one by one
  return options;
}

// Four tokens for the model "sbm".
inline v1::PredictRequest SmallRequest(const std::string& model = "sbm") {
  v1::PredictRequest request;
  request.set_model(model);
  v1::TokenIds* ids = request.add_inputs()->mutable_sequence()->mutable_token_ids();
  for (int id : {1, 2, 3, 4}) ids->add_values(id);
  return request;
}

// Tens of seconds of work in hundreds of steps.
inline v1::PredictRequest SlowRequest() {
  v1::PredictRequest request;
  request.set_model("sbm");
  v1::Input* input = request.add_inputs();
  for (int i = 0; i < 48; ++i) input->mutable_sequence()->mutable_token_ids()->add_values(1 + i % 38);
  for (int i = 1; i < 1024; ++i) *request.add_inputs() = request.inputs(0);
  request.mutable_ensemble()->set_samples(256);
  return request;
}

// The value of a series on a page of metrics, by its full name; -1: there is none.
inline double ValueOn(const std::string& page, const std::string& series) {
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(series + " ", 0) == 0) return std::stod(line.substr(series.size() + 1));
  }
  return -1.0;
}

class TestServer {
 public:
  explicit TestServer(const ServerOptions& options = TestOptions()) {
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
    if (!server.ok()) throw std::runtime_error(server.status().ToString());  // GoogleTest reports it
    server_ = *std::move(server);
    EXPECT_TRUE(server_->WaitUntilLoaded(kHang));
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(server_->port()), grpc::InsecureChannelCredentials());
    stub_ = v1::InferenceService::NewStub(channel_);
  }

  Server& server() { return *server_; }
  v1::InferenceService::Stub& stub() { return *stub_; }
  const std::shared_ptr<grpc::Channel>& channel() { return channel_; }

  grpc::Status Predict(const v1::PredictRequest& request, v1::PredictResponse& response,
                       milliseconds timeout = 2 * kHang) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    response.Clear();
    grpc::Status status = stub_->Predict(&context, request, &response);
    if (status.ok() && response.predictions_size() != request.inputs_size()) {  // tests look at them
      status = grpc::Status(grpc::INTERNAL, std::to_string(response.predictions_size()) + " predictions for " +
                                                std::to_string(request.inputs_size()) + " inputs");
    }
    return status;
  }

  // Any unary method by its path; the first message of a stream.
  grpc::Status Call(const std::string& path, const std::string& bytes, std::string* answer = nullptr,
                    const std::string& token = "") {
    grpc::GenericStub stub(channel_);
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kHang);
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    grpc::Slice slice(bytes);
    auto call = stub.PrepareUnaryCall(&context, path, grpc::ByteBuffer(&slice, 1), &queue);
    call->StartCall();
    grpc::ByteBuffer response;
    grpc::Status status;
    call->Finish(&response, &status, nullptr);
    void* tag;
    bool ok;
    queue.Next(&tag, &ok);
    std::vector<grpc::Slice> slices;
    if (answer && status.ok() && response.Dump(&slices).ok()) {
      for (const grpc::Slice& s : slices) answer->append(reinterpret_cast<const char*>(s.begin()), s.size());
    }
    return status;
  }

  // grpc.health.v1 Check: 1 SERVING, 2 NOT_SERVING, -code: an error.
  int Health(const std::string& service) {
    std::string answer;
    std::string request;
    if (!service.empty()) request = std::string("\x0a") + static_cast<char>(service.size()) + service;
    const grpc::Status status = Call("/grpc.health.v1.Health/Check", request, &answer);
    if (!status.ok()) return -status.error_code();
    return answer.size() == 2 ? answer[1] : 0;
  }

  ::testing::AssertionResult WaitForHealth(const std::string& service, int state) {
    return WaitUntil("health of \"" + service + "\" to be " + std::to_string(state),
                     [&] { return Health(service) == state; });
  }

  // The answer to GET, header and body.
  std::string HttpGet(const std::string& path) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_->metrics_port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    EXPECT_GT(send(fd, request.data(), request.size(), MSG_NOSIGNAL), 0);
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;) text.append(buffer, static_cast<size_t>(n));
    close(fd);
    return text;
  }

  double Metric(const std::string& series) { return ValueOn(HttpGet("/metrics"), series); }

  ::testing::AssertionResult WaitForMetric(const std::string& series, double value) {
    double last = -1.0;
    ::testing::AssertionResult reached = WaitUntil(series, [&] { return (last = Metric(series)) == value; });
    if (!reached) reached << " to be " << value << "; it is " << last;
    return reached;
  }

 private:
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
};

// A drain on a thread of its own, whose patience is long by the server's clock: it ends because it has nothing to wait
// for, or because the clock goes ahead.
class TestDrain {
 public:
  TestDrain(TestServer& server, TestClock& clock, milliseconds patience = std::chrono::hours(1))
      : clock_(clock), patience_(patience), thread_([this, &server] {
          server.server().Drain(patience_);
          ended_ = true;
        }) {}
  ~TestDrain() {
    RunOutOfPatience();  // one that hangs
    thread_.join();
  }

  bool ended() const { return ended_; }
  void RunOutOfPatience() { clock_.Advance(patience_); }
  ::testing::AssertionResult WaitForEnd() {
    return WaitUntil("the end of the drain", [this] { return ended(); });
  }

 private:
  TestClock& clock_;
  const milliseconds patience_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

// A series of the model "sbm", version 1, with no further label.
inline std::string OfSbm(const std::string& name) { return "edgewise_" + name + R"({model="sbm",version="1"})"; }

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_TEST_SERVER_H_
