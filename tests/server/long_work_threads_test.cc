// The threads for long work: whose turn it is, who is refused, what is not done; the order of what one call sends.
#include "server/handler/long_work_threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "server/base/status_details.h"
#include "server/handler/answer_line.h"
#include "server/handler/handler.h"
#include "server/handler/request_bounds.h"
#include "tests/server/test_models.h"
#include "tests/support/paths.h"

namespace edgewise::server {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

// Work that has begun goes on when it is told to.
struct Held {
  absl::Notification begun, go_on, ended;
  absl::Status status;

  LongWorkThreads::Work work() {
    return [this](const absl::Status& of) {
      status = of;
      begun.Notify();
      if (of.ok()) go_on.WaitForNotification();
      ended.Notify();
    };
  }
  bool Begins() { return begun.WaitForNotificationWithTimeout(kLong); }
  bool Ends() {
    if (!go_on.HasBeenNotified()) go_on.Notify();
    return ended.WaitForNotificationWithTimeout(kLong);
  }
};

TEST(LongWorkThreadsTest, OneThatWaitsKeepsNoCallerAndFurtherOnesAreToldToComeBack) {
  Held first, second, third;
  LongWorkThreads threads("long work", 1, 1, 1);
  EXPECT_EQ(threads.count(), 0);
  threads.Start("a", first.work());
  ASSERT_TRUE(first.Begins());
  threads.Start("a", second.work());
  EXPECT_EQ(threads.count(), 2);
  threads.Start("a", third.work());
  ASSERT_TRUE(third.ended.HasBeenNotified());
  EXPECT_EQ(third.status.code(), absl::StatusCode::kResourceExhausted) << third.status;
  EXPECT_TRUE(third.status.GetPayload(kRetryInfoUrl).has_value());
  EXPECT_EQ(RejectionOf(third.status), Rejection::kQueueFull);
  EXPECT_FALSE(second.begun.HasBeenNotified());
  EXPECT_TRUE(first.Ends());
  EXPECT_TRUE(second.Ends());
  threads.Stop();
  EXPECT_EQ(threads.count(), 0);
}

TEST(LongWorkThreadsTest, AMessageDoesNotWaitForThatOfAnotherPrincipal) {
  Held first, second, other;
  LongWorkThreads threads("long work", 8, 1);
  threads.Start("a", first.work());
  ASSERT_TRUE(first.Begins());
  threads.Start("a", second.work());
  threads.Start("b", other.work());
  EXPECT_TRUE(other.Begins()) << "a thread is free";
  EXPECT_TRUE(other.Ends());
  EXPECT_FALSE(second.begun.HasBeenNotified()) << "its principal has as many as it may";
  EXPECT_TRUE(first.Ends());
  EXPECT_TRUE(second.Ends());
}

TEST(LongWorkThreadsTest, AtTheEndAllThatWaitIsDone) {
  int done = 0;
  {
    LongWorkThreads threads("long work", 100, 1, 2);
    for (int i = 0; i < 100; ++i) threads.Start("a", [&done](const absl::Status&) { ++done; });
  }
  EXPECT_EQ(done, 100);
}

// A thread that is kept busy while others come, in the order of `names`; then they are prepared.
using Answers = std::vector<std::string>;  // "name number", and why where it was refused

Answers AnswersOf(size_t most, const std::vector<std::string>& names) {
  Answers answers;  // after the first one all come from the thread, but for refusals, which come before it goes on
  Held busy;
  LongWorkThreads threads("long work", most, 1, 1);
  threads.Start("busy", busy.work());
  EXPECT_TRUE(busy.Begins());
  std::map<std::string, int> counts;
  absl::BlockingCounter all(static_cast<int>(names.size()));
  for (const std::string& name : names) {
    threads.Start(name, [&, number = absl::StrCat(name, " ", ++counts[name])](const absl::Status& status) {
      answers.push_back(absl::IsResourceExhausted(status) ? number + " refused" : number);
      all.DecrementCount();
    });
  }
  EXPECT_TRUE(busy.Ends());
  all.Wait();
  return answers;
}

TEST(AnswerLineTest, PiecesAreWrittenOneByOneInTheirOrder) {
  LongWorkThreads threads("long work", 8, 4, 4);
  absl::Notification idle;
  const auto line = std::make_shared<AnswerLine>(threads, "a", [&] { idle.Notify(); });
  EXPECT_TRUE(line->idle());
  absl::Notification go_on;
  std::vector<int> written;  // by one thread at a time, or ThreadSanitizer would see it
  for (int i = 0; i < 50; ++i) {
    line->Add([&, i] {
      if (i == 0) go_on.WaitForNotification();
      written.push_back(i);
    });
  }
  EXPECT_FALSE(line->idle());
  go_on.Notify();
  ASSERT_TRUE(idle.WaitForNotificationWithTimeout(kLong));
  EXPECT_TRUE(line->idle());
  ASSERT_EQ(written.size(), 50u);
  EXPECT_TRUE(std::is_sorted(written.begin(), written.end()));
}

TEST(AnswerLineTest, AnotherLineOfThePrincipalTakesItsTurnBetweenTwoPieces) {
  LongWorkThreads threads("long work", 8, 1, 1);
  absl::Notification go_on;
  absl::BlockingCounter lines(2);
  const auto ended = [&] { lines.DecrementCount(); };
  const auto first = std::make_shared<AnswerLine>(threads, "a", ended);
  const auto second = std::make_shared<AnswerLine>(threads, "a", ended);
  std::string order;
  for (int i = 0; i < 3; ++i) {
    first->Add([&, i] {
      if (i == 0) go_on.WaitForNotification();
      order += "1";
    });
  }
  second->Add([&] { order += "2"; });
  go_on.Notify();
  lines.Wait();
  EXPECT_EQ(order, "1211");
}

TEST(LongWorkThreadsTest, PrincipalsTakeTurns) {
  EXPECT_EQ(AnswersOf(16, {"a", "a", "a", "a", "b", "c", "b"}),
            (Answers{"a 1", "b 1", "c 1", "a 2", "b 2", "a 3", "a 4"}));
}

TEST(LongWorkThreadsTest, OneThatHasManyGivesWayWhereTheLineIsFull) {
  EXPECT_EQ(AnswersOf(3, {"a", "a", "a", "a", "b", "b", "c"}),
            (Answers{"a 4 refused", "a 3 refused", "b 2 refused", "a 2 refused", "a 1", "b 1", "c 1"}));
}

TEST(RequestBoundsTest, ManyPiecesAreForAnotherThreadAndThereOnlyTheClientEndsThem) {
  absl::Status wanted;
  Ticket ticket;
  RequestBounds here(ticket, [&] { return wanted; });
  int pieces = 0;
  while (here.Continue().ok()) ASSERT_LT(++pieces, 100);
  EXPECT_GT(pieces, 0);
  EXPECT_TRUE(here.exceeded());
  ticket.apart = true;
  RequestBounds apart(ticket, [&] { return wanted; });
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(apart.Continue().ok());
  wanted = absl::CancelledError("gone");
  EXPECT_EQ(apart.Continue(), wanted);
  EXPECT_FALSE(apart.exceeded());
}

TEST(RequestBoundsTest, BytesAreThoseOfTheRequest) {
  MemoryLedger ledger(100);
  MemoryHold hold(ledger);
  const Ticket ticket{.memory = &hold};
  RequestBounds bounds(ticket, [] { return absl::OkStatus(); });
  EXPECT_TRUE(bounds.Reserve(70).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(bounds.Reserve(31)));
  EXPECT_TRUE(bounds.Reserve(30).ok());
  EXPECT_EQ(ledger.used(), 100u);
  bounds.Release(60);
  EXPECT_EQ(ledger.used(), 40u);
}

// Requests that a handler prepares apart.
class ApartTest : public ::testing::Test {
 protected:
  ApartTest() {
    const std::vector<LoadJob> jobs = repository_.Scan().value();
    for (const LoadJob& job : jobs) repository_.Load(job, TestBackend());
  }

