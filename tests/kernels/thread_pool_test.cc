#include "kernels/cpu/runtime/thread_pool.h"

#include <gtest/gtest.h>

namespace edgewise {
namespace {

TEST(ThreadPoolTest, RunsEveryItemOnceAndWaits) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (int64_t count : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> runs(count);
      pool.For(count, [&](int64_t item, int worker) {
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, threads);
        ++runs[item];
      });
      for (const auto& run : runs) EXPECT_EQ(run.load(), 1);
    }
  }
}

TEST(ThreadPoolTest, ManyShortLoopsLoseNothing) {
  ThreadPool pool(4);
  std::atomic<int64_t> sum{0};
  for (int loop = 0; loop < 2000; ++loop) pool.For(7, [&](int64_t item, int) { sum += item; });
  EXPECT_EQ(sum.load(), 2000 * 21);
}

// Only relaxed atomic operations in the body: ThreadSanitizer sees whether the pool orders what its threads do.
TEST(ThreadPoolTest, EachLoopSeesWhatTheCallerAndTheLoopBeforeWrote) {
  ThreadPool pool(3);
  std::vector<int64_t> values(3, 0);
  int64_t added = 0;
  for (int loop = 0; loop < 20; ++loop) {
    added = loop;
    std::atomic<int> arrived{0};
    pool.For(3, [&](int64_t item, int) {
      arrived.fetch_add(1, std::memory_order_relaxed);
      while (arrived.load(std::memory_order_relaxed) < 3) std::this_thread::yield();  // every thread takes an item
      values[item] += added;
    });
    for (const int64_t value : values) ASSERT_EQ(value, loop * (loop + 1) / 2);
  }
}

TEST(ThreadPoolTest, AnExceptionReachesTheCallerAndThePoolLivesOn) {
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    EXPECT_THROW(pool.For(100,
                          [](int64_t item, int) {
                            if (item == 37) throw std::bad_alloc();
                          }),
                 std::bad_alloc);
    std::atomic<int> runs{0};
    pool.For(50, [&](int64_t, int) { ++runs; });
    EXPECT_EQ(runs.load(), 50);
  }
}

TEST(ThreadPoolTest, SmallLoopsWakeNobody) {
  ThreadPool pool(4);
  for (int loop = 0; loop < 1000; ++loop) {
    pool.For(50, ThreadPool::kSharedWork - 1, [](int64_t, int worker) { EXPECT_EQ(worker, 0); });
  }
  EXPECT_EQ(pool.wakes(), 0);
}

TEST(ThreadPoolTest, LargeLoopsWakeThreadsThatRest) {
  ThreadPool pool(3);
  for (int loop = 1; loop <= 5; ++loop) {
    pool.Rest();
    // Every thread takes an item, and waits until all have one.
    std::atomic<int> arrived{0};
    pool.For(3, ThreadPool::kSharedWork, [&](int64_t, int) {
      ++arrived;
      while (arrived < 3) std::this_thread::yield();
    });
    EXPECT_EQ(arrived, 3);
  }
  EXPECT_GE(pool.wakes(), 2);
}

}  // namespace
}  // namespace edgewise
