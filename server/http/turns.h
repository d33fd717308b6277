// The order in which the threads of a port begin short requests: principals take turns.
#ifndef EDGEWISE_SERVER_HTTP_TURNS_H_
#define EDGEWISE_SERVER_HTTP_TURNS_H_

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace edgewise::server {

// Without it a thread begins each request as soon as it has read it, so that a client with many connections has many
// turns. Any thread.
class Turns {
 public:
  using Work = absl::AnyInvocable<void()>;

  // `post` runs a function later, on a thread of the port, behind what is to be read by then. `threads`: of the port.
  Turns(std::function<void(std::function<void()>)> post, int threads) : post_(std::move(post)), most_(threads) {}

  // Runs the work on a thread of the port: a piece of work of each principal in turn, those of one in order.
  void Start(const std::string& principal, Work work);

 private:
  using Lines = std::map<std::string, std::list<Work>>;  // by principal; none is empty

  void Run();
  // Takes the work whose turn it is. Null: there is none, and the caller's thread has stopped.
  Work Next();

  const std::function<void(std::function<void()>)> post_;
  const int most_;
  absl::Mutex mutex_;
  Lines lines_ ABSL_GUARDED_BY(mutex_);
  std::deque<Lines::iterator> turns_ ABSL_GUARDED_BY(mutex_);  // all of lines_, the next one first
  int running_ ABSL_GUARDED_BY(mutex_) = 0;                    // threads
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_TURNS_H_
