// Whom the scheduler refuses at the door, with which status and advice.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/status_details.h"
#include "server/request/call.h"
#include "server/schedule/scheduler.h"
#include "tests/server/retry_delay.h"
#include "tests/server/scheduler_fixture.h"

namespace edgewise::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(AdmissionTest, FullQueueRefusesWithRetryInfoAndLeavesTheRequest) {
  TestScheduler scheduler({.max_requests = 2});
  Add(scheduler, MakeRequest());
  Add(scheduler, MakeRequest());
  RequestPtr third = MakeRequest();
  const absl::Status status = Push(scheduler, third);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "the queue is full: 2 requests wait; the limit is 2; try again in 50ms");
  EXPECT_DOUBLE_EQ(RetryDelay(status), 0.05);
  ASSERT_NE(third, nullptr);
  EXPECT_EQ(scheduler.size(), 2u);
  NextOf(scheduler);
  EXPECT_TRUE(Push(scheduler, third).ok());
}

TEST(AdmissionTest, EndedRequestsLeaveAFullLineOnly) {
  TestScheduler scheduler({.max_requests = 2});
  const Request* late = Add(scheduler, MakeRequest(1, 2, kStart + seconds(1)));
  std::vector<EndedRequest> ended;
  RequestPtr second = MakeRequest(), third = MakeRequest();
  ASSERT_TRUE(scheduler.Add(second, kStart + seconds(1), ended).ok());
  EXPECT_TRUE(ended.empty());
  ASSERT_TRUE(scheduler.Add(third, kStart + seconds(1), ended).ok());
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].request.get(), late);
  EXPECT_EQ(scheduler.size(), 2u);
}

TEST(AdmissionTest, TokensBoundTheQueueToo) {
  TestScheduler scheduler({.max_requests = 100, .max_tokens = 10});
  Add(scheduler, MakeRequest(6));
  Add(scheduler, MakeRequest(4));
  RequestPtr more = MakeRequest(1);
  ASSERT_TRUE(absl::IsResourceExhausted(Push(scheduler, more)));
  ASSERT_NE(more, nullptr);
  NextOf(scheduler);
  EXPECT_EQ(scheduler.cost(), 4u);
  EXPECT_TRUE(Push(scheduler, more).ok());
  EXPECT_EQ(scheduler.cost(), 5u);
}

TEST(AdmissionTest, EmptyQueueTakesARequestOfAnySize) {
  TestScheduler scheduler({.max_requests = 1, .max_tokens = 10});
  Add(scheduler, MakeRequest(1000000));
  EXPECT_NE(NextOf(scheduler), nullptr);
  EXPECT_EQ(scheduler.cost(), 0u);
}

// A client whose deadline passes cancels as well, perhaps a moment before our clock says so.
TEST(AdmissionTest, CancelledByItsOwnDeadlineIsLateAndNotCancelled) {
  std::stop_source client;
  Request request;
  request.ticket.stopping = client.get_token();
  request.ticket.deadline = kStart + std::chrono::seconds(1);
  EXPECT_TRUE(CancelledOrExpired(request, request.ticket.deadline - std::chrono::milliseconds(1)).ok());
  client.request_stop();
  EXPECT_TRUE(absl::IsDeadlineExceeded(CancelledOrExpired(request, request.ticket.deadline + std::chrono::seconds(1))));
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(CancelledOrExpired(request, request.ticket.deadline - std::chrono::milliseconds(1))));
  EXPECT_TRUE(absl::IsCancelled(CancelledOrExpired(request, kStart)));
}

TEST(AdmissionTest, LateOrCancelledRequestsAreRefusedAtTheDoor) {
  TestScheduler scheduler;
  RequestPtr late = MakeRequest(1, 2, kStart);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Push(scheduler, late)));
  std::stop_source client;
  client.request_stop();
  RequestPtr cancelled = MakeRequest();
  cancelled->ticket.stopping = client.get_token();
  EXPECT_TRUE(absl::IsCancelled(Push(scheduler, cancelled)));
  EXPECT_EQ(scheduler.size(), 0u);
}

