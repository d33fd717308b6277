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
#include "server/base/options.h"
#include "server/schedule/queue.h"

namespace edgewise::server {

// A generation whose client has taken nothing for park_after is parked: another may have its place, and its memory too
// where it can be computed again (Generation::CanDropCache). It goes on, before those that wait, once its client reads
// and there is room. The most that may be parked is the most that may run.
//
// Each takes memory for keys and values as its text grows. The order is by level, then by start. Where one needs memory
// and none is left, those after it are parked, the last of them first, and are computed again later; where it is the
// last itself, it waits. So the first one always goes on. None starts, or goes on after it was parked, unless all that
// run could take another page (CacheBytes::ahead).
class Generations {
 public:
  // `queue` gives the time and tells of a shutdown; it must outlive this.
  Generations(RequestQueue& queue, const ServerOptions& options);

  bool empty() const { return running_.empty(); }
  // By level, whether Step would take one.
  PerLevel<bool> CanStep() const;
  // Beside those that are not parked, and those that are but could go on.
  GenerationRoom room() const;
  uint64_t cache_bytes() const;  // that keys and values hold

  // Starts a request that fits into room(); ends it at once if the model refuses it.
  void Start(RequestPtr request);
  // Ends the generations that are cancelled or expired, all of them at a shutdown, and those whose client has taken
  // nothing for unread_timeout. Parks others, gives memory to those that need it, and lets parked ones go on. Returns
  // the three above.
  UnderWay Update();
  // Runs one step of this level: a layer of a part of the next prompt in turn, and of others that fit whole beside it;
  // or a token of all generations that can decode with the next in turn. Short prompts (kShortPromptRows) run with the
  // tokens; where there are neither tokens nor long prompts, as prompts, since more of them fit in such a step. Clients
  // of all of them keep up. Prompts and tokens get equal times, since a token costs about as much for one text as for
  // many: texts that start together soon decode together. A part, and what runs beside it, has as many rows as a layer
  // may take, by what the layers before took; the next part waits until its rows have left the memory. Tokens of a
  // model whose layers together take longer than a step may go through them in several steps.
  void Step(uint32_t level);

 private:
  struct Running {
    RequestPtr request;
    std::unique_ptr<Generation> generation;
    uint64_t number = 0;         // of its start
    Time ready;                  // the last time its client kept up
    double own_seconds = 0.0;    // of steps, its share where it was not alone
    double token_seconds = 0.0;  // of the steps of the token that is half-way, with others
    bool parked = false;
    bool waits = false;  // for memory that is not to be had

    bool client_ready() const { return request->ready(); }
    CacheBytes cache_bytes() const { return generation->cache_bytes(); }
    bool Before(const Running& other) const {
      return request->ticket.priority != other.request->ticket.priority
                 ? request->ticket.priority < other.request->ticket.priority
                 : number < other.number;
    }
  };

  bool CanStep(const Running& running) const;
  // Whether any generation of this level that satisfies `is` can take a step.
  template <typename Is>
  bool CanStep(uint32_t level, const Is& is) const;
  // Take from running_ the next in turn of those that can step, and those that run with it. `short_ones`: short prompts
  // are prompts too.
  std::vector<Running> TakePrompts(uint32_t level, bool short_ones);
  std::vector<Running> TakeDecoding(uint32_t level);
  // Takes those that can step and that `takes` is true of, in order.
  template <typename Takes>
  std::vector<Running> Take(const Takes& takes);
  // Those of this level whose rows went through layers together.
  std::vector<Running> TakeHalfWay(uint32_t level, bool (Generation::*holds)() const);
  // The most that a step takes, judged by recent layers: rows of prompts, layers of tokens.
  int64_t PromptRows(const CostModel& costs) const;
  int64_t TokenLayers(const LoadedModel& model) const;
  // Return the seconds of the step.
  double StepPrompts(std::vector<Running>& together);
  double Decode(std::vector<Running>& together);
  // After a step: false where that was the last, and the request has ended. `running` is not an entry of running_, as
  // in End.
  bool GoesOn(Running& running, const absl::Status& step);
  void End(Running& running, const absl::Status& status, bool wasted = false);

  size_t Active() const;  // not parked
  // The bytes that a generation holds soon, at least, while it does not give way to another.
  uint64_t Reserved(const Running& running) const;
  // Takes the memory of parked generations, and of those after `first` if it is not null and parks them, until `bytes`
  // are free. False: it cannot free as many, and has taken nothing.
  bool MakeRoom(uint64_t bytes, const Running* first);
  template <typename Is>
  std::vector<Running*> InOrder(const Is& is);  // those that `is` is true of, the first ones first
  // To those that run and need it, the first ones first.
  void GiveMemory();
  // Those that are parked, the first ones first: none takes memory before another that goes before it.
  void GoOn();
  void TakeMemory(Running& running);  // there is room for it

  RequestQueue& queue_;
  const size_t max_generations_;
  const uint64_t max_cache_bytes_;
  const double max_step_seconds_;
  const Clock::duration park_after_, unread_timeout_;
  uint64_t started_ = 0;
  PerLevel<double> prompt_lead_ = {};  // seconds that prompts had beyond those of tokens, while there were both
  std::deque<Running> running_;        // the next in turn first
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_GENERATIONS_H_
