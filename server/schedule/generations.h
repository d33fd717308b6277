// The generations that run side by side. A state machine without a thread or a lock: the engine drives it, also between
// the layers of its batches.
#ifndef EDGEWISE_SERVER_SCHEDULE_GENERATIONS_H_
#define EDGEWISE_SERVER_SCHEDULE_GENERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "model/forward/generation.h"
#include "server/options.h"
#include "server/schedule/queue.h"

namespace edgewise::server {

// A generation whose client has taken nothing for park_after is parked: another may have its place, and its memory too
// where it can be computed again (Generation::CanDropCache). It goes on, before those that wait, once its client reads
// and there is room. As many may be parked as may run.
class Generations {
 public:
  // `queue` gives the time and tells of a shutdown; it must outlive this.
  Generations(RequestQueue& queue, const ServerOptions& options);

  bool empty() const { return running_.empty(); }
  // By level, whether Step would take one.
  PerLevel<bool> CanStep() const;
  // Beside those that are not parked, and those that are but could go on.
  GenerationRoom room() const;

  // Starts a request that fits into room(); ends it at once if the model refuses it.
  void Start(RequestPtr request);
  // Ends the generations that are cancelled or expired, all of them at a shutdown, and those whose client has taken
  // nothing for unread_timeout. Parks others, and lets parked ones go on.
  void Update();
  // Runs one step of this level: a layer of a part of a prompt, or a token of all generations that can decode with the
  // next in turn. Their clients keep up. Parts of prompts run one after the other, so that the rows of one at a time
  // are in memory; a part is as long as a layer of it may take, by what the layers before took.
  void Step(uint32_t level);

 private:
  struct Running {
    RequestPtr request;
    std::unique_ptr<Generation> generation;
    Time ready;                // the last time its client kept up
    double own_seconds = 0.0;  // of steps, its share where it was not alone
    bool parked = false;
    bool cached = true;  // it has its memory

    bool client_ready() const { return request->generation->ready(); }
    uint64_t cache_bytes() const { return request->generation->cache_bytes; }
  };

  bool CanStep(const Running& running) const;
  // Takes the next in turn from running_, and those that decode with it.
  std::vector<Running> TakeNext(uint32_t level);
  void StepPrompt(Running& running);
  void Decode(std::vector<Running>& together);
  // After a step: false where that was the last, and the request has ended. `running` is not an entry of running_, as
  // in End.
  bool GoesOn(Running& running, const absl::Status& step);
  void End(Running& running, const absl::Status& status, bool wasted = false);

  size_t Active() const;  // not parked
  // Takes the memory of parked generations until there is so much left; false: there is not.
  bool MakeRoom(uint64_t cache_bytes);

  RequestQueue& queue_;
  const size_t max_generations_;
  const uint64_t max_cache_bytes_;
  const double max_step_seconds_;
  const Clock::duration park_after_, unread_timeout_;
  std::deque<Running> running_;  // the next in turn first
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_GENERATIONS_H_
