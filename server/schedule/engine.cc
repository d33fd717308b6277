#include "server/schedule/engine.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/cores.h"

namespace edgewise::server {

void Engine::Start(bool lends) {
  if (lends) queue_.Lend([this] { RunLent(); });
  if (UsableCores() > 1) finisher_.Start();  // on one core it would only change threads
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "engine");
    while (RunOnce(true)) {
    }
  });
}

void Engine::Join() {
  if (thread_.joinable()) thread_.join();
  finisher_.Stop();
}

std::optional<Turn> Engine::RunOnce(bool wait) {
  passes_.EndDue();
  background_.EndDue();
  UnderWay under_way = generations_.Update();
  under_way.background = !background_.empty();
  const PerLevel<bool>& can_step = under_way.generations;
  const bool goes_on = std::find(can_step.begin(), can_step.end(), true) != can_step.end();
  const Wait patience = !wait || goes_on || !passes_.empty() || under_way.background ? Wait::kNot
                        : generations_.empty()                                       ? Wait::kForWork
                                                                                     : Wait::kAWhile;
  Assignment work = queue_.Next(patience, under_way);
  if (work.end() && passes_.empty() && generations_.empty() && background_.empty()) return std::nullopt;
  if (work.job) work.job();
  if (work.generation) generations_.Start(std::move(work.generation));
  if (work.background) {
    std::vector<RequestPtr> alone;
    alone.push_back(std::move(work.background));
    background_.Start(std::move(alone));
  }
  if (work.none() && !background_.empty()) background_.Step(0);
  if (work.turn.kind == Turn::kStart) passes_.Start(std::move(work.batch), work.turn.pass);
  if (work.turn.kind == Turn::kStart || work.turn.kind == Turn::kStep) passes_.Step(work.turn.pass, work.turn.kept);
  if (work.turn.kind == Turn::kGeneration) {
    const Time start = queue_.now();
    generations_.Step(work.turn.level);
    queue_.Generated(work.turn.level, Seconds(queue_.now() - start));
  }
  if (on_lost_ && device_->lost()) std::exchange(on_lost_, nullptr)();
  return work.turn;
}

void Engine::RunLent() {
  const Time start = queue_.now();
  finisher_.SetInline(true);
  do RunOnce(false);
  while (!passes_.empty() && !queue_.HasMore() && Seconds(queue_.now() - start) < RequestQueue::kLoanSeconds);
  finisher_.SetInline(false);
  queue_.GiveBack(!passes_.empty() || !generations_.empty() || !background_.empty());
}

}  // namespace edgewise::server
