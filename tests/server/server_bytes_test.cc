// The memory of calls and the connections, over a real port.
#include <gmock/gmock.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "tests/server/generate_calls.h"
#include "tests/server/watcher.h"

namespace edgewise::server {
namespace {

using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;

constexpr char kPredictMethod[] = "/edgewise.v1.InferenceService/Predict";
constexpr char kHeld[] = "edgewise_call_memory_bytes";

// A call whose headers are sent, and nothing else.
class SilentCall {
 public:
  explicit SilentCall(TestServer& server, const std::string& token = "") : stub_(server.channel()) {
    if (!token.empty()) context_.AddMetadata("authorization", "Bearer " + token);
    call_ = stub_.PrepareCall(&context_, kPredictMethod, &queue_);
    call_->StartCall(nullptr);
    Next();
  }
  ~SilentCall() {
    if (!finished_) Cancel();
  }

  grpc::Status Finish() {
    grpc::Status status;
    finished_ = true;
    call_->Finish(&status, nullptr);
    Next();
    return status;
  }
  void Cancel() {
    context_.TryCancel();
    Finish();
  }

 private:
  void Next() {
    void* tag;
    bool ok;
    queue_.Next(&tag, &ok);
  }

  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  CallContext context_;
  bool finished_ = false;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

ServerOptions SmallMemory() {
  ServerOptions options = TestOptions();
  options.max_memory = uint64_t{24} << 20;  // of which calls may hold 18 MiB
  return options;
}

TEST(BytesTest, MessageThatDoesNotComeInTimeEndsItsCall) {
  TestClock clock;
  ServerOptions options = TestOptions();
  options.clock = clock.read();
  TestServer server(options);
  SilentCall call(server);
  ASSERT_TRUE(WaitUntil("a reservation", [&] { return server.Metric(kHeld) > 0; }));
  clock.Advance(seconds(31));
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(status.error_message(), "the message of the call did not arrive in time");
  EXPECT_TRUE(server.WaitForMetric(kHeld, 0));
  EXPECT_EQ(server.Metric(R"(edgewise_requests_total{code="DEADLINE_EXCEEDED",model="_other",version="_other"})"), 1);
}

// Its memory is the process's too, but the server does not know of it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SKIP_UNDER_SANITIZERS() GTEST_SKIP()
#else
#define SKIP_UNDER_SANITIZERS() static_assert(true)
#endif

// Two clients, and memory for 96 silent calls.
class SharesTest : public ::testing::Test {
 protected:
  static constexpr char kGreedy[] = "the-token-of-the-greedy", kPolite[] = "the-token-of-the-polite";
  static constexpr uint64_t kOfCall = 32 << 10;

  ServerOptions Options() {
    folder_.Write("tokens", std::string(kGreedy) + "\n" + kPolite + "\n");
    ServerOptions options = TestOptions();
    options.security.auth_token_file = folder_.path() + "/tokens";
    options.max_memory = uint64_t{4} << 20;  // of which calls may hold 3 MiB
    options.clock = clock_.read();
    return options;
  }
  grpc::Status Predict(const std::string& token, const v1::PredictRequest& request = SmallRequest()) {
    return server_.Call(kPredictMethod, request.SerializeAsString(), nullptr, token);
  }

