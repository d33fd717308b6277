// The threads that read calls and write answers, of every front.
#ifndef EDGEWISE_SERVER_WIRE_CALL_THREAD_H_
#define EDGEWISE_SERVER_WIRE_CALL_THREAD_H_

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "base/cores.h"

namespace edgewise::server {

// One for four cores, up to four.
inline int CallThreadCount() { return std::clamp(UsableCores() / 4, 1, 4); }

// Names this thread and lets it give way. Messages that come while the engine computes on this thread's core wait for
// the end of its slice, and are then read together. Otherwise each interrupts the engine, and both refill the core's
// caches. An idle core reads at once.
inline void BecomeCallThread(const char* name) {
  // Added to the niceness. On a core that it shares with the engine, a flood of calls leaves it two thirds. (With 5,
  // which leaves it three quarters, calls that came in a flood are not caught up with after it.)
  constexpr int kNicer = 3;
  pthread_setname_np(pthread_self(), name);
  const sched_param batch{};
  pthread_setschedparam(pthread_self(), SCHED_BATCH, &batch);
  const auto thread = static_cast<id_t>(gettid());
  setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + kNicer);
}

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_CALL_THREAD_H_