TEST(AdmissionTest, AGenerationThatCannotBeginBeforeItsDeadlineIsRefused) {
  TestScheduler scheduler;
  const auto generation = [](Time deadline) {
    RequestPtr request = MakeGeneration();
    request->forecast.seconds = 1.0;
    request->ticket.deadline = deadline;
    return request;
  };
  Add(scheduler, generation(Time::max()));
  RequestPtr late = generation(kStart + milliseconds(900)), in_time = generation(kStart + milliseconds(1100));
  const absl::Status status = Push(scheduler, late);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_NEAR(RetryDelay(status), 1.0, 1e-9);
  EXPECT_TRUE(Push(scheduler, in_time).ok()) << "it may end late: its client reads what there is";
}

TEST(AdmissionTest, RetryAdviceIsTheWorkThatGoesFirst) {
  TestScheduler scheduler({.max_requests = 3});
  for (int i = 0; i < 3; ++i) Add(scheduler, Taking(0.4));
  RequestPtr more = Taking(0.4);
  const absl::Status status = Push(scheduler, more);
  EXPECT_DOUBLE_EQ(RetryDelay(status), 2.0) << "whole seconds, as Retry-After has them";
  EXPECT_EQ(status.message(), "the queue is full: 3 requests wait; the limit is 3; try again in 2s");
}

// One time in the text and in RetryInfo, however long, and what helps by the name that the client's protocol has for
// it.
TEST(AdmissionTest, LateIsNotFullAndNamesItsTimeAndTheRemedy) {
  Call http;
  http.http = true;
  for (Call* const call : {static_cast<Call*>(nullptr), &http}) {
    TestScheduler scheduler;
    Add(scheduler, Taking(88.2));
    RequestPtr late = Taking(30.0, 2, kStart + seconds(50)), patient = Taking(30.0);
    late->ticket.call = patient->ticket.call = call;
    absl::Status status = Push(scheduler, late);
    EXPECT_EQ(status.message(),
              absl::StrCat("the request would be late: requests that go first take about 1m29s and this one about 30s, "
                           "and its deadline is in 50s; try again then, or with ",
                           call != nullptr ? "a larger X-Request-Timeout-Ms" : "a later gRPC deadline"));
    EXPECT_DOUBLE_EQ(RetryDelay(status), 89.0);
    EXPECT_EQ(RejectionOf(status), Rejection::kDeadline);
    status = Push(scheduler, patient);
    EXPECT_EQ(status.message(),
              absl::StrCat("the request would be late: requests that go first take about 1m29s, and without a deadline "
                           "the limit is 2s (--max_queue_delay); try again then, or with ",
                           call != nullptr ? "X-Request-Timeout-Ms" : "a gRPC deadline"));
    EXPECT_DOUBLE_EQ(RetryDelay(status), 89.0);
  }
}

TEST(AdmissionTest, ARequestThatNoIdleServerAnswersInTimeIsLateAtTheDoor) {
  TestScheduler scheduler;
  Add(scheduler, Taking(0.0001));  // not idle
  RequestPtr hopeless = Taking(1.0, 2, kStart + milliseconds(600));
  const absl::Status status = Push(scheduler, hopeless);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_EQ(status.message(),
            "the request takes about 1s on an idle server, and its deadline is in 600ms; send it with a later gRPC "
            "deadline");
  EXPECT_NE(hopeless, nullptr);
  std::vector<EndedRequest> none;
  EXPECT_EQ(scheduler.Check(hopeless->ticket, hopeless->forecast.seconds, kStart, none), status)
      << "before the whole request is known";
  EXPECT_TRUE(scheduler.TakeEnded(kStart + milliseconds(50)).empty());
  Add(scheduler, Taking(0.01, 1, kStart + milliseconds(25)));
  const std::vector<EndedRequest> ended = scheduler.TakeEnded(kStart + milliseconds(20));
  ASSERT_EQ(ended.size(), 1u) << "waiting made it hopeless";
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended[0].reason));
}