  TestFolder folder_;
  TestClock clock_;
  TestServer server_{Options()};
};

TEST_F(SharesTest, SilentCallsOfOneClientLeaveRoomForOthers) {
  constexpr int kMost = 72;  // three quarters
  ASSERT_TRUE(Predict(kPolite).ok());
  {
    std::vector<std::unique_ptr<SilentCall>> calls;
    for (int i = 0; i < kMost; ++i) calls.push_back(std::make_unique<SilentCall>(server_, kGreedy));
    ASSERT_TRUE(server_.WaitForMetric(kHeld, kMost * kOfCall));
    const grpc::Status refused = Predict(kGreedy);
    EXPECT_EQ(refused.error_code(), grpc::RESOURCE_EXHAUSTED);
    EXPECT_THAT(
        refused.error_message(),
        HasSubstr("others hold 0 of the 3145728 bytes that the server has for calls (--max_memory), and calls of "
                  "this client 2359296; they may hold at most 3 times what stays free"));
    EXPECT_THAT(refused.error_details(), HasSubstr("google.rpc.RetryInfo"));
    CallContext context;
    context.AddMetadata("authorization", std::string("Bearer ") + kGreedy);
    auto stream = server_.stub().PredictStream(&context);
    EXPECT_EQ(stream->Finish().error_code(), grpc::RESOURCE_EXHAUSTED);
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(Predict(kPolite).ok());
    for (int i = 0; i < 4; ++i) calls.pop_back();
    EXPECT_TRUE(WaitUntil("an answer", [&] { return Predict(kGreedy).ok(); }));
  }
  EXPECT_TRUE(server_.WaitForMetric(kHeld, 0));
  EXPECT_EQ(server_.Metric("edgewise_call_memory_limit_bytes"), 3 << 20);
}

TEST_F(SharesTest, SilentStreamsEndOnceOthersLackWhatTheyHold) {
  constexpr int kStreams = 70, kPart = 48;
  struct Stream {
    CallContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::PredictRequest, v1::PredictStreamResponse>> call;
  };
  std::vector<std::unique_ptr<Stream>> streams;
  v1::PredictStreamResponse answer;
  for (int i = 0; i < kStreams; ++i) {
    Stream& stream = *streams.emplace_back(std::make_unique<Stream>());
    stream.context.AddMetadata("authorization", "Bearer " + std::string(kGreedy));
    stream.call = server_.stub().PredictStream(&stream.context);
    ASSERT_TRUE(stream.call->Write(SmallRequest()) && stream.call->Read(&answer));
  }
  ASSERT_TRUE(server_.WaitForMetric(kHeld, kStreams * kOfCall)) << "and no message of theirs";
  v1::PredictRequest large = SmallRequest();  // refused, but for its model alone where there is memory
  large.set_model(std::string(size_t{400} << 10, 'a'));
  EXPECT_EQ(Predict(kPolite, large).error_code(), grpc::RESOURCE_EXHAUSTED);
  std::this_thread::sleep_for(milliseconds(100));  // several looks of the watchdog
  EXPECT_EQ(server_.Metric(kHeld), kStreams * kOfCall) << "they are not silent for long";
  clock_.Advance(seconds(31));
  EXPECT_TRUE(WaitUntil("room", [&] { return Predict(kPolite, large).error_code() == grpc::INVALID_ARGUMENT; }));
  EXPECT_TRUE(server_.WaitForMetric(kHeld, kPart * kOfCall)) << "its equal part stays";
  const grpc::Status ended = streams.front()->call->Finish();  // the one that was silent for longest
  EXPECT_EQ(ended.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ended.error_message(),
            "the call was silent while others lacked the memory that calls of this client hold (--max_memory)");
  EXPECT_TRUE(streams.back()->call->Write(SmallRequest()) && streams.back()->call->Read(&answer));
  for (const auto& stream : streams) stream->context.TryCancel();
}

TEST(BytesTest, EveryRequestGivesItsMemoryBack) {
  TestServer server(SmallMemory());
  v1::PredictRequest large = SmallRequest();
  for (int i = 1; i < 512; ++i) *large.add_inputs() = large.inputs(0);
  large.mutable_ensemble()->set_samples(16);
  large.mutable_outputs()->set_each_sample(true);
  v1::PredictResponse response;
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(server.Predict(large, response).ok());
    EXPECT_FALSE(server.Predict(SmallRequest("unknown"), response).ok());
    EXPECT_TRUE(Generate(server, ShortRequest("lm-dense", 3)).status.ok());
  }
  EXPECT_TRUE(server.WaitForMetric(kHeld, 0));
}

TEST(BytesTest, ManyEmptyPartsAreRefusedBeforeTheyAreParsed) {
  TestServer server;
  std::string parts = SmallRequest().SerializeAsString();
  for (int i = 0; i < 1 << 20; ++i) parts.append("\x1a\x00", 2);
  const grpc::Status status = server.Call(kPredictMethod, parts);
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("more than 131072 parts"));
  v1::PredictResponse response;
  EXPECT_TRUE(server.Predict(SmallRequest(), response).ok());
}

TEST(BytesTest, LimitOfMessagesIsShownAndKept) {
  TestServer server(SmallMemory());
  v1::GetModelRequest request;
  request.set_model("sbm");
  v1::GetModelResponse model;
  CallContext context;
  ASSERT_TRUE(server.stub().GetModel(&context, request, &model).ok());
  ASSERT_EQ(model.model().max_message_bytes(), uint64_t{4} << 20);
  EXPECT_EQ(model.model().random_numbers(), 2u);
  std::string message = SmallRequest().SerializeAsString();
  message += std::string("\xfa\x7d", 2) + "\xff\xff\xff\x01" + std::string(0x3fffff, ' ');  // an unknown field
  const grpc::Status status = server.Call(kPredictMethod, message);
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("the server takes at most 4194304"));
}

