#include "server/schedule/engine.h"

#include <pthread.h>

#include "absl/strings/str_cat.h"
#include "model/forward/pass.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"
#include "server/schedule/device_failure.h"
#include "server/status_details.h"

namespace edgewise::server {
namespace {

// Moves the results out of a pass that is done. The status of the first input that has none.
absl::Status TakeResults(Pass& pass, Request& request) {
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const absl::Status& status = request.results.emplace_back(pass.TakeResult(static_cast<int64_t>(i))).status;
    if (!status.ok()) return {status.code(), absl::StrCat("inputs[", i, "] ", status.message())};
  }
  return absl::OkStatus();
}

}  // namespace

void Engine::Start() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "engine");
    Run();
  });
}

void Engine::Join() {
  if (thread_.joinable()) thread_.join();
}

void Engine::Run() {
  while (true) {
    const Wait wait = generations_.empty() ? Wait::kForWork : generations_.stalled() ? Wait::kAWhile : Wait::kNot;
    Work work = queue_.Next(wait, generations_.room());
    if (work.end() && generations_.empty()) return;
    if (work.job) work.job();
    if (work.generation) generations_.Start(std::move(work.generation));
    generations_.EndExpired();
    if (work.predict) {
      RunPredict(*work.predict);
    } else {
      generations_.Step();
      generation_seconds_ = 0.0;  // no Predict request competes
    }
    after_work_();
  }
}

void Engine::ShareWithGenerations(double seconds) {
  while (RequestPtr request = queue_.NextGeneration(generations_.room())) generations_.Start(std::move(request));
  generation_seconds_ += seconds;
  while (generation_seconds_ > 0.0) {
    const Time start = queue_.now();
    generations_.EndExpired();
    if (!generations_.Step()) {
      generation_seconds_ = 0.0;
    } else {
      generation_seconds_ -= Seconds(queue_.now() - start);
    }
  }
}

void Engine::RunPredict(Request& request) {
  const Time start = queue_.now();
  request.queue_seconds = Seconds(start - request.queued);
  request.batch_inputs = static_cast<uint32_t>(request.inputs.size());
  request.batch_tokens = request.tokens;
  request.model->metrics->CountPredict(request);
  Pass pass(*request.model->model, request.inputs, {});
  request.compute_seconds = Seconds(queue_.now() - start);
  absl::Status status = RunLayers(pass, request);
  if (status.ok()) queue_.RecordPredict(Seconds(queue_.now() - start));
  if (status.ok()) status = TakeResults(pass, request);
  request.done(status);
}

absl::Status Engine::RunLayers(Pass& pass, Request& request) {
  while (true) {
    const bool done = pass.done();
    absl::Status status = !done && queue_.cancelled() ? ShuttingDown() : CancelledOrExpired(request, queue_.now());
    if (!status.ok()) request.cancelled_seconds = request.compute_seconds;
    if (done || !status.ok()) return status;
    queue_.EndExpired();
    const Time start = queue_.now();
    status = pass.Step();
    const double seconds = Seconds(queue_.now() - start);
    request.compute_seconds += seconds;
    if (!status.ok()) return DeviceFailure(status);
    ShareWithGenerations(seconds);
  }
}

}  // namespace edgewise::server
