// How a server ends: what an announced drain, a closed port and a drain are to calls and watchers, over real ports.
#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/server/generate_calls.h"
#include "tests/server/watcher.h"

namespace edgewise::server {
namespace {

using ::testing::HasSubstr;

TEST(DrainTest, WatchSeesServingThenNotServingAndDoesNotHoldUpTheDrain) {
  TestClock clock;
  ServerOptions options = TestOptions();
  options.clock = clock.read();
  TestServer server(options);
  ASSERT_TRUE(server.WaitForHealth("sbm", 1));
  Watcher model(server.channel(), "sbm");
  EXPECT_EQ(model.Read(), 1);
  // gRPC may end a stream whose last message is not yet known to be sent without the next one.
  ASSERT_TRUE(server.WaitForHealth("sbm", 1));
  TestDrain drain(server, clock);
  EXPECT_EQ(model.Read(), 2);
  EXPECT_TRUE(drain.WaitForEnd());
  EXPECT_EQ(model.Read(), -1);
}

// Between the announcement and the drain, so that whoever sends calls here hears of it before the port closes.
TEST(DrainTest, AnAnnouncedDrainIsToldToAllAndTakesCalls) {
  TestFolder folder;
  folder.AddModel("sbm", "sbm", 1);
  TestServer server(TestOptions(folder.path()));
  const std::string names[] = {"", "edgewise.v1.InferenceService", "sbm"};
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (const std::string& name : names) {
    ASSERT_TRUE(server.WaitForHealth(name, 1));
    EXPECT_EQ(watchers.emplace_back(std::make_unique<Watcher>(server.channel(), name))->Read(), 1);
  }
  server.server().AnnounceDrain();
  for (const auto& watcher : watchers) EXPECT_EQ(watcher->Read(), 2);
  EXPECT_THAT(server.HttpGet("/healthz"), HasSubstr("503"));
  EXPECT_THAT(server.HttpGet("/healthz"), HasSubstr("\"status\":\"draining\""));
  folder.AddModel("sbm", "late", 1);
  ASSERT_TRUE(server.server().Reload().ok());
  EXPECT_TRUE(server.WaitForMetric(R"(edgewise_model_ready{model="late",version="1"})", 1.0));
  for (const std::string& name : names) EXPECT_EQ(server.Health(name), 2) << name << ": a model has come since";
  EXPECT_EQ(server.Health("late"), 2);
  // A new connection, as of a client that has not heard of it.
  auto stub = v1::InferenceService::NewStub(grpc::CreateCustomChannel(
      "127.0.0.1:" + std::to_string(server.server().port()), grpc::InsecureChannelCredentials(), [] {
        grpc::ChannelArguments own;
        own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
        return own;
      }()));
  CallContext context;
  v1::PredictResponse response;
  EXPECT_TRUE(stub->Predict(&context, SmallRequest(), &response).ok());
  server.server().Drain(milliseconds(0));
  for (const auto& watcher : watchers) EXPECT_EQ(watcher->Read(), -1);
}

// As a proxy needs it that asks nobody for health.
TEST(DrainTest, AClosedPortLeavesTheConnectionsThatAreThere) {
  TestFolder folder;
  folder.AddModel("sbm", "sbm", 1);
  TestServer server(TestOptions(folder.path()));
  ASSERT_TRUE(server.WaitForHealth("sbm", 1));
  const auto ask = [](const std::shared_ptr<grpc::Channel>& channel) {
    CallContext context;
    v1::PredictResponse response;
    return v1::InferenceService::NewStub(channel)->Predict(&context, SmallRequest(), &response).error_code();
  };
  EXPECT_EQ(ask(server.channel()), grpc::StatusCode::OK);
  server.server().StopListening();
  EXPECT_EQ(ask(server.channel()), grpc::StatusCode::OK);
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const std::string address = "127.0.0.1:" + std::to_string(server.server().port());
  EXPECT_EQ(ask(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), own)),
            grpc::StatusCode::UNAVAILABLE);
}

