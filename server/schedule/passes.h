// The passes that run, each over the inputs of one or more Predict requests. A state machine without a thread or a
// lock: the engine drives it.
#ifndef EDGEWISE_SERVER_SCHEDULE_PASSES_H_
#define EDGEWISE_SERVER_SCHEDULE_PASSES_H_

#include <memory>
#include <vector>

#include "server/schedule/answers.h"
#include "server/schedule/queue.h"

namespace edgewise::server {

class Passes {
 public:
  // `queue` gives the time and tells of a shutdown; `answers` ends the requests; both must outlive this. `max_step`:
  // what a step may take, as predicted, where rows can be put off.
  Passes(RequestQueue& queue, Answers& answers, Clock::duration max_step);
  ~Passes();

  bool empty() const { return running_.empty(); }
  std::vector<RunningPass> View() const;  // the latest last

  // A pass over requests of one model and level, or one in the background.
  void Start(std::vector<RequestPtr> requests);
  // Runs the next layer of a pass, and ends the requests whose inputs all have their result. Where a layer fails,
  // several requests go on in a pass of their own each, so that only the request fails that fails alone. Before it the
  // pass keeps this share of what it may give up (Turn::share).
  void Step(size_t pass, double share = 1.0);
  void StepLatest() { Step(running_.size() - 1); }
  // Ends the requests that are cancelled or expired, all of them at a shutdown. Under consent (Request::consent) a
  // request whose deadline comes before its next samples is answered with those that have run.
  void EndDue();

 private:
  struct Running;

  std::unique_ptr<Running> Make(std::vector<std::shared_ptr<Request>> requests) const;
  void EndAnswered(Running& running);
  void AnswerInTime(Running& running, Time now);
  void Fail(size_t pass, const absl::Status& status);

  RequestQueue& queue_;
  Answers& answers_;
  const double max_step_seconds_;
  std::vector<std::unique_ptr<Running>> running_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_PASSES_H_