// A request of 10 ms that has waited for 11 ms, with so many to go.
const Request* AddOld(TestScheduler& scheduler, const std::shared_ptr<const LoadedModel>& model, milliseconds to_go) {
  RequestPtr request = Taking(0.01, kDefaultPriority, kStart + milliseconds(11) + to_go);
  request->ticket.model = model;
  request->forecast.demand = {.passes = 1.0, .tokens = 100.0};
  return Add(scheduler, std::move(request));
}

std::vector<const Request*> EndedAfterTheWait(TestScheduler& scheduler) {
  std::vector<const Request*> found;
  for (const EndedRequest& ended : scheduler.TakeEnded(kStart + milliseconds(11))) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(ended.reason));
    found.push_back(ended.request.get());
  }
  return found;
}

// What takes longer than was predicted is computed for nobody, and makes those late that wait for it.
TEST(AdmissionTest, WhereOthersWaitNothingStartsThatIsLikelyLate) {
  for (const bool slower : {false, true}) {
    const auto model = std::make_shared<LoadedModel>();
    for (int i = 0; i < 400; ++i) {  // twice as slow as when they were predicted; or one in four takes twice as long
      model->costs->Observe({.passes = 1.0, .tokens = 100.0}, slower || i % 4 == 0 ? 0.02 : 0.01);
    }
    TestScheduler scheduler;
    const Request* tight = AddOld(scheduler, model, milliseconds(13));
    EXPECT_TRUE(EndedAfterTheWait(scheduler).empty()) << "alone it makes nobody late";
    Add(scheduler, Taking(0.0001, kDefaultPriority + 1));
    EXPECT_TRUE(EndedAfterTheWait(scheduler).empty()) << "nor on its level";
    AddOld(scheduler, model, milliseconds(13));
    EXPECT_EQ(EndedAfterTheWait(scheduler), std::vector{tight}) << "one of two; the other is alone then";
    AddOld(scheduler, model, milliseconds(45));
    EXPECT_EQ(EndedAfterTheWait(scheduler).size(), 1u) << "the tight one";
    EXPECT_TRUE(EndedAfterTheWait(scheduler).empty());
    EXPECT_EQ(scheduler.size(), 2u);
  }
}

// Else a prediction that is too long would never be corrected.
TEST(AdmissionTest, AnIdleServerTriesEveryRequest) {
  TestScheduler scheduler;
  const Request* tried = Add(scheduler, Taking(10.0, 2, kStart + milliseconds(10)));
  EXPECT_TRUE(scheduler.TakeEnded(kStart).empty());
  EXPECT_EQ(NextOf(scheduler), tried);
}

TEST(AdmissionTest, ARequestThatOthersMakeLateIsRefusedWithTheirTime) {
  TestScheduler scheduler;
  Add(scheduler, Taking(0.5));
  RequestPtr late = Taking(0.2, 2, kStart + milliseconds(600));
  const absl::Status status = Push(scheduler, late);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(status.message(),
            "the request would be late: requests that go first take about 500ms and this one about 200ms, and its "
            "deadline is in 600ms; try again then, or with a later gRPC deadline");
  EXPECT_NEAR(RetryDelay(status), 0.5, 1e-9);
  RequestPtr in_time = Taking(0.2, 2, kStart + milliseconds(810));
  EXPECT_TRUE(Push(scheduler, in_time).ok());
}

