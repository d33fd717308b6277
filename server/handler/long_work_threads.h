// Threads for work that grows with one message or one answer: to parse and check a long message and make tokens and
// pixels of it, or to write a long answer. That may take seconds, and the threads that read and end calls serve all of
// them.
#ifndef EDGEWISE_SERVER_HANDLER_LONG_WORK_THREADS_H_
#define EDGEWISE_SERVER_HANDLER_LONG_WORK_THREADS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace edgewise::server {

// A message of more bytes is prepared on these threads, whatever is in it, and an answer of more bytes written there.
inline constexpr size_t kShortMessage = 16 << 10, kShortAnswer = 16 << 10;

class LongWorkThreads {
 public:
  // Does one piece of work, on one of these threads, after OK; or refuses it, on the thread of Start.
  using Work = absl::AnyInvocable<void(const absl::Status&)>;

  // How many pieces of one principal are done at the same time: one for four cores, up to four.
  static int UsualOfOne();
  static constexpr int kThreads = 8;  // each begins when it is needed first

  // `name`: of the threads, at most 15 characters. At most `most` pieces wait.
  LongWorkThreads(const char* name, size_t most, int of_one = UsualOfOne(), int threads = kThreads)
      : name_(name), most_(most), of_one_(of_one), most_threads_(static_cast<size_t>(threads)) {}
  ~LongWorkThreads() { Stop(); }
  LongWorkThreads(const LongWorkThreads&) = delete;
  LongWorkThreads& operator=(const LongWorkThreads&) = delete;

  // Principals take turns, a piece each, those of one in order of arrival. The system shares the cores among the
  // threads, so nobody waits for the work of another principal while a thread is free. If too many wait,
  // RESOURCE_EXHAUSTED with RetryInfo goes to `work`, or to the newest of the principal that has most if that one keeps
  // as many as this one gets. Any thread.
  void Start(const std::string& principal, Work work);
  // Those that wait or are done now. Any thread.
  int64_t count() const;
  // Returns once all of them are done, with what they add. Nothing else comes after that.
  void Stop();

 private:
  struct Line {
    std::deque<Work> waiting;  // the oldest first
    int running = 0;
  };
  using Turns = std::deque<std::string>;

  void Run();
  bool Due() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return Next() != turns_.end() || (stopping_ && turns_.empty());
  }
  // The first whose turn it is, and that has not as many running as it may.
  Turns::const_iterator Next() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Add(const std::string& principal, Work work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The one that is refused now that `work` has come to a full line; it may be `work` itself.
  Work Displace(const std::string& principal, Work work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const char* const name_;
  const size_t most_;
  const int of_one_;
  const size_t most_threads_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Line> lines_ ABSL_GUARDED_BY(mutex_);  // by the principal's name; none is idle
  Turns turns_ ABSL_GUARDED_BY(mutex_);                        // the names of those that wait, the next one first
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0, running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HANDLER_LONG_WORK_THREADS_H_
