// A fixed set of threads that share the items of one loop at a time.
#ifndef EDGEWISE_KERNELS_CPU_RUNTIME_THREAD_POOL_H_
#define EDGEWISE_KERNELS_CPU_RUNTIME_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace edgewise {

// An atomic counter hands out items, so any thread may run any item. A loop body writes only data of its item, and so
// results do not depend on the number of threads.
class ThreadPool {
 public:
  // body(item, worker): worker in [0, num_threads()) names the calling thread, for scratch memory.
  using Body = absl::FunctionRef<void(int64_t item, int worker)>;

  // Loops of less work, in nanoseconds of one thread, run on the caller: about as long as a thread takes to wake.
  static constexpr int64_t kSharedWork = 50'000;

  explicit ThreadPool(int num_threads);  // >= 1, the caller's thread included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Runs body for items 0..count-1 and returns when all are done. `work`: an estimate of the whole loop. One caller at
  // a time; not from inside a body. If a body throws, the remaining items are left out and the first exception is
  // thrown again here.
  void For(int64_t count, int64_t work, Body body);
  void For(int64_t count, Body body) { For(count, kSharedWork, body); }

  // Another loop is not near. After a loop the other threads look for the next one, since those of a layer follow each
  // other closely; now they sleep.
  void Rest() { resting_.store(true); }

  // How often a thread slept until a loop began.
  int64_t wakes() const { return wakes_.load(); }

 private:
  void Work(int worker);
  void RunItems(int worker);

  std::vector<std::thread> threads_;
  // Written by For() before a loop opens, read by the threads that joined it.
  const Body* body_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<uint64_t> loop_{0};  // 2 for each loop, and 1 while threads may join it; written under mutex_
  std::atomic<int> joined_{0};     // threads that are in the loop, or look whether they may join
  std::atomic<bool> resting_{true};
  std::atomic<int64_t> wakes_{0};

  absl::Mutex mutex_;
  absl::CondVar start_, left_;
  std::exception_ptr failure_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_RUNTIME_THREAD_POOL_H_