TEST(DrainTest, DrainFinishesWhatRunsAndRefusesWhatComes) {
  TestClock clock;
  ServerOptions options = TestOptions();
  options.clock = clock.read();
  options.unread_timeout = std::chrono::hours(1);
  TestServer server(options);
  auto narrow = NarrowStub(server);
  CallContext unread_context;
  auto unread = narrow->Generate(&unread_context, ShortRequest("lm-dense", 4096));  // runs until the client reads
  v1::PredictRequest request = SlowRequest();
  request.mutable_inputs()->DeleteSubrange(400, request.inputs_size() - 400);  // seconds
  grpc::Status running_status(grpc::UNKNOWN, "");
  std::jthread running([&] {
    v1::PredictResponse answer;
    running_status = server.Predict(request, answer);
  });
  EXPECT_TRUE(server.WaitForMetric(OfSbm("executions_total"), 1));
  CallContext stream_context;
  auto stream = server.stub().PredictStream(&stream_context);
  v1::PredictStreamResponse streamed;
  ASSERT_TRUE(stream->Write(SmallRequest()));  // of the same level: it waits
  EXPECT_TRUE(server.WaitForMetric(OfSbm("queue_requests"), 1));
  TestDrain drain(server, clock);
  EXPECT_TRUE(server.WaitForHealth("", -grpc::UNAVAILABLE));  // the connection has had its GOAWAY, the port is closed
  v1::PredictResponse response;
  const grpc::Status refused = server.Predict(SmallRequest(), response);
  EXPECT_EQ(refused.error_code(), grpc::UNAVAILABLE);
  EXPECT_THAT(server.HttpGet("/healthz"), HasSubstr("draining"));
  EXPECT_TRUE(stream->Read(&streamed));  // in flight when the drain began
  EXPECT_FALSE(stream->Read(&streamed));
  EXPECT_EQ(stream->Finish().error_code(), grpc::UNAVAILABLE);
  running.join();
  EXPECT_TRUE(running_status.ok()) << running_status.error_message();
  EXPECT_FALSE(drain.ended());
  int tokens = 0;
  for (v1::GenerateResponse message; unread->Read(&message);) ++tokens;
  EXPECT_EQ(tokens, 4096);
  EXPECT_TRUE(unread->Finish().ok());
  EXPECT_TRUE(drain.WaitForEnd());
}

TEST(DrainTest, DrainWaitsForAnswersThatAreBeingSent) {
  TestClock clock;
  ServerOptions options = TestOptions();
  options.clock = clock.read();
  TestServer server(options);
  v1::PredictRequest request = SmallRequest();
  for (int i = 1; i < 512; ++i) *request.add_inputs() = request.inputs(0);
  request.mutable_ensemble()->set_samples(64);
  request.mutable_outputs()->set_each_sample(true);
  CallContext context;
  grpc::CompletionQueue queue;
  void* tag;
  bool ok;
  auto stub = NarrowStub(server);
  auto call = stub->PrepareAsyncPredict(&context, request, &queue);
  call->StartCall();
  call->ReadInitialMetadata(nullptr);  // and not the message: most of it stays at the server
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  EXPECT_TRUE(server.WaitForMetric(OfSbm("requests_in_flight"), 0));  // all of it is computed
  TestDrain drain(server, clock);
  // Nobody but a drain that waits reads the clock now.
  const int64_t reads = clock.reads();
  EXPECT_TRUE(WaitUntil("the drain to look at the clock", [&] { return clock.reads() > reads + 100; }));
  EXPECT_FALSE(server.server().calls_ended());
  v1::PredictResponse response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(drain.WaitForEnd());
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(response.ByteSizeLong(), 500000u);
  EXPECT_EQ(response.predictions_size(), 512);
}

TEST(DrainTest, DrainThatTakesTooLongGivesEveryCallItsStatus) {
  TestClock clock;
  ServerOptions options = TestOptions();
  options.clock = clock.read();
  TestServer server(options);
  std::vector<grpc::Status> statuses(4);
  std::vector<std::jthread> clients;
  for (grpc::Status& status : statuses) {
    clients.emplace_back([&] {
      v1::PredictResponse answer;
      status = server.Predict(SlowRequest(), answer);
    });
  }
  EXPECT_TRUE(server.WaitForMetric(OfSbm("queue_requests"), 3));
  TestDrain drain(server, clock, seconds(30));
  EXPECT_TRUE(server.WaitForHealth("", -grpc::UNAVAILABLE));
  drain.RunOutOfPatience();
  EXPECT_TRUE(drain.WaitForEnd());
  for (std::jthread& client : clients) client.join();
  for (const grpc::Status& status : statuses)
    EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE) << status.error_message();
}

}  // namespace
}  // namespace edgewise::server
