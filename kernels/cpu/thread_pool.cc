#include "kernels/cpu/thread_pool.h"

#include <chrono>
#include <utility>

namespace edgewise {
namespace {

constexpr std::chrono::microseconds kLook{40};  // about as long as waking a thread takes

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Whether `done` came true within kLook.
template <typename Done>
bool Look(const Done& done) {
  const auto end = std::chrono::steady_clock::now() + kLook;
  do {
    if (done()) return true;
    Pause();
  } while (std::chrono::steady_clock::now() < end);
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

void ThreadPool::For(int64_t count, const Body& body) {
  if (threads_.empty() || count <= 1) {
    for (int64_t item = 0; item < count; ++item) body(item, 0);
    return;
  }
  body_ = &body;
  count_ = count;
  next_.store(0);
  busy_.store(static_cast<int>(threads_.size()));
  {
    const absl::MutexLock lock(&mutex_);
    generation_.fetch_add(1);
  }
  start_.SignalAll();
  RunItems(0);
  const auto finished = [this] { return busy_.load() == 0; };
  if (!Look(finished)) {
    const absl::MutexLock lock(&mutex_);
    while (!finished()) finished_.Wait(&mutex_);
  }
  body_ = nullptr;
  std::exception_ptr failure;
  {
    const absl::MutexLock lock(&mutex_);
    failure = std::exchange(failure_, nullptr);
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

void ThreadPool::Work(int worker) {
  uint64_t seen = 0;
  while (true) {
    const auto called = [&] { return generation_.load() != seen; };
    if (!Look(called)) {
      const absl::MutexLock lock(&mutex_);
      while (!stop_ && !called()) start_.Wait(&mutex_);
      if (!called()) return;
    }
    seen = generation_.load();
    RunItems(worker);
    if (busy_.fetch_sub(1) == 1) {
      const absl::MutexLock lock(&mutex_);  // the caller either sees the zero or is already waiting
      finished_.Signal();
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
