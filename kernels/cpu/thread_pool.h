// A fixed set of threads that share the items of one loop at a time.
#ifndef EDGEWISE_KERNELS_CPU_THREAD_POOL_H_
#define EDGEWISE_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace edgewise {

// Idle threads look for work for some microseconds before they sleep: the loops of a layer follow each other closely,
// and waking a thread takes longer than many of them.
//
// An atomic counter hands out items, so any thread may run any item. A loop body writes only data of its item, and so
// results do not depend on the number of threads.
class ThreadPool {
 public:
  // body(item, worker): worker in [0, num_threads()) names the calling thread, for scratch memory.
  using Body = std::function<void(int64_t item, int worker)>;

  explicit ThreadPool(int num_threads);  // >= 1, the caller's thread included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Runs body for items 0..count-1 and returns when all are done. One caller at a time; not from inside a body. If a
  // body throws, the remaining items are left out and the first exception is thrown again here.
  void For(int64_t count, const Body& body);

 private:
  void Work(int worker);
  void RunItems(int worker);

  std::vector<std::thread> threads_;
  // Written by For() before a loop starts, read by the threads that run it.
  const Body* body_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<uint64_t> generation_{0};  // of the loop; written under mutex_
  std::atomic<int> busy_{0};             // threads that have not finished it

  absl::Mutex mutex_;
  absl::CondVar start_, finished_;
  std::exception_ptr failure_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_THREAD_POOL_H_
