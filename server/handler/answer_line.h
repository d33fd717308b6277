// The order of what one call sends: the events of a generation, the answers of a stream.
#ifndef EDGEWISE_SERVER_HANDLER_ANSWER_LINE_H_
#define EDGEWISE_SERVER_HANDLER_ANSWER_LINE_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "server/handler/long_work_threads.h"

namespace edgewise::server {

// Short pieces are written by whoever has them, as long as the line is idle. A long piece, and all that comes while it
// waits or is written, goes through the line, one piece at a time. Any thread.
class AnswerLine : public std::enable_shared_from_this<AnswerLine> {
 public:
  using Work = absl::AnyInvocable<void()>;

  // `threads` must outlive the work of the line. `on_idle` is called each time the line becomes idle; it must not
  // block.
  AnswerLine(LongWorkThreads& threads, std::string principal, std::function<void()> on_idle)
      : threads_(threads), principal_(std::move(principal)), on_idle_(std::move(on_idle)) {}

  // Nothing waits or is written. True stays true until something is added, so a line of generations is added to by the
  // engine alone while they run.
  bool idle() const { return idle_.load(); }
  // Writes a piece on a thread for long work, behind those that were added before. Its owner must keep a shared_ptr.
  void Add(Work work);

 private:
  void StartNext();

  LongWorkThreads& threads_;
  const std::string principal_;
  const std::function<void()> on_idle_;
  std::atomic<bool> idle_ = true;
  absl::Mutex mutex_;
  std::deque<Work> waiting_ ABSL_GUARDED_BY(mutex_);  // the first is written now
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HANDLER_ANSWER_LINE_H_