  static v1::PredictRequest Message(const std::string& bytes) {
    v1::PredictRequest message;
    message.set_model("vit_classes");
    message.add_inputs()->mutable_sequence()->set_image(bytes);
    return message;
  }
  double Requests(const std::string& code) const {
    const std::string series = "\nedgewise_requests_total{code=\"" + code + "\",model=\"vit_classes\",version=\"1\"} ";
    const std::string text = metrics_.Render();
    const size_t at = text.find(series);
    return at == std::string::npos ? 0.0 : std::stod(text.substr(at + series.size()));
  }

  // Where the reply of a request goes.
  struct End {
    absl::Status status;
    absl::Notification come;
    void Set(const absl::Status& of) {
      status = of;
      come.Notify();
    }
    absl::StatusCode Wait() {
      EXPECT_TRUE(come.WaitForNotificationWithTimeout(kLong));
      return status.code();
    }
  };
  // Keeps the principal's thread busy until it is told to go on.
  void KeepBusy(Held& held) {
    handler_.preparations().Start("p", held.work());
    EXPECT_TRUE(held.Begins());
  }
  Ticket RequestTo(End& end) {
    return {.principal = {"p"}, .reply = [&end](const absl::Status& status) { end.Set(status); }};
  }

  const Time now_ = Time() + std::chrono::hours(1);
  Metrics metrics_;
  Repository repository_{{tests::TestdataFolder() + "_images"}, metrics_};
  RequestQueue queue_{{}, [this] { return now_; }};
  const ServerOptions options_;
  MemoryLedger memory_{uint64_t{1} << 30};
  RequestHandler handler_{options_, memory_, repository_, queue_};
};

TEST_F(ApartTest, ImagesKeepNoCallerAndCountAsInFlight) {
  if (LongWorkThreads::UsualOfOne() > 1) GTEST_SKIP() << "a thread is free";
  Held busy;
  KeepBusy(busy);
  End first, second;
  v1::PredictRequest in_second = Message("");
  in_second.mutable_inputs(0)->mutable_second()->set_image("no image");
  in_second.mutable_inputs(0)->clear_sequence();
  handler_.Start(Message("no image"), RequestTo(first));
  handler_.Start(in_second, RequestTo(second));
  EXPECT_EQ(handler_.in_flight(), 3);
  EXPECT_FALSE(first.come.HasBeenNotified() || second.come.HasBeenNotified());
  EXPECT_TRUE(busy.Ends());
  EXPECT_EQ(first.Wait(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(second.Wait(), absl::StatusCode::kInvalidArgument);
  handler_.preparations().Stop();
  EXPECT_EQ(handler_.in_flight(), 0);
  EXPECT_EQ(Requests("INVALID_ARGUMENT"), 2.0);
}

TEST_F(ApartTest, TheCopyOfAMessageThatWaitsIsCounted) {
  if (LongWorkThreads::UsualOfOne() > 1) GTEST_SKIP() << "a thread is free";
  constexpr uint64_t kBytes = 10'000;
  Held busy;
  KeepBusy(busy);
  End end, refused;
  MemoryLedger little(kBytes);
  MemoryHold memory(memory_), none(little);
  Ticket ticket = RequestTo(end), of_refused = RequestTo(refused);
  ticket.memory = &memory;
  of_refused.memory = &none;
  handler_.Start(Message(std::string(kBytes, 'x')), std::move(ticket));
  EXPECT_GE(memory_.used(), kBytes);
  handler_.Start(Message(std::string(kBytes, 'x')), std::move(of_refused));
  EXPECT_EQ(refused.Wait(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Requests("RESOURCE_EXHAUSTED"), 1.0);
  EXPECT_TRUE(busy.Ends());
  EXPECT_EQ(end.Wait(), absl::StatusCode::kInvalidArgument);
  handler_.preparations().Stop();
  EXPECT_EQ(handler_.in_flight(), 0);
}

TEST_F(ApartTest, WhatNobodyWaitsForIsNotPrepared) {
  End late, cancelled;
  std::stop_source stop;
  stop.request_stop();
  Ticket of_late = RequestTo(late), of_cancelled = RequestTo(cancelled);
  of_late.deadline = now_;
  of_cancelled.stopping = stop.get_token();
  handler_.Start(Message("no image"), std::move(of_late));  // decoded, it would be INVALID_ARGUMENT
  handler_.Start(Message("no image"), std::move(of_cancelled));
  EXPECT_EQ(late.Wait(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(cancelled.Wait(), absl::StatusCode::kCancelled);
}

TEST_F(ApartTest, ADrainWaitsForMessagesThatCameBeforeUntilItIsOver) {
  if (LongWorkThreads::UsualOfOne() > 1) GTEST_SKIP() << "a thread is free";
  for (const bool over : {false, true}) {
    RequestHandler handler(options_, memory_, repository_, queue_);
    Held busy;
    handler.preparations().Start("p", busy.work());
    ASSERT_TRUE(busy.Begins());
    End before, after;
    handler.Start(Message("no image"), RequestTo(before));
    handler.Drain();
    handler.Start(Message("no image"), RequestTo(after));
    EXPECT_EQ(after.Wait(), absl::StatusCode::kUnavailable);
    if (over) handler.CancelPreparing();
    EXPECT_TRUE(busy.Ends());
    EXPECT_EQ(before.Wait(), over ? absl::StatusCode::kUnavailable : absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace edgewise::server
