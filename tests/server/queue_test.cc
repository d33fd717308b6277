#include "server/schedule/queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "server/base/status_details.h"
#include "tests/server/retry_delay.h"

namespace edgewise::server {
namespace {

// A clock that moves when told.
struct FakeClock {
  std::atomic<int64_t> milliseconds{1000};
  std::function<Time()> read() {
    return [this] { return Time() + std::chrono::milliseconds(milliseconds.load()); };
  }
  Time at(int64_t when) { return Time() + std::chrono::milliseconds(when); }
};

// Counts how often requests ended, and keeps the last status.
struct Answers {
  std::atomic<int> count = 0;
  absl::Status last;
  double queue_seconds = 0.0;

  RequestPtr Make(Time deadline = Time::max(), double predicted = 0.0) {
    auto request = std::make_unique<Request>();
    request->forecast.seconds = predicted;
    request->work.cost = 1;
    request->ticket.deadline = deadline;
    request->done = [this, raw = request.get()](const absl::Status& status) {
      last = status;
      queue_seconds = raw->outcome.queue_seconds;
      ++count;
    };
    return request;
  }
  absl::Status Push(RequestQueue& queue, Time deadline = Time::max(), double predicted = 0.0) {
    RequestPtr request = Make(deadline, predicted);
    absl::Status status = queue.Push(request);
    EXPECT_EQ(request == nullptr, status.ok()) << "taken iff OK";
    return status;
  }
};

// Nothing runs, and this many generations may.
UnderWay Room(size_t generations, uint64_t cache_bytes) {
  UnderWay under_way;
  under_way.room = {generations, cache_bytes};
  return under_way;
}

// Does with a batch what the engine does, as far as the queue is told.
Assignment Next(RequestQueue& queue, Wait wait = Wait::kForWork, const UnderWay& under_way = {}) {
  Assignment next = queue.Next(wait, under_way);
  if (next.turn.kind == Turn::kStart) queue.Ended(next.turn.pass);
  return next;
}

TEST(RequestQueueTest, JobsGoBeforeRequests) {
  bool before = false;
  for (int patience = 1; !before && patience < 4096; patience *= 2) {  // milliseconds until the job is there
    RequestQueue queue({});
    Answers answers;
    ASSERT_TRUE(answers.Push(queue).ok());
    std::jthread waiting([&] { EXPECT_TRUE(queue.RunOnEngine([] { return absl::OkStatus(); }).ok()); });
    std::this_thread::sleep_for(std::chrono::milliseconds(patience));
    Assignment first = Next(queue);
    before = first.job != nullptr;
    const Assignment second = Next(queue);
    (before ? first : second).job();
    EXPECT_EQ((before ? second : first).batch.size(), 1u);
  }
  EXPECT_TRUE(before);
}

TEST(RequestQueueTest, JobHasItsStatusAndNoneIsTakenOnceTheQueueIsClosed) {
  RequestQueue queue({});
  int ran = 0;
  std::jthread waiting([&] {
    EXPECT_TRUE(absl::IsInternal(queue.RunOnEngine([&ran] {
      ++ran;
      return absl::InternalError("broken");
    })));
  });
  Next(queue).job();
  waiting.join();
  EXPECT_EQ(ran, 1);
  queue.Close();
  EXPECT_TRUE(absl::IsUnavailable(queue.RunOnEngine([] { return absl::OkStatus(); })));
}

TEST(RequestQueueTest, JobsRunWhenRequestsHaveBeenCancelled) {
  RequestQueue queue({});
  queue.CancelAll();
  Answers refused;
  EXPECT_TRUE(absl::IsUnavailable(refused.Push(queue)));
  std::jthread waiting([&] { EXPECT_TRUE(queue.RunOnEngine([] { return absl::OkStatus(); }).ok()); });
  Next(queue).job();
}

TEST(RequestQueueTest, ALoanIsGivenForABriefRequestWhileTheEngineWaitsAndHasNothingElse) {
  constexpr double kBrief = RequestQueue::kLoanSeconds;
  RequestQueue queue({});
  Answers answers;
  bool taken = false;
  queue.Lend([&taken] { taken = true; });
  const auto lent = [&](double seconds, bool alone = true) {
    taken = false;
    RequestPtr request = answers.Make(Time::max(), seconds);
    request->ticket.alone = alone;
    EXPECT_TRUE(queue.Push(request).ok());
    return taken;
  };
  EXPECT_FALSE(lent(kBrief)) << "no engine waits";
  EXPECT_EQ(Next(queue).batch.size(), 1u);
  std::atomic<int> works = 0;
  std::jthread engine([&] {
    while (!Next(queue).closed) ++works;
  });
  // Not faster: what is pushed before the engine runs would fill the queue.
  while (!lent(kBrief)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const int before = works;
  EXPECT_FALSE(lent(kBrief)) << "there is a loan already";
  while (queue.HasMore()) Next(queue, Wait::kNot);
  EXPECT_EQ(works, before) << "the engine waits meanwhile";
  queue.GiveBack(false);
  EXPECT_FALSE(lent(kBrief, false)) << "others call";
  while (queue.HasMore()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(lent(2 * kBrief));
  EXPECT_FALSE(lent(0.0)) << "nothing is known of the model";
  queue.Close();
  queue.GiveBack(false);  // so that the engine ends where one of these was lent
}

TEST(RequestQueueTest, RequestThatExpiresWaitingEndsOnceAndIsNeverComputed) {
  FakeClock clock;
  RequestQueue queue({}, clock.read());
  Answers late, live;
  ASSERT_TRUE(late.Push(queue, clock.at(1500)).ok());
  ASSERT_TRUE(live.Push(queue).ok());
  clock.milliseconds = 1500;
  Assignment work = Next(queue);
  ASSERT_EQ(work.batch.size(), 1u);
  work.batch[0]->done(absl::OkStatus());
  EXPECT_EQ(live.count, 1);
  EXPECT_EQ(late.count, 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.last));
  EXPECT_DOUBLE_EQ(late.queue_seconds, 0.5);
  EXPECT_EQ(queue.size(), 0u);
}

TEST(RequestQueueTest, EndedRequestsMakeRoomForALiveOne) {
  FakeClock clock;
  RequestQueue queue({.max_requests = 1}, clock.read());
  Answers late, live, refused;
  ASSERT_TRUE(late.Push(queue, clock.at(1100)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(refused.Push(queue)));
  EXPECT_EQ(refused.count, 0);  // a refused request is ended by who pushed it
  clock.milliseconds = 1100;
  EXPECT_TRUE(live.Push(queue).ok());
  EXPECT_EQ(late.count, 1);
  EXPECT_EQ(queue.size(), 1u);
}

TEST(RequestQueueTest, RequestsExpireWhileTheEngineIsBusy) {
  FakeClock clock;
  RequestQueue queue({}, clock.read());
  Answers late;
  ASSERT_TRUE(late.Push(queue, clock.at(1100)).ok());
  queue.Started({.level = kDefaultPriority - 1, .progress = {.stepped = clock.at(1000)}});
  EXPECT_EQ(Next(queue, Wait::kNot).turn.kind, Turn::kStep);
  EXPECT_EQ(late.count, 0);
  clock.milliseconds = 1101;
  EXPECT_EQ(Next(queue, Wait::kNot).turn.kind, Turn::kStep);
  EXPECT_EQ(late.count, 1);
}

// The engine waits for work after the last pass has ended: nothing goes before what comes then.
TEST(RequestQueueTest, PassesThatHaveEndedDelayNobody) {
  FakeClock clock;
  RequestQueue queue({}, clock.read());
  const uint64_t busy = queue.Started({.level = kDefaultPriority - 1, .progress = {100.0, 0.0, clock.at(1000)}});
  Answers refused, taken;
  EXPECT_TRUE(absl::IsResourceExhausted(refused.Push(queue, Time::max(), 50.0)));
  queue.Ended(busy);
  EXPECT_TRUE(taken.Push(queue, Time::max(), 50.0).ok());
}

TEST(RequestQueueTest, CloseServesWhatWaitsAndRefusesTheRest) {
  RequestQueue queue({});
  Answers waiting, refused;
  ASSERT_TRUE(waiting.Push(queue).ok());
  queue.Close();
  EXPECT_TRUE(absl::IsUnavailable(refused.Push(queue)));
  EXPECT_EQ(Next(queue).batch.size(), 1u);
  EXPECT_TRUE(Next(queue).end());
}

TEST(RequestQueueTest, CancelAllEndsWhatWaits) {
  RequestQueue queue({});
  Answers waiting;
  ASSERT_TRUE(waiting.Push(queue).ok());
  queue.CancelAll();
  EXPECT_EQ(waiting.count, 1);
  EXPECT_TRUE(absl::IsUnavailable(waiting.last));
  EXPECT_GT(RetryDelay(waiting.last), 0.0);
  EXPECT_TRUE(queue.cancelled());
  queue.Close();
  EXPECT_TRUE(Next(queue).end());
}

TEST(RequestQueueTest, EveryRequestOfManyThreadsEndsExactlyOnce) {
  constexpr int kThreads = 4, kRequests = 500;
  RequestQueue queue({.max_requests = 64});
  std::atomic<int> accepted = 0, refused = 0, answered = 0;
  std::thread engine([&] {
    for (Assignment work = Next(queue); !work.end(); work = Next(queue)) {
      for (const RequestPtr& request : work.batch) request->done(absl::OkStatus());
    }
  });
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t) {
    clients.emplace_back([&, t] {
      for (int i = 0; i < kRequests; ++i) {
        auto made = std::make_unique<Request>();
        made->work.cost = 1;
        std::stop_source client;
        made->ticket.stopping = client.get_token();
        made->done = [&answered](const absl::Status&) { ++answered; };
        if (queue.Push(made).ok()) {
          ++accepted;
          if ((i + t) % 3 == 0) client.request_stop();
        } else {
          ++refused;
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  queue.Close();
  engine.join();
  EXPECT_EQ(accepted + refused, kThreads * kRequests);
  EXPECT_EQ(answered, accepted);
}

TEST(RequestQueueTest, NextGivesAGenerationOnlyWhereThereIsRoom) {
  RequestQueue queue({});
  Answers request, generation;
  RequestPtr waiting = generation.Make();
  waiting->work.generation.emplace();
  ASSERT_TRUE(queue.Push(waiting).ok());
  EXPECT_TRUE(Next(queue, Wait::kNot, Room(0, 100)).none());
  ASSERT_TRUE(request.Push(queue).ok());
  const Assignment work = Next(queue, Wait::kForWork, Room(1, 100));
  EXPECT_NE(work.generation, nullptr);
  EXPECT_EQ(work.batch.size(), 1u);
  EXPECT_FALSE(work.end());
}

TEST(RequestQueueTest, WaitForAClientEndsByItselfOrWhenItIsWoken) {
  RequestQueue queue({});
  EXPECT_TRUE(Next(queue, Wait::kAWhile).none());
  std::atomic<bool> over = false;
  std::thread waker([&] {
    while (!over) queue.Wake();
  });
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Next(queue, Wait::kAWhile).none());
  over = true;
  waker.join();
}

TEST(RequestQueueTest, ClosedQueueWaitsForGenerationsThatRun) {
  RequestQueue queue({});
  queue.Close();
  const Assignment work = Next(queue, Wait::kNot, Room(1, 1));
  EXPECT_TRUE(work.none());
  EXPECT_TRUE(work.closed);
  EXPECT_TRUE(Next(queue, Wait::kAWhile, Room(1, 1)).end());
}

}  // namespace
}  // namespace edgewise::server
