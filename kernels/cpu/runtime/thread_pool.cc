#include "kernels/cpu/runtime/thread_pool.h"

#include <chrono>
#include <utility>

namespace edgewise {
namespace {

constexpr std::chrono::microseconds kLook{100};  // longer than what a layer has between two loops that are shared

// Whether `done` came true before kLook was over and before `give_up` did.
template <typename Done, typename GiveUp>
bool Look(const Done& done, const GiveUp& give_up) {
  const auto end = std::chrono::steady_clock::now() + kLook;
  do {
    if (done()) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  } while (!give_up() && std::chrono::steady_clock::now() < end);
  return done();
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  for (int worker = 1; worker < num_threads; ++worker) {
    threads_.emplace_back([this, worker] { Work(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  start_.SignalAll();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::For(int64_t count, int64_t work, Body body) {
  if (threads_.empty() || count <= 1 || work < kSharedWork) {
    for (int64_t item = 0; item < count; ++item) body(item, 0);
    return;
  }
  body_ = &body;
  count_ = count;
  next_.store(0);
  resting_.store(false);
  {
    const absl::MutexLock lock(&mutex_);
    loop_.fetch_add(3);
  }
  start_.SignalAll();
  RunItems(0);
  // Threads that are still asleep are not waited for: nothing is left for them.
  loop_.fetch_sub(1);
  const auto alone = [this] { return joined_.load() == 0; };
  if (!Look(alone, [] { return false; })) {
    const absl::MutexLock lock(&mutex_);
    while (!alone()) left_.Wait(&mutex_);
  }
  const absl::MutexLock lock(&mutex_);
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::Work(int worker) {
  uint64_t seen = 0;  // the last loop that it knows
  while (true) {
    const auto called = [&] { return loop_.load() / 2 != seen; };
    if (!Look(called, [this] { return resting_.load(); })) {
      const absl::MutexLock lock(&mutex_);
      while (!stop_ && !called()) start_.Wait(&mutex_);
      if (stop_) return;
      wakes_.fetch_add(1);
    }
    joined_.fetch_add(1);  // from here on For() waits
    const uint64_t loop = loop_.load();
    seen = loop / 2;
    if (loop % 2 == 1) RunItems(worker);
    if (joined_.fetch_sub(1) == 1) {
      const absl::MutexLock lock(&mutex_);  // the caller either sees the zero or is already waiting
      left_.Signal();
    }
  }
}

void ThreadPool::RunItems(int worker) {
  try {
    for (int64_t item = next_.fetch_add(1); item < count_; item = next_.fetch_add(1)) (*body_)(item, worker);
  } catch (...) {
    next_.store(count_);
    const absl::MutexLock lock(&mutex_);
    if (failure_ == nullptr) failure_ = std::current_exception();
  }
}

}  // namespace edgewise
