// The passes that run, each over the inputs of one or more Predict requests. A state machine without a thread or a
// lock: the engine drives it.
#ifndef EDGEWISE_SERVER_SCHEDULE_PASSES_H_
#define EDGEWISE_SERVER_SCHEDULE_PASSES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "server/schedule/finisher.h"
#include "server/schedule/queue.h"

namespace edgewise::server {

class Passes {
 public:
  // `queue` gives the time and tells of a shutdown; `answers` ends the requests; both must outlive this. `max_step`:
  // what a step may take, as predicted, where rows can be put off.
  Passes(RequestQueue& queue, Finisher& answers, Clock::duration max_step);
  ~Passes();

  bool empty() const { return running_.empty(); }

  // The pass of this number (RequestQueue::Started) over requests of one model and level; or one in the background,
  // which has none.
  void Start(std::vector<RequestPtr> requests, uint64_t number = 0);
  // Runs the next layer of a pass, and ends the requests whose inputs all have their result. Where a layer fails,
  // several requests go on in a pass of their own each, so that only the request fails that fails alone. Before it the
  // pass keeps this fraction of what it may give up (Turn::kept).
  void Step(uint64_t number, double kept = 1.0);
  // Ends the requests that are cancelled or expired, all of them at a shutdown. Under consent (Work::may_degrade) a
  // request whose deadline comes before its next samples is answered with those that have run.
  void EndDue();

 private:
  struct Running;

  std::unique_ptr<Running> Make(std::vector<std::shared_ptr<Request>> requests, uint64_t number) const;
  // Tells the scheduler how far it is after these further seconds.
  void Tell(const Running& running, double seconds);
  void Erase(const Running& running);
  void EndAnswered(Running& running);
  void AnswerInTime(Running& running, Time now);
  void Fail(Running& running, const absl::Status& status);

  RequestQueue& queue_;
  Finisher& finisher_;
  const double max_step_seconds_;
  std::vector<std::unique_ptr<Running>> running_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_PASSES_H_
