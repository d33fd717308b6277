// The load generator counts what it does and measures from when a call was due.
#include "client/cli/load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

namespace edgewise::cli {
namespace {

TEST(PercentileTest, IsTheNearestRank) {
  const std::vector<double> ten = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  EXPECT_EQ(Percentile(ten, 0.5), 5);
  EXPECT_EQ(Percentile(ten, 0.9), 9);
  EXPECT_EQ(Percentile(ten, 0.91), 10);
  EXPECT_EQ(Percentile(ten, 0.999), 10);
  EXPECT_EQ(Percentile(ten, 0.0), 1);
  EXPECT_EQ(Percentile(ten, 1.0), 10);
  EXPECT_EQ(Percentile(std::vector<double>{3}, 0.5), 3);
  EXPECT_EQ(Percentile({}, 0.5), 0);
}

TEST(PercentileTest, OfAThousandValuesP999IsTheLastButOne) {
  std::vector<double> values(1000);
  for (int i = 0; i < 1000; ++i) values[i] = i + 1;
  EXPECT_EQ(Percentile(values, 0.999), 999);
  EXPECT_EQ(Percentile(values, 0.99), 990);
}

LoadAnswer Answer() {
  return {.outputs = 2, .density = 0.5, .edges = 100, .queue_us = 100, .compute_us = 300, .batch_inputs = 3};
}

TEST(LoadTest, EveryIndexIsCalledOnceAndCounted) {
  std::mutex mutex;
  std::multiset<uint64_t> seen;
  const LoadResult result = RunLoad(
      {.concurrency = 8, .requests = 200},
      [&](uint64_t index, const LoadDone& done) {
        {
          std::lock_guard lock(mutex);
          seen.insert(index);
        }
        done(index % 10 == 0 ? absl::StatusOr<LoadAnswer>(absl::ResourceExhaustedError("queue full")) : Answer());
      },
      nullptr);
  EXPECT_EQ(seen.size(), 200u);
  EXPECT_EQ(std::set<uint64_t>(seen.begin(), seen.end()).size(), 200u);
  EXPECT_EQ(result.latency_ms.size(), 180u);
  EXPECT_EQ(result.errors.at(absl::StatusCode::kResourceExhausted), 20u);
  EXPECT_EQ(result.first_error.message(), "queue full");
  EXPECT_EQ(result.sum.outputs, 360u);
  EXPECT_EQ(result.sum.edges, 360 * 50.0);
  EXPECT_EQ(result.sum.density, 360 * 0.25);
  EXPECT_EQ(result.sum.queue_us, 180 * 100.0);
  EXPECT_EQ(result.sum.compute_us, 180 * 300.0);
  EXPECT_TRUE(std::is_sorted(result.latency_ms.begin(), result.latency_ms.end()));
  EXPECT_TRUE(result.calls.empty()) << "nobody asked for them";
}

// Waits until done() is true, and says so; a minute is a hang.
bool WaitUntil(const std::function<bool()>& done) {
  for (int i = 0; i < 60000 && !done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return done();
}

// A clock that goes only when a caller sleeps or a call takes its time.
class TestClock {
 public:
  LoadClock clock() {
    return {[this] { return Now(); },
            [this](LoadClock::Time time) {
              std::lock_guard lock(mutex_);
              now_ = std::max(now_, time);
            }};
  }
  LoadClock::Time Now() {
    std::lock_guard lock(mutex_);
    return now_;
  }
  void Pass(std::chrono::milliseconds time) {
    std::lock_guard lock(mutex_);
    now_ += time;
  }
  // A call that takes so long.
  LoadCall Taking(std::chrono::milliseconds time) {
    return [this, time](uint64_t, const LoadDone& done) {
      Pass(time);
      done(Answer());
    };
  }

 private:
  std::mutex mutex_;
  LoadClock::Time now_;
};

TEST(LoadTest, ClosedLoopHasAsManyCallsAtATimeAsAskedForAndNoMore) {
  std::atomic<int> now = 0, most = 0;
  RunLoad(
      {.concurrency = 3, .requests = 60},
      [&](uint64_t index, const LoadDone& done) {
        const int running = ++now;
        for (int seen = most; running > seen && !most.compare_exchange_weak(seen, running);) {
        }
        EXPECT_TRUE(index >= 3 || WaitUntil([&] { return most >= 3; })) << "three calls at a time";
        --now;
        done(Answer());
      },
      nullptr);
  EXPECT_EQ(most, 3);
}

TEST(LoadTest, DurationEndsIt) {
  TestClock clock;
  const LoadResult result = RunLoad({.concurrency = 1, .duration = absl::Milliseconds(700)},
                                    clock.Taking(std::chrono::milliseconds(5)), nullptr, clock.clock());
  EXPECT_EQ(result.latency_ms.size(), 140u);
  EXPECT_DOUBLE_EQ(result.latency_ms.front(), 5.0);
  EXPECT_DOUBLE_EQ(result.seconds, 0.7);
}

TEST(LoadTest, ProgressIsToldWhileCallsRun) {
  std::atomic<uint64_t> told = 0;
  const LoadResult result = RunLoad(
      {.concurrency = 2, .requests = 4},
      [&](uint64_t index, const LoadDone& done) {
        EXPECT_TRUE(index < 2 || WaitUntil([&] { return told == 2; })) << "word of the first two";
        done(Answer());
      },
      [&](uint64_t ok, uint64_t failed, double seconds) {
        told = ok;
        EXPECT_LE(ok, 4u);
        EXPECT_EQ(failed, 0u);
        EXPECT_GT(seconds, 0.0);
      });
  EXPECT_EQ(result.latency_ms.size(), 4u);
}

TEST(LoadTest, OpenLoopCountsTheWaitForAFreeCaller) {
  // 50 calls due within about 50 ms, one at a time, 10 ms each: the last waits about 450 ms. Measured from its start it
  // would seem to take 10 ms.
  TestClock clock;
  const LoadResult result = RunLoad({.concurrency = 1, .requests = 50, .rate = 1000},
                                    clock.Taking(std::chrono::milliseconds(10)), nullptr, clock.clock());
  ASSERT_EQ(result.latency_ms.size(), 50u);
  EXPECT_NEAR(result.latency_ms.back(), 450.0, 30.0);
  EXPECT_NEAR(static_cast<double>(result.late), 49.0, 1.0);
}

TEST(LoadTest, OpenLoopEndsInTimeAndCountsWhatItCouldNotSend) {
  // About 300 calls due in 300 ms, of which one caller makes 6.
  TestClock clock;
  const LoadResult result = RunLoad({.concurrency = 1, .duration = absl::Milliseconds(300), .rate = 1000},
                                    clock.Taking(std::chrono::milliseconds(50)), nullptr, clock.clock());
  EXPECT_EQ(result.latency_ms.size(), 6u);
  EXPECT_NEAR(result.seconds, 0.3, 0.01);
  EXPECT_NEAR(static_cast<double>(result.latency_ms.size() + result.unsent), 300.0, 60.0);
}

TEST(LoadTest, OpenLoopHasAtMostSoManyCallsAtATimeAndWaitsForTheLast) {
  // Calls end in a thread of their own, the oldest first, once four run or none is left to begin.
  std::mutex mutex;
  std::deque<LoadDone> running;
  size_t most = 0, begun = 0;
  std::jthread server([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // time for one call too many
      LoadDone done;
      {
        std::lock_guard lock(mutex);
        if (running.size() >= 4 || (begun == 50 && !running.empty())) {
          done = std::move(running.front());
          running.pop_front();
        }
      }
      if (done) done(Answer());
    }
  });
  const LoadResult result = RunLoad(
      {.concurrency = 4, .requests = 50, .rate = 1e6},
      [&](uint64_t, LoadDone done) {
        std::lock_guard lock(mutex);
        running.push_back(std::move(done));
        most = std::max(most, running.size());
        ++begun;
      },
      nullptr);
  EXPECT_EQ(result.latency_ms.size(), 50u);
  EXPECT_EQ(most, 4u);
}

TEST(LoadTest, EveryCallIsKeptWithItsTimesAndItsCode) {
  // Calls of 10 ms, one at a time, due every 1 ms or so: each begins when the one before has ended.
  TestClock clock;
  const LoadResult result = RunLoad(
      {.concurrency = 1, .requests = 20, .rate = 1000, .keep_calls = true},
      [&](uint64_t index, const LoadDone& done) {
        clock.Pass(std::chrono::milliseconds(10));
        done(index == 7 ? absl::StatusOr<LoadAnswer>(absl::DeadlineExceededError("late")) : Answer());
      },
      nullptr, clock.clock());
  ASSERT_EQ(result.calls.size(), 20u);
  for (size_t i = 0; i < result.calls.size(); ++i) {
    const CallRecord& call = result.calls[i];
    EXPECT_EQ(call.code, i == 7 ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kOk);
    EXPECT_EQ(call.answer.batch_inputs, i == 7 ? 0u : 3u);
    EXPECT_NEAR(call.end - call.begun, 0.010, 1e-9);
    EXPECT_LE(call.due, call.begun);
    if (i > 0) {
      EXPECT_GT(call.due, result.calls[i - 1].due);
      EXPECT_NEAR(call.begun, std::max(call.due, result.calls[i - 1].end), 1e-9);
    }
  }
}

TEST(LoadTest, OpenLoopArrivesAtTheRateAskedFor) {
  // 400 arrivals at 1000 a second: 400 ms, standard deviation 20 ms.
  TestClock clock;
  const LoadResult result = RunLoad({.concurrency = 1, .requests = 400, .rate = 1000},
                                    clock.Taking(std::chrono::milliseconds(0)), nullptr, clock.clock());
  EXPECT_EQ(result.latency_ms.size(), 400u);
  EXPECT_NEAR(result.seconds, 0.4, 0.08);
  EXPECT_EQ(result.late, 0u);
}

}  // namespace
}  // namespace edgewise::cli
