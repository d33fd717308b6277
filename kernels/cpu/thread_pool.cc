#include "kernels/cpu/thread_pool.h"

#include <utility>

namespace edgewise {

ThreadPool::ThreadPool(int num_threads) {
  for (int worker = 1; worker < num_threads; ++worker) {
    threads_.emplace_back([this, worker] { Work(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::For(int64_t count, const Body& body) {
  if (threads_.empty() || count <= 1) {
    for (int64_t item = 0; item < count; ++item) body(item, 0);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    body_ = &body;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    busy_ = static_cast<int>(threads_.size());
    ++generation_;
  }
  start_.notify_all();
  RunItems(0);
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [this] { return busy_ == 0; });
  body_ = nullptr;
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::Work(int worker) {
  uint64_t seen = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
    }
    RunItems(worker);
    std::lock_guard lock(mutex_);
    if (--busy_ == 0) finished_.notify_one();
  }
}

void ThreadPool::RunItems(int worker) {
  try {
    for (int64_t item = next_.fetch_add(1); item < count_; item = next_.fetch_add(1)) (*body_)(item, worker);
  } catch (...) {
    next_.store(count_);
    std::lock_guard lock(mutex_);
    if (failure_ == nullptr) failure_ = std::current_exception();
  }
}

}  // namespace edgewise
