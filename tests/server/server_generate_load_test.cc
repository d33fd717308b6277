// Generate over a real port, beside others: Predict, limits, deadlines, cancellation, slow readers and drains.
#include <gmock/gmock.h>

#include <array>
#include <thread>
#include <utility>

#include "tests/server/generate_calls.h"

namespace edgewise::server {
namespace {

TEST(GenerateLoadTest, LongBatchDoesNotStopAGenerationAndALongGenerationDoesNotStopABatch) {
  TestServer server;
  CallContext slow_context;
  grpc::Status slow_status;
  std::jthread slow([&] {
    v1::PredictResponse answer;
    slow_status = server.stub().Predict(&slow_context, SlowRequest(), &answer);
  });
  EXPECT_TRUE(server.WaitForMetric(OfSbm("executions_total"), 1));
  const Generated beside = Generate(server, ShortRequest());
  EXPECT_TRUE(beside.status.ok()) << beside.status.error_message();
  EXPECT_EQ(beside.messages.size(), 8u);
  slow_context.TryCancel();
  slow.join();
  EXPECT_EQ(slow_status.error_code(), grpc::CANCELLED) << "the batch was over first: this test tests nothing";

  v1::GenerateRequest longer = LongRequest();
  longer.mutable_ensemble()->set_samples(64);
  Started generation(server.stub(), longer);
  v1::PredictResponse response;
  EXPECT_TRUE(server.Predict(SmallRequest(), response).ok());
  EXPECT_EQ(server.Metric(Of("lm-ssa-local", "generations_running")), 1.0) << "this test tests nothing";
  generation.context.TryCancel();
  EXPECT_EQ(generation.Finish().error_code(), grpc::CANCELLED);
}

TEST(GenerateLoadTest, CancelledGenerationStops) {
  TestServer server;
  Started generation(server.stub(), LongRequest());
  generation.context.TryCancel();
  EXPECT_EQ(generation.Finish().error_code(), grpc::CANCELLED);
  EXPECT_TRUE(server.WaitForMetric(Ended("lm-ssa-local", "CANCELLED"), 1));
  EXPECT_TRUE(server.WaitForMetric(Of("lm-ssa-local", "generations_running"), 0));
  EXPECT_TRUE(server.WaitForMetric(Of("lm-ssa-local", "requests_in_flight"), 0));
  EXPECT_GT(server.Metric(Of("lm-ssa-local", "cancelled_compute_seconds_total")), 0.0);
}

TEST(GenerateLoadTest, DeadlineEndsAGenerationThatRunsAndOneThatWaits) {
  ServerOptions options = TestOptions();
  options.max_generations = 1;
  options.unread_timeout = std::chrono::hours(1);
  TestClock clock;
  options.clock = clock.read();
  options.park_after = std::chrono::hours(1);
  TestServer server(options);
  auto stub = NarrowStub(server);
  Started running(*stub, LongRequest());
  Generated waited;
  std::jthread waiting([&] { waited = Generate(server, ShortRequest(), kHang); });
  EXPECT_TRUE(server.WaitForMetric(Of("lm-dense", "queue_requests"), 1));
  clock.Advance(kHang);
  waiting.join();
  EXPECT_EQ(waited.status.error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(waited.status.error_message(), "the deadline has passed");
  EXPECT_TRUE(waited.messages.empty());
  EXPECT_EQ(server.Metric(Of("lm-dense", "generated_tokens_total")), 0.0);
  EXPECT_EQ(server.Metric(Of("lm-ssa-local", "generations_running")), 1.0) << "it has as long again";
  clock.Advance(kHang);
  EXPECT_TRUE(server.WaitForMetric(Of("lm-ssa-local", "generations_running"), 0));
  const grpc::Status status = running.Finish();
  EXPECT_EQ(status.error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(status.error_message(), "the deadline has passed");
}

TEST(GenerateLoadTest, BeyondTheLimitGenerationsWaitByPriorityAndAFullLineRefusesButLetsPredictIn) {
  ServerOptions options = TestOptions();
  options.max_generations = 1;
  options.queue.max_requests = 2;
  options.park_after = std::chrono::hours(1);
  TestServer server(options);
  auto stub = NarrowStub(server);
  Started running(*stub, LongRequest());
  std::array<uint64_t, 4> waited_us = {};  // by priority
  std::vector<std::jthread> clients;
  for (const int priority : {3, 1}) {
    clients.emplace_back([&, priority] {
      v1::GenerateRequest request = ShortRequest();
      request.set_priority(static_cast<uint32_t>(priority));
      const Generated generated = Generate(server, request);
      EXPECT_TRUE(generated.status.ok());
      if (!generated.messages.empty()) waited_us[priority] = generated.messages.back().timing().queue_us();
    });
    EXPECT_TRUE(server.WaitForMetric(Of("lm-dense", "queue_requests"), priority == 3 ? 1 : 2));
  }
  const Generated refused = Generate(server, ShortRequest());
  EXPECT_EQ(refused.status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), ::testing::HasSubstr("2 generations wait; the limit is 2"));
  EXPECT_THAT(refused.status.error_details(), ::testing::HasSubstr("google.rpc.RetryInfo"));
  v1::PredictResponse response;
  EXPECT_TRUE(server.Predict(SmallRequest(), response).ok());
  running.context.TryCancel();
  for (std::jthread& client : clients) client.join();
  EXPECT_GT(waited_us[1], 0u);
  EXPECT_GT(waited_us[3], waited_us[1]) << "it came first and went last";
}

TEST(GenerateLoadTest, CachesThatDoNotFitTogetherWaitForEachOther) {
  ServerOptions options = TestOptions();
  options.limits.max_cache_bytes =
      400000;  // a page has 64 positions of 128 bytes: 17 are 139,264 bytes, 41 are 335,872
  options.park_after = std::chrono::hours(1);
  TestServer server(options);
  auto stub = NarrowStub(server);
  Started first(*stub, LongRequest());
  v1::GenerateRequest other = LongRequest();
  other.mutable_ensemble()->set_samples(40);
  CallContext other_context;
  std::unique_ptr<GenerateStream> waits = server.stub().Generate(&other_context, other);
  EXPECT_TRUE(server.WaitForMetric(Of("lm-ssa-local", "queue_requests"), 1));
  EXPECT_EQ(server.Metric(Of("lm-ssa-local", "generations_running")), 1.0);
  first.context.TryCancel();
  v1::GenerateResponse message;
  EXPECT_TRUE(waits->Read(&message)) << "it starts once there is room";
  other_context.TryCancel();
}

// Waits until the generations of "lm-dense" have given no token for a while, and returns how many they gave.
double WaitForStall(TestServer& server) {
  double before = -1.0, now = 0.0;
  EXPECT_TRUE(WaitUntil("a generation that waits for its client", [&] {
    std::this_thread::sleep_for(milliseconds(300));
    before = std::exchange(now, server.Metric(Of("lm-dense", "generated_tokens_total")));
    return now > 0.0 && now == before;
  }));
  return now;
}

TEST(GenerateLoadTest, ClientThatDoesNotReadHoldsUpItsOwnGenerationOnly) {
  ServerOptions options = TestOptions();
  options.unsent_tokens = 4;
  TestServer server(options);
  auto stub = NarrowStub(server);
  CallContext context;
  std::unique_ptr<GenerateStream> stream = stub->Generate(&context, ShortRequest("lm-dense", 4096));
  EXPECT_LT(WaitForStall(server), 4000.0) << "all of it was sent";
  EXPECT_TRUE(Generate(server, ShortRequest()).status.ok());
  v1::PredictResponse response;
  EXPECT_TRUE(server.Predict(SmallRequest(), response).ok());
  int messages = 0;
  v1::GenerateResponse message;
  while (stream->Read(&message)) ++messages;
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(messages, 4096);
  EXPECT_TRUE(message.done());
}

TEST(GenerateLoadTest, ClientThatNeverReadsLosesItsPlace) {
  ServerOptions options = TestOptions();
  options.unsent_tokens = 4;
  options.max_generations = 1;
  TestClock clock;
  options.clock = clock.read();
  options.park_after = std::chrono::hours(1);
  TestServer server(options);
  auto stub = NarrowStub(server);
  Started generation(*stub, ShortRequest("lm-dense", 4096));
  Generated other;
  std::jthread waiting([&] { other = Generate(server, ShortRequest()); });  // for the only place
  EXPECT_TRUE(server.WaitForMetric(Of("lm-dense", "queue_requests"), 1));
  WaitForStall(server);
  clock.Advance(options.unread_timeout);
  waiting.join();
  EXPECT_TRUE(other.status.ok()) << other.status.error_message();
  const grpc::Status status = generation.Finish();
  EXPECT_EQ(status.error_code(), grpc::CANCELLED);
  EXPECT_EQ(status.error_message(), "the client took no token for 30 s");
  EXPECT_LT(generation.messages, 4096);
}

TEST(GenerateLoadTest, DrainLetsGenerationsEnd) {
  TestClock clock;
  ServerOptions options = TestOptions();
  options.clock = clock.read();
  TestServer server(options);
  auto stub = NarrowStub(server);
  Started generation(*stub, ShortRequest("lm-dense", 4096));
  TestDrain drain(server, clock);
  EXPECT_TRUE(server.WaitForHealth("", -grpc::UNAVAILABLE));
  EXPECT_EQ(Generate(server, ShortRequest()).status.error_code(), grpc::UNAVAILABLE);
  const grpc::Status status = generation.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(generation.messages, 4096);
  EXPECT_TRUE(drain.WaitForEnd());
}

TEST(GenerateLoadTest, DrainThatTakesTooLongEndsThoseThatRunThoseThatWaitAndThoseThatAreNotRead) {
  ServerOptions options = TestOptions();
  options.max_generations = 2;
  options.unread_timeout = std::chrono::hours(1);
  TestClock clock;
  options.clock = clock.read();
  options.park_after = std::chrono::hours(1);
  TestServer server(options);
  v1::GenerateRequest request = LongRequest();
  request.mutable_ensemble()->set_samples(64);  // none ends by itself while the drain is looked at
  CallContext unread_context;
  std::unique_ptr<GenerateStream> unread = server.stub().Generate(&unread_context, request);
  std::vector<grpc::Status> statuses(3);
  std::vector<std::jthread> clients;
  for (grpc::Status& status : statuses) {
    clients.emplace_back([&] { status = Generate(server, request).status; });
  }
  EXPECT_TRUE(server.WaitForMetric(Of("lm-ssa-local", "queue_requests"), 2));
  TestDrain drain(server, clock, seconds(30));
  EXPECT_TRUE(server.WaitForHealth("", -grpc::UNAVAILABLE));
  drain.RunOutOfPatience();
  EXPECT_TRUE(drain.WaitForEnd());
  for (std::jthread& client : clients) client.join();
  for (const grpc::Status& status : statuses) EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE);
  v1::GenerateResponse message;
  while (unread->Read(&message)) {
  }
  EXPECT_EQ(unread->Finish().error_code(), grpc::UNAVAILABLE);
}

}  // namespace
}  // namespace edgewise::server
