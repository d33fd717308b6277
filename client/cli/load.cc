#include "client/cli/load.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace edgewise::cli {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// Hands out calls and takes their results. Thread-safe.
class Load {
 public:
  Load(const LoadOptions& options, const LoadClock& clock)
      : options_(options),
        clock_(clock),
        start_(clock.now()),
        random_(options.arrival_seed),
        gap_(std::max(options.rate, 1e-9)) {}

  struct Ticket {
    uint64_t index;
    std::optional<Clock::time_point> due;  // open loop
  };

  // The next call, as soon as fewer than `concurrency` run; none when a limit is reached.
  std::optional<Ticket> Next() {
    const auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return running_ < options_.concurrency; };
    const absl::MutexLock lock(&mutex_, absl::Condition(&free));
    const double limit = absl::ToDoubleSeconds(options_.duration);
    const double now = Seconds(clock_.now() - start_);
    if (options_.rate <= 0) {
      if (now >= limit || Exhausted()) return std::nullopt;
      ++running_;
      return Ticket{issued_++, std::nullopt};
    }
    while (!Exhausted() && arrival_ < limit) {
      arrival_ += gap_(random_);
      if (arrival_ >= limit) break;
      const uint64_t index = issued_++;
      if (now < limit) {
        ++running_;
        const auto after = std::chrono::duration<double>(arrival_);
        return Ticket{index, start_ + std::chrono::duration_cast<Clock::duration>(after)};
      }
      ++result_.unsent;
    }
    return std::nullopt;
  }

  void Add(Clock::time_point due, Clock::time_point begun, const absl::StatusOr<LoadAnswer>& answer) {
    const Clock::time_point end = clock_.now();
    const absl::MutexLock lock(&mutex_);
    --running_;
    result_.seconds = std::max(result_.seconds, Seconds(end - start_));
    result_.late += options_.rate > 0 && begun - due > std::chrono::milliseconds(1);
    if (options_.keep_calls) {
      result_.calls.push_back({Seconds(due - start_), Seconds(begun - start_), Seconds(end - start_),
                               answer.status().code(), answer.value_or(LoadAnswer())});
    }
    if (!answer.ok()) {
      ++failed_;
      ++result_.errors[answer.status().code()];
      result_.first_error.Update(answer.status());
      return;
    }
    result_.latency_ms.push_back(1000.0 * Seconds(end - due));
    result_.sum.outputs += answer->outputs;
    result_.sum.density += answer->density;
    result_.sum.edges += answer->edges;
    result_.sum.queue_us += answer->queue_us;
    result_.sum.compute_us += answer->compute_us;
    result_.sum.batch_inputs += answer->batch_inputs;
  }

  void WorkerEnded() {
    const absl::MutexLock lock(&mutex_);
    ++ended_;
  }

  // Until `workers` and all calls have ended.
  void Await(uint32_t workers, const LoadProgress& progress) {
    const auto all_ended = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_ == workers && running_ == 0; };
    while (true) {
      uint64_t ok = 0, failed = 0;
      {
        const absl::MutexLock lock(&mutex_);
        if (mutex_.AwaitWithTimeout(absl::Condition(&all_ended), absl::Milliseconds(500))) return;
        ok = result_.latency_ms.size();
        failed = failed_;
      }
      if (progress) progress(ok, failed, Seconds(clock_.now() - start_));
    }
  }

  LoadResult Take() {
    const absl::MutexLock lock(&mutex_);
    std::sort(result_.latency_ms.begin(), result_.latency_ms.end());
    return std::move(result_);
  }

 private:
  bool Exhausted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return options_.requests > 0 && issued_ == options_.requests;
  }

  const LoadOptions options_;
  const LoadClock& clock_;
  const Clock::time_point start_;
  absl::Mutex mutex_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::exponential_distribution<double> gap_ ABSL_GUARDED_BY(mutex_);
  double arrival_ ABSL_GUARDED_BY(mutex_) = 0;  // seconds after start_
  uint64_t issued_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t failed_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  LoadResult result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

LoadResult RunLoad(const LoadOptions& options, const LoadCall& call, const LoadProgress& progress,
                   const LoadClock& clock) {
  const auto load = std::make_shared<Load>(options, clock);  // the last call may still hold it when it has ended
  const uint32_t workers = options.rate > 0 ? 1 : options.concurrency;
  {
    std::vector<std::jthread> threads;
    for (uint32_t w = 0; w < workers; ++w) {
      threads.emplace_back([&] {
        while (std::optional<Load::Ticket> ticket = load->Next()) {
          if (ticket->due) clock.sleep_until(*ticket->due);
          const Clock::time_point begun = clock.now();
          const Clock::time_point due = ticket->due.value_or(begun);
          call(ticket->index,
               [load, due, begun](const absl::StatusOr<LoadAnswer>& answer) { load->Add(due, begun, answer); });
        }
        load->WorkerEnded();
      });
    }
    load->Await(workers, progress);
  }
  return load->Take();
}

double Percentile(std::span<const double> ascending, double share) {
  if (ascending.empty()) return 0.0;
  // The small term keeps 0.9 * 10, which is a little above 9 in binary, at rank 9.
  const double rank = std::ceil(share * static_cast<double>(ascending.size()) - 1e-9);
  const auto index = static_cast<size_t>(std::clamp(rank, 1.0, static_cast<double>(ascending.size())));
  return ascending[index - 1];
}

double Mean(std::span<const double> values) {
  if (values.empty()) return 0.0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace edgewise::cli