TEST(BytesTest, StreamWhoseAnswersAreNotReadIsNotReadFrom) {
  ServerOptions options = TestOptions();
  options.unsent_bytes = 1000;
  TestServer server(options);
  auto stub = NarrowStub(server);
  CallContext context;
  auto stream = stub->PredictStream(&context);
  v1::PredictRequest request = SmallRequest();
  for (int i = 1; i < 512; ++i) *request.add_inputs() = request.inputs(0);
  request.mutable_ensemble()->set_samples(16);
  request.mutable_outputs()->set_each_sample(true);  // more than gRPC takes off our hands: 64 KiB beyond the window
  constexpr int kRequests = 16, kOthers = 20;
  const auto answered = [&] { return server.Metric(R"(edgewise_requests_total{code="OK",model="sbm",version="1"})"); };
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(WaitUntil("an answer", [&] { return answered() == 1; }));
  stream->WaitForInitialMetadata();  // comes with the first answer, which counts as unsent by then
  for (int i = 1; i < kRequests; ++i) {
    request.set_request_id(std::to_string(i));
    ASSERT_TRUE(stream->Write(request));
  }
  v1::PredictResponse other;
  for (int i = 0; i < kOthers; ++i) EXPECT_TRUE(server.Predict(SmallRequest(), other).ok());
  EXPECT_LE(answered(), kOthers + 2) << "one may have been on its way to be read";
  stream->WritesDone();
  int read = 0;
  for (v1::PredictStreamResponse response; stream->Read(&response);) read += response.has_response();
  EXPECT_EQ(read, kRequests);
  EXPECT_TRUE(stream->Finish().ok());
}