TEST(AdmissionTest, ACheckRefusesAsAddDoesAndChangesNothing) {
  TestScheduler scheduler({.max_requests = 2});
  Add(scheduler, Taking(0.5));
  std::vector<EndedRequest> ended;
  const RequestPtr late = Taking(0.2, 2, kStart + milliseconds(600));
  EXPECT_TRUE(absl::IsResourceExhausted(scheduler.Check(late->ticket, late->forecast.seconds, kStart, ended)));
  const RequestPtr in_time = Taking(0.2, 2, kStart + milliseconds(810));
  EXPECT_TRUE(scheduler.Check(in_time->ticket, in_time->forecast.seconds, kStart, ended).ok());
  EXPECT_EQ(scheduler.size(), 1u);
  Add(scheduler, Taking(0.1));
  EXPECT_TRUE(absl::IsResourceExhausted(scheduler.Check(in_time->ticket, in_time->forecast.seconds, kStart, ended)));
  EXPECT_TRUE(ended.empty());
}

TEST(AdmissionTest, WorkThatRunsCountsToo) {
  TestScheduler scheduler;
  Next(scheduler, std::vector{Pass(0.5)}, {}, kStart);
  RequestPtr late = Taking(0.2, 2, kStart + milliseconds(600));
  EXPECT_TRUE(absl::IsResourceExhausted(Push(scheduler, late)));
  Next(scheduler, {}, {}, kStart);
  EXPECT_TRUE(Push(scheduler, late).ok());
}

TEST(AdmissionTest, WorkThatRunsCountsUntilItsDeadlineOrItsClientGoes) {
  TestScheduler scheduler;
  std::stop_source gone;
  RunningPass pass = Pass(0.5);
  pass.stopping = gone.get_token();
  pass.progress.ends = kStart + milliseconds(1);
  Next(scheduler, std::vector{pass}, {}, kStart);
  std::vector<EndedRequest> ended;
  RequestPtr late = Taking(0.2, 2, kStart + milliseconds(600));
  EXPECT_TRUE(absl::IsResourceExhausted(scheduler.Check(late->ticket, late->forecast.seconds, kStart, ended)));
  EXPECT_TRUE(scheduler.Check(late->ticket, late->forecast.seconds, pass.progress.ends, ended).ok())
      << "its client waits no more";
  Next(scheduler, std::vector{pass}, {}, kStart);
  EXPECT_TRUE(absl::IsResourceExhausted(scheduler.Check(late->ticket, late->forecast.seconds, kStart, ended)));
  gone.request_stop();
  EXPECT_TRUE(scheduler.Check(late->ticket, late->forecast.seconds, kStart, ended).ok());
}

TEST(AdmissionTest, OnlyWorkThatGoesFirstCounts) {
  TestScheduler scheduler;
  Add(scheduler, Taking(0.8, 2));
  RequestPtr urgent = Taking(0.2, 1, kStart + milliseconds(400));
  EXPECT_TRUE(Push(scheduler, urgent).ok()) << "level 2 takes a third while level 1 has work";
  RequestPtr shorter = Taking(0.1, 2, kStart + milliseconds(450));
  EXPECT_TRUE(Push(scheduler, shorter).ok()) << "it starts beside the long one";
  RequestPtr similar = Taking(0.3, 2, kStart + milliseconds(900));
  EXPECT_TRUE(absl::IsResourceExhausted(Push(scheduler, similar)));
}

TEST(AdmissionTest, WithoutADeadlineTheWaitIsBoundedButNotTheWork) {
  TestScheduler scheduler({.max_delay = milliseconds(2000)});
  Add(scheduler, Taking(100.0));
  EXPECT_NE(NextOf(scheduler), nullptr) << "an idle server takes any request";
  Next(scheduler, {}, {}, kStart);
  Add(scheduler, Taking(1.5));
  Add(scheduler, Taking(1.0));
  RequestPtr third = Taking(0.5);
  const absl::Status status = Push(scheduler, third);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(status.message(),
            "the request would be late: requests that go first take about 3s, and without a deadline the limit is 2s "
            "(--max_queue_delay); try again then, or with a gRPC deadline");
}

}  // namespace
}  // namespace edgewise::server
