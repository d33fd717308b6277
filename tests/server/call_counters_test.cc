// How calls are counted on their way in, and what the counters decide: which connections end for being read late
// (guard/watchdog.h).
#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/guard/watchdog.h"
#include "server/wire/health.h"
#include "server/wire/reflection.h"
#include "server/wire/service.h"
#include "tests/server/test_models.h"
#include "tests/server/wait_until.h"

namespace edgewise::server {
namespace {

using std::chrono::milliseconds;

constexpr char kPredict[] = "/edgewise.v1.InferenceService/Predict";
constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
constexpr char kReflection[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

// The RPCs of a server, with nothing behind them.
struct Rpcs {
  explicit Rpcs(const ServerOptions& given) : options(given) {
    health.Set("", true);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", MakeCredentials(options, gate)->grpc, &port);
    builder.RegisterService(&service);
    builder.RegisterService(&health);
    builder.RegisterService(&reflection);
    threads = std::make_unique<CallThreads>(builder, *gate, calls);
    server = builder.BuildAndStart();
    threads->Start({&service, &health, &reflection});
  }
  ~Rpcs() {
    server->Shutdown(std::chrono::system_clock::now());
    threads->Stop();
  }

  const ServerOptions options;
  MemoryLedger memory{uint64_t{1} << 30};
  std::atomic<uint64_t> message_limit = 1 << 20;
  Metrics metrics;
  RequestQueue queue{options.queue, options.clock};
  Repository repository{{options.model_repository}, metrics};
  RequestHandler handler{options, memory, repository, queue};
  const std::shared_ptr<Gate> gate = std::make_shared<Gate>();
  AwaitedCalls awaited{options.clock};
  LoneClient lone_client;
  CallLog calls{metrics, options.clock};
  RpcContext context{
      {options, handler, repository, metrics, memory, awaited, message_limit, *gate, calls, lone_client}};
  InferenceServiceImpl service{context};
  HealthService health{context};
  ReflectionService reflection{context};
  std::unique_ptr<CallThreads> threads;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

// A call whose message does not come before Send.
class OpenCall {
 public:
  OpenCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& path, const std::string& token = "")
      : stub_(channel) {
    context_.set_deadline(std::chrono::system_clock::now() + kHang);
    if (!token.empty()) context_.AddMetadata("authorization", "Bearer " + token);
    call_ = stub_.PrepareCall(&context_, path, &queue_);
    call_->StartCall(nullptr);
    Next();
  }

  // Sends an empty message; returns how the call ends.
  grpc::Status Send() {
    call_->WriteLast(grpc::ByteBuffer(&nothing_, 1), grpc::WriteOptions(), nullptr);
    Next();
    grpc::ByteBuffer answer;
    do call_->Read(&answer, nullptr);
    while (Next());
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Next();
    return status;
  }

 private:
  bool Next() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
    return ok;
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  const grpc::Slice nothing_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

class CallCountersTest : public ::testing::TestWithParam<bool> {
 protected:
  static bool tokens() { return GetParam(); }
  static ServerOptions Options(const TestFolder& folder) {
    folder.Write("tokens", std::string(kToken) + "\n");
    ServerOptions options;
    options.model_repository = folder.path();
    if (tokens()) options.security.auth_token_file = folder.path() + "/tokens";
    return options;
  }
  std::unique_ptr<OpenCall> Open(const char* path) {
    return std::make_unique<OpenCall>(channel_, path, tokens() ? kToken : "");
  }

  static constexpr char kToken[] = "0123456789abcdef";
  TestFolder folder_;
  Rpcs rpcs_{Options(folder_)};
  const std::shared_ptr<grpc::Channel> channel_ = grpc::CreateChannel(
      "127.0.0.1:" + std::to_string(rpcs_.port),
      tokens() ? grpc::experimental::LocalCredentials(LOCAL_TCP) : grpc::InsecureChannelCredentials());
};

TEST_P(CallCountersTest, EveryCallThatComesBegins) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Open(kPredict)->Send().error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_TRUE(Open(kCheck)->Send().ok());
    EXPECT_EQ(Open("/no/Method")->Send().error_code(), grpc::UNIMPLEMENTED);
    EXPECT_TRUE(Open(kReflection)->Send().ok());
  }
  EXPECT_EQ(rpcs_.gate->counts.begun.load(), 12u);
  EXPECT_EQ(rpcs_.gate->counts.come.load(), 12u) << "calls that nobody sees begin look given up";
}

TEST_P(CallCountersTest, AHealthProbeHoldsNoMemoryAndASilentCallWhatItUses) {
  const auto check = Open(kCheck);
  ASSERT_TRUE(WaitUntil("the call of health", [&] { return rpcs_.gate->counts.begun.load() == 1; }));
  const auto predict = Open(kPredict);
  ASSERT_TRUE(WaitUntil("the message to be awaited", [&] { return rpcs_.awaited.of_requests() > 0; }));
  EXPECT_EQ(rpcs_.awaited.of_requests(), 1u);
  EXPECT_EQ(rpcs_.memory.used(), kSilentCallBytes) << "of Predict";
  predict->Send();
  EXPECT_EQ(rpcs_.awaited.of_requests(), 0u);
  EXPECT_TRUE(WaitUntil("the answer to be sent", [&] { return rpcs_.memory.used() == 0; }));
  EXPECT_TRUE(check->Send().ok()) << "it was awaited all the time";
  EXPECT_EQ(rpcs_.awaited.of_requests(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Tokens, CallCountersTest, ::testing::Bool());

TEST(LateConnectionsTest, EndOnceCallsComeThatNeverBegin) {
  const ServerOptions options;
  const std::unique_ptr<Listener> listener = *Listener::Open("127.0.0.1:0", {});
  std::atomic<int> accepted = -1;
  listener->Start([&](const Listener::Accepted& connection) { accepted = connection.descriptor; });
  AwaitedCalls awaited{Clock::now};
  MemoryLedger memory(uint64_t{1} << 40);
  const std::unique_ptr<Backend> backend = *CreateBackend(options.backend);
  Gate gate;
  Metrics metrics;
  Watchdog watchdog(options, awaited, memory, backend, gate, metrics);
  watchdog.Start(*listener, nullptr);

  const int client = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(listener->port()))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::vector<char> bytes(1 << 14);
  ASSERT_EQ(send(client, bytes.data(), bytes.size(), 0), 1 << 14);
  ASSERT_TRUE(WaitUntil("the connection to be late", [&] { return listener->LongestWait() > milliseconds(500); }));

  char byte = 0;
  const auto open = [&] { return recv(client, &byte, 1, MSG_DONTWAIT) < 0; };
  const auto calls = [&](bool begin) {
    for (int i = 0; i < 1000; ++i) {
      gate.counts.come.fetch_add(1);
      if (begin) gate.counts.begun.fetch_add(1);
    }
    std::this_thread::sleep_for(milliseconds(300));  // three looks of the watchdog
  };
  calls(true);
  EXPECT_TRUE(open()) << "all of them have begun";
  calls(false);
  EXPECT_TRUE(WaitUntil("the connection to end", [&] { return !open(); }));

  watchdog.Stop();
  listener->Stop();
  close(client);
  close(accepted);
}

}  // namespace
}  // namespace edgewise::server