// gRPC may hold 6 MiB here. What passes hold is not gRPC's: a quiet call is not ended for it.
TEST(BytesTest, LargePassesDoNotEndACallThatWaits) {
  SKIP_UNDER_SANITIZERS();
  ServerOptions options = SmallMemory();
  options.max_step = std::chrono::hours(1);  // passes are not cut, however slow the machine is
  TestServer server(options);
  CallContext context;
  auto quiet = server.stub().PredictStream(&context);
  v1::PredictStreamResponse answer;
  ASSERT_TRUE(quiet->Write(SmallRequest()) && quiet->Read(&answer));
  v1::PredictRequest large = SmallRequest();
  for (int i = 0; i < 44; ++i) large.mutable_inputs(0)->mutable_sequence()->mutable_token_ids()->add_values(5);
  for (int i = 1; i < 512; ++i) *large.add_inputs() = large.inputs(0);
  for (int i = 0; i < 10; ++i) {
    v1::PredictResponse response;
    const grpc::Status status = server.Predict(large, response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_GT(server.Metric("edgewise_working_memory_bytes"), 12 << 20) << "else this test shows nothing";
  EXPECT_TRUE(quiet->Write(SmallRequest()) && quiet->Read(&answer));
  quiet->WritesDone();
  const grpc::Status status = quiet->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

int Connect(TestServer& server) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server.server().port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return descriptor;
}

// gRPC greets a connection with SETTINGS.
bool Greeted(int descriptor) {
  char byte;
  return recv(descriptor, &byte, 1, 0) == 1;
}

bool IsEnded(int descriptor) {
  char bytes[4096];
  while (true) {
    const ssize_t received = recv(descriptor, bytes, sizeof bytes, 0);
    if (received <= 0) return received == 0 || errno == ECONNRESET;
  }
}

// A connection for which another one gives way, once that has confirmed the bytes that the server has sent to it.
int ConnectInPlaceOfAnother(TestServer& server) {
  int descriptor = -1;
  EXPECT_TRUE(WaitUntil("a connection", [&] {
    descriptor = Connect(server);
    if (Greeted(descriptor)) return true;
    close(descriptor);
    return false;
  }));
  return descriptor;
}

TEST(BytesTest, ConnectionsBeyondTheLimitAreClosedAndThoseThatEndMakeRoom) {
  ServerOptions options = TestOptions();
  options.max_connections_per_peer = 2;
  TestServer server(options);
  const int first = Connect(server), second = Connect(server);
  EXPECT_TRUE(Greeted(first) && Greeted(second));
  const int third = Connect(server);
  EXPECT_FALSE(Greeted(third));
  EXPECT_EQ(server.Metric("edgewise_connections"), 2);
  close(first);
  EXPECT_TRUE(server.WaitForMetric("edgewise_connections", 1));
  v1::PredictResponse response;
  EXPECT_TRUE(WaitUntil("an answer", [&] { return server.Predict(SmallRequest(), response).ok(); }));
  close(second);
  close(third);
}

TEST(BytesTest, AConnectionWithoutAnOpenCallGivesWayAndOneWithACallDoesNot) {
  ServerOptions options = TestOptions();
  options.max_connections = 2;
  TestServer server(options);
  ASSERT_TRUE(server.WaitForHealth("sbm", 1));
  Watcher watcher(server.channel(), "sbm");
  EXPECT_EQ(watcher.Read(), 1);
  const int idle = Connect(server);
  EXPECT_TRUE(Greeted(idle));
  const int next = ConnectInPlaceOfAnother(server);
  EXPECT_TRUE(IsEnded(idle));
  server.server().AnnounceDrain();
  EXPECT_EQ(watcher.Read(), 2) << "its connection is there";
  close(idle);
  close(next);
}

TEST(BytesTest, ACallWithoutItsMessageDoesNotKeepItsConnection) {
  ServerOptions options = TestOptions();
  options.max_connections = 1;
  TestServer server(options);
  SilentCall silent(server);
  EXPECT_TRUE(server.WaitForMetric(kHeld, 32 << 10)) << "the call has come";
  const int next = ConnectInPlaceOfAnother(server);
  EXPECT_EQ(silent.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  close(next);
}

TEST(BytesTest, NoCallThatMeetsADrainIsCancelled) {
  for (int round = 0; round < 5; ++round) {
    TestServer server;
    std::atomic<bool> stop = false;
    std::atomic<int> answered = 0;
    std::vector<std::jthread> clients;
    for (int i = 0; i < 4; ++i) {
      clients.emplace_back([&] {
        while (!stop) {
          v1::PredictResponse response;
          const grpc::Status status = server.Predict(SmallRequest(), response);
          if (status.ok()) ++answered;
          EXPECT_THAT(status.error_code(), AnyOf(Eq(grpc::OK), Eq(grpc::UNAVAILABLE))) << status.error_message();
        }
      });
    }
    EXPECT_TRUE(WaitUntil("answers", [&] { return answered > 20; }));
    server.server().Drain(kHang);
    stop = true;
  }
}

}  // namespace
}  // namespace edgewise::server
