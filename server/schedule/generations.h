// The generations that run side by side, one step each in turn. A state machine without a thread or a lock: the engine
// drives it, also between the layers of its batches.
#ifndef EDGEWISE_SERVER_SCHEDULE_GENERATIONS_H_
#define EDGEWISE_SERVER_SCHEDULE_GENERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "model/forward/generation.h"
#include "server/schedule/queue.h"

namespace edgewise::server {

class Generations {
 public:
  // `queue` gives the time and tells of a shutdown; it must outlive this.
  Generations(RequestQueue& queue, size_t max_generations, uint64_t max_cache_bytes, Clock::duration unread_timeout)
      : queue_(queue),
        max_generations_(max_generations),
        max_cache_bytes_(max_cache_bytes),
        unread_timeout_(unread_timeout) {}

  bool empty() const { return running_.empty(); }
  // Whether no running generation can go on, because no client has taken the tokens sent.
  bool stalled() const;
  // By level, whether Step would take one.
  PerLevel<bool> CanStep() const;
  GenerationRoom room() const;

  // Starts a request that fits into room(); ends it at once if the model refuses it.
  void Start(RequestPtr request);
  // Ends the generations that are cancelled or expired, all of them at a shutdown, and those whose client has taken
  // nothing for unread_timeout, because they keep others from running.
  void EndExpired();
  // Runs one step (a layer of a prompt, or a token) of the next generation of this level in turn whose client keeps up,
  // and ends the generation after its last step. Prompts run one after the other, so that the rows of one at a time are
  // in memory.
  void Step(uint32_t level);

 private:
  struct Running {
    RequestPtr request;
    std::unique_ptr<Generation> generation;
    Time ready;  // the last time its client kept up
  };

  bool CanStep(const Running& running) const;
  // Runs a step; false: that was the last, and the request has ended. `running` is not an entry of running_, as in End.
  bool Advance(Running& running);
  void End(Running& running, const absl::Status& status, bool wasted = false);

  RequestQueue& queue_;
  const size_t max_generations_;
  const uint64_t max_cache_bytes_;
  const Clock::duration unread_timeout_;
  uint64_t cache_bytes_ = 0;
  std::deque<Running> running_;  // the next in turn first
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_GENERATIONS_H_
