#include "server/handler/answer_line.h"

#include "absl/status/status.h"

namespace edgewise::server {

void AnswerLine::Add(Work work) {
  {
    const absl::MutexLock lock(&mutex_);
    waiting_.push_back(std::move(work));
    if (waiting_.size() > 1) return;
    idle_ = false;
  }
  StartNext();
}

// The principal's other work takes its turn between two pieces.
void AnswerLine::StartNext() {
  threads_.Start(principal_, [self = shared_from_this()](const absl::Status&) {
    Work work;
    {
      const absl::MutexLock lock(&self->mutex_);
      work = std::move(self->waiting_.front());
    }
    work();
    work = nullptr;
    bool more = false;
    {
      const absl::MutexLock lock(&self->mutex_);
      self->waiting_.pop_front();
      more = !self->waiting_.empty();
      self->idle_ = !more;
    }
    more ? self->StartNext() : self->on_idle_();
  });
}

}  // namespace edgewise::server
