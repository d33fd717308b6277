// Cancellation, deadlines, a full queue, and what the counters say of it.
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/server/test_server.h"

namespace edgewise::server {
namespace {

using ::testing::HasSubstr;

TEST(OverloadTest, CancelStopsTheWorkBetweenSteps) {
  TestServer server;
  CallContext context;
  std::jthread canceller([&] {
    EXPECT_TRUE(server.WaitForMetric(OfSbm("executions_total"), 1));
    context.TryCancel();
  });
  v1::PredictResponse response;
  const grpc::Status status = server.stub().Predict(&context, SlowRequest(), &response);
  canceller.join();
  EXPECT_EQ(status.error_code(), grpc::CANCELLED);
  EXPECT_TRUE(server.Predict(SmallRequest(), response).ok());
  EXPECT_EQ(server.Metric(OfSbm("items_total")), 1.0) << "of the 1,024 before it none was computed to its end";
  EXPECT_EQ(server.Metric(R"(edgewise_requests_total{code="CANCELLED",model="sbm",version="1"})"), 1.0);
  EXPECT_GT(server.Metric(OfSbm("cancelled_compute_seconds_total")), 0.0);
}

TEST(OverloadTest, DeadlineStopsTheWorkRunningAndWaiting) {
  TestClock clock;
  ServerOptions options = TestOptions();
  options.clock = clock.read();
  TestServer server(options);
  const auto late = [&](const v1::PredictRequest& request, seconds timeout) {
    v1::PredictResponse answer;
    const grpc::Status status = server.Predict(request, answer, timeout);
    EXPECT_EQ(status.error_code(), grpc::DEADLINE_EXCEEDED);
    EXPECT_EQ(status.error_message(), "the deadline has passed") << "the client was first";
  };
  const std::string counted = R"(edgewise_requests_total{code="DEADLINE_EXCEEDED",model="sbm",version="1"})";
  std::jthread running([&] { late(SlowRequest(), 2 * kHang); });
  EXPECT_TRUE(server.WaitForMetric(OfSbm("executions_total"), 1));
  std::jthread waiting([&] { late(SmallRequest(), kHang); });
  EXPECT_TRUE(server.WaitForMetric(OfSbm("queue_requests"), 1));
  clock.Advance(kHang);
  waiting.join();
  EXPECT_EQ(server.Metric(counted), 1.0) << "the one that runs has as long again";
  clock.Advance(kHang);
  running.join();
  EXPECT_EQ(server.Metric(counted), 2.0);
  v1::PredictResponse response;
  EXPECT_TRUE(server.Predict(SmallRequest(), response).ok());
  EXPECT_EQ(server.Metric(OfSbm("executions_total")), 2.0) << "the one that waited never became a batch";
}

TEST(OverloadTest, FullQueueIsResourceExhaustedWithRetryInfo) {
  ServerOptions options = TestOptions();
  options.queue.max_requests = 1;
  TestServer server(options);
  CallContext running_context, waiting_context;
  std::jthread running([&] {
    v1::PredictResponse answer;
    server.stub().Predict(&running_context, SlowRequest(), &answer);
  });
  EXPECT_TRUE(server.WaitForMetric(OfSbm("executions_total"), 1));
  std::jthread waiting([&] {
    v1::PredictResponse answer;
    server.stub().Predict(&waiting_context, SmallRequest(), &answer);
  });
  EXPECT_TRUE(server.WaitForMetric(OfSbm("queue_requests"), 1));
  v1::PredictResponse response;
  const grpc::Status status = server.Predict(SmallRequest(), response);
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(),
              ::testing::StartsWith("the queue is full: 1 requests wait; the limit is 1; try again in "));
  EXPECT_THAT(status.error_details(), HasSubstr("google.rpc.RetryInfo"));
  EXPECT_EQ(server.Metric(R"(edgewise_rejections_total{model="sbm",reason="queue_full",version="1"})"), 1.0);
  running_context.TryCancel();
  waiting_context.TryCancel();
  running.join();
  waiting.join();
  EXPECT_TRUE(server.WaitForMetric(OfSbm("requests_in_flight"), 0));
  EXPECT_TRUE(server.Predict(SmallRequest(), response).ok());
  EXPECT_EQ(server.Metric(OfSbm("queue_requests")), 0.0);
  EXPECT_EQ(server.Metric(OfSbm("queue_tokens")), 0.0);
}

TEST(OverloadTest, WhereTheQueueIsFullARequestIsRefusedBeforeItIsChecked) {
  ServerOptions options = TestOptions();
  options.queue.max_requests = 1;
  options.queue.max_delay = std::chrono::hours(24);  // no request is refused for its time: nothing depends on a clock
  TestServer server(options);
  v1::PredictResponse response;
  v1::PredictRequest slow = SlowRequest();
  slow.mutable_ensemble()->set_samples(1);
  EXPECT_TRUE(server.Predict(SmallRequest(), response).ok() &&
              server.Predict(slow, response).ok());  // now seconds are known
  slow.mutable_ensemble()->set_samples(256);
  grpc::ClientContext running_context, waiting_context;  // without deadlines
  std::jthread running([&] {
    v1::PredictResponse answer;
    server.stub().Predict(&running_context, slow, &answer);
  });
  EXPECT_TRUE(server.WaitForMetric(OfSbm("executions_total"), 3));
  std::jthread waiting([&] {
    v1::PredictResponse answer;
    server.stub().Predict(&waiting_context, slow, &answer);
  });
  EXPECT_TRUE(server.WaitForMetric(OfSbm("queue_requests"), 1));
  v1::PredictRequest wrong = SmallRequest();
  wrong.mutable_ensemble()->set_samples(256);
  wrong.mutable_inputs(0)->mutable_sequence()->mutable_token_ids()->set_values(0, -1);
  EXPECT_EQ(server.Predict(wrong, response).error_code(), grpc::RESOURCE_EXHAUSTED);
  wrong.set_priority(kPriorityLevels + 1);
  EXPECT_EQ(server.Predict(wrong, response).error_code(), grpc::INVALID_ARGUMENT) << "its level is not known";
  running_context.TryCancel();
  waiting_context.TryCancel();
  running.join();
  waiting.join();
  EXPECT_TRUE(server.WaitForMetric(OfSbm("requests_in_flight"), 0));
  EXPECT_EQ(server.Predict(wrong, response).error_code(), grpc::INVALID_ARGUMENT);
}

TEST(OverloadTest, CountersMoveByExactlyTheRequestsMade) {
  TestServer server;
  v1::PredictResponse response;
  double edges = 0.0;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(server.Predict(SmallRequest(), response).ok());
    edges += response.predictions(0).edges().edges();
  }
  v1::PredictRequest bad = SmallRequest();
  bad.mutable_ensemble()->set_samples(1000);
  for (int i = 0; i < 3; ++i) server.Predict(bad, response);
  bad = SmallRequest();
  bad.set_request_id("\n");
  server.Predict(bad, response);
  bad = SmallRequest();
  bad.set_version(-1);
  server.Predict(bad, response);
  for (int i = 0; i < 2; ++i) server.Predict(SmallRequest("unknown" + std::to_string(i)), response);
  EXPECT_EQ(server.Metric(R"(edgewise_requests_total{code="OK",model="sbm",version="1"})"), 5.0);
  EXPECT_EQ(server.Metric(R"(edgewise_requests_total{code="INVALID_ARGUMENT",model="sbm",version="1"})"), 5.0);
  EXPECT_EQ(server.Metric(R"(edgewise_requests_total{code="NOT_FOUND",model="_other",version="_other"})"), 2.0);
  const std::string predict = R"(",method="Predict",service="edgewise.v1.InferenceService"})";
  EXPECT_EQ(server.Metric(R"(edgewise_rpc_requests_total{code="OK)" + predict), 5.0);
  EXPECT_EQ(server.Metric(R"(edgewise_rpc_requests_total{code="INVALID_ARGUMENT)" + predict), 5.0);
  EXPECT_EQ(server.Metric(OfSbm("attention_edges_total")), edges);
  EXPECT_EQ(server.Metric(OfSbm("request_duration_seconds_count")), 10.0);
  EXPECT_EQ(server.Metric(OfSbm("items_total")), 5.0);
  EXPECT_EQ(server.HttpGet("/metrics").find("unknown0"), std::string::npos);
}

TEST(OverloadTest, EveryPageShowsWholeRequests) {
  constexpr int kRequests = 100, kInputs = 256;
  TestFolder folder;
  folder.AddModel("sbm", "sbm", 1);
  TestServer server(TestOptions(folder.path()));
  v1::PredictRequest request = SmallRequest();  // of many inputs: each is counted
  for (int i = 1; i < kInputs; ++i) *request.add_inputs() = request.inputs(0);
  std::atomic<int> failed = 0;
  std::atomic<bool> over = false;
  std::jthread client([&] {
    v1::PredictResponse response;
    for (int i = 0; i < kRequests; ++i) failed += !server.Predict(request, response).ok();
    over = true;
  });
  double answered = 0.0;
  int pages = 0, torn = 0;
  while (!over) {
    const std::string page = server.HttpGet("/metrics");
    ++pages;
    answered = ValueOn(page, R"(edgewise_requests_total{code="OK",model="sbm",version="1"})");
    torn += ValueOn(page, OfSbm("items_total")) != kInputs * answered;
    torn += ValueOn(page, OfSbm("request_duration_seconds_count")) != answered;
    torn += ValueOn(page, OfSbm("input_density_ratio_count")) != kInputs * answered;
    torn += ValueOn(page, OfSbm("tokens_total")) != 4 * kInputs * answered;
    torn += ValueOn(page, OfSbm("queue_duration_seconds_count")) != answered;
  }
  client.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(torn, 0) << "of " << pages << " pages";
  EXPECT_EQ(server.Metric(R"(edgewise_requests_total{code="OK",model="sbm",version="1"})"), kRequests);
}

TEST(OverloadTest, CallsGiveWayToTheEngine) {
  TestServer server;
  v1::PredictResponse response;
  EXPECT_TRUE(server.Predict(SmallRequest(), response).ok()) << "the threads have begun";
  const int own = getpriority(PRIO_PROCESS, 0);
  int threads = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    const pid_t id = std::stoi(task.path().filename());
    if (name == "engine") {
      EXPECT_EQ(getpriority(PRIO_PROCESS, id), own);
    }
    if (name != "calls") continue;
    ++threads;
    EXPECT_EQ(sched_getscheduler(id), SCHED_BATCH);
    EXPECT_GE(getpriority(PRIO_PROCESS, id), std::min(own + 1, 19));
  }
  EXPECT_GE(threads, 1);
}

}  // namespace
}  // namespace edgewise::server
