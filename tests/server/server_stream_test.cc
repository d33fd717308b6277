// PredictStream over a real port.
#include <gmock/gmock.h>

#include <map>
#include <thread>

#include "tests/server/test_server.h"

namespace edgewise::server {
namespace {

using Stream = grpc::ClientReaderWriter<v1::PredictRequest, v1::PredictStreamResponse>;

v1::PredictRequest WithId(v1::PredictRequest request, const std::string& id) {
  request.set_request_id(id);
  return request;
}

TEST(StreamTest, EveryRequestIsAnsweredOnceUnderItsIdBeyondTheLimitInFlight) {
  ServerOptions options = TestOptions();
  options.stream_in_flight = 4;
  TestServer server(options);
  CallContext context;
  std::unique_ptr<Stream> stream = server.stub().PredictStream(&context);
  constexpr int kRequests = 200;
  std::jthread writer([&] {
    for (int i = 0; i < kRequests; ++i) {
      v1::PredictRequest request = WithId(SmallRequest(), "r" + std::to_string(i));
      request.mutable_ensemble()->set_seed(static_cast<uint64_t>(i));
      EXPECT_TRUE(stream->Write(request));
    }
    stream->WritesDone();
  });
  std::map<std::string, uint64_t> seeds;
  v1::PredictStreamResponse response;
  while (stream->Read(&response)) {
    ASSERT_TRUE(response.has_response()) << response.error().message();
    EXPECT_EQ(response.response().request_id(), response.request_id());
    EXPECT_TRUE(seeds.emplace(response.request_id(), response.response().seed()).second);
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  ASSERT_EQ(seeds.size(), static_cast<size_t>(kRequests));
  for (int i = 0; i < kRequests; ++i) EXPECT_EQ(seeds["r" + std::to_string(i)], static_cast<uint64_t>(i));
  EXPECT_EQ(server.Metric(R"(edgewise_requests_total{code="OK",model="sbm",version="1"})"), kRequests);
}

TEST(StreamTest, BadRequestIsAnErrorAnswerAndTheStreamGoesOn) {
  TestServer server;
  CallContext context;
  std::unique_ptr<Stream> stream = server.stub().PredictStream(&context);
  v1::PredictStreamResponse response;
  ASSERT_TRUE(stream->Write(WithId(SmallRequest("unknown"), "bad")));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.request_id(), "bad");
  EXPECT_EQ(response.error().code(), static_cast<int>(grpc::NOT_FOUND));
  ASSERT_TRUE(stream->Write(WithId(SmallRequest(), "good")));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.request_id(), "good");
  EXPECT_TRUE(response.has_response());
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(StreamTest, AnswersComeAsTheyFinishNotAsTheyWereAsked) {
  TestServer server;
  CallContext context;
  std::unique_ptr<Stream> stream = server.stub().PredictStream(&context);
  ASSERT_TRUE(stream->Write(WithId(SlowRequest(), "slow")));
  EXPECT_TRUE(server.WaitForMetric(OfSbm("executions_total"), 1));
  for (const uint32_t priority : {3, 1}) {  // both share the device with the slow one
    v1::PredictRequest small = WithId(SmallRequest(), "small");
    small.set_priority(priority);
    ASSERT_TRUE(stream->Write(small));
    v1::PredictStreamResponse response;
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.request_id(), "small");
  }
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
}

TEST(StreamTest, IdInFlightTwiceIsAnErrorAndFreeAgainAfterItsAnswer) {
  TestServer server;
  CallContext slow_context, context;
  std::jthread slow([&] {
    v1::PredictResponse answer;
    server.stub().Predict(&slow_context, SlowRequest(), &answer);
  });
  EXPECT_TRUE(server.WaitForMetric(OfSbm("executions_total"), 1));
  std::unique_ptr<Stream> stream = server.stub().PredictStream(&context);
  v1::PredictStreamResponse response;
  ASSERT_TRUE(stream->Write(WithId(SmallRequest(), "x")));
  ASSERT_TRUE(stream->Write(WithId(SmallRequest(), "x")));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.error().code(), static_cast<int>(grpc::INVALID_ARGUMENT));
  EXPECT_THAT(response.error().message(), ::testing::HasSubstr("request_id is \"x\", which is in flight"));
  EXPECT_EQ(server.Metric(R"(edgewise_requests_total{code="INVALID_ARGUMENT",model="sbm",version="1"})"), 1.0);
  slow_context.TryCancel();
  slow.join();
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(response.has_response());
  ASSERT_TRUE(stream->Write(WithId(SmallRequest(), "x")));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(response.has_response());
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(StreamTest, RequestsThatMeetTheDrainNeverFollowTheStatus) {
  for (int i = 0; i < 10; ++i) {
    TestServer server;
    CallContext context;
    std::unique_ptr<Stream> stream = server.stub().PredictStream(&context);
    v1::PredictStreamResponse response;
    ASSERT_TRUE(stream->Write(SmallRequest()));
    ASSERT_TRUE(stream->Read(&response));
    std::jthread reader([&] {
      while (stream->Read(&response)) {
      }
    });
    std::jthread writer([&] {
      while (stream->Write(SmallRequest())) {
      }
    });
    usleep(static_cast<useconds_t>(500 * i));
    server.server().Drain(kHang);
    writer.join();
    reader.join();
    EXPECT_EQ(stream->Finish().error_code(), grpc::UNAVAILABLE);
  }
}

TEST(StreamTest, CancelledStreamStopsAllItsWork) {
  TestServer server;
  CallContext context;
  std::unique_ptr<Stream> stream = server.stub().PredictStream(&context);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(stream->Write(WithId(SlowRequest(), std::to_string(i))));
  EXPECT_TRUE(server.WaitForMetric(OfSbm("queue_requests"), 2));
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
  EXPECT_TRUE(server.WaitForMetric(R"(edgewise_requests_total{code="CANCELLED",model="sbm",version="1"})", 3));
  EXPECT_TRUE(server.WaitForMetric(OfSbm("requests_in_flight"), 0));
  v1::PredictResponse response;
  EXPECT_TRUE(server.Predict(SmallRequest(), response).ok());
}

}  // namespace
}  // namespace edgewise::server
