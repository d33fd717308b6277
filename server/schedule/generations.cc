#include "server/schedule/generations.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "model/forward/softmax.h"
#include "model/forward/wave.h"
#include "server/base/status_details.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"
#include "server/schedule/device_failure.h"

namespace edgewise::server {
namespace {

// rows of prompts in one step, before the first was measured; fewer take about as long
constexpr int64_t kFirstRows = 64;
constexpr int64_t kLeastPart = 32;  // tokens

bool InPrompt(const Generation& generation) { return generation.prompt_next() || generation.holds_part(); }
bool HoldsRows(const Generation& generation) { return generation.holds_part() || generation.holds_token(); }

// The error of a generation that could not start: a row cannot keep the budget, or the device failed.
absl::Status StartFailure(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return DeviceFailure(status);
  return WithRejection(Within("budget", status), Rejection::kBudget);
}

}  // namespace

int64_t Generations::PromptRows(const CostModel& costs) const {
  const double rows = costs.LayerRows(max_step_seconds_);
  return rows == 0.0 ? kFirstRows : static_cast<int64_t>(std::min<double>(rows, kMaxWaveTokens));
}

int64_t Generations::TokenLayers(const LoadedModel& model) const {
  const double layers = model.costs->TokenLayers(max_step_seconds_);
  return layers == 0.0 ? kAllLayers : std::max<int64_t>(1, static_cast<int64_t>(std::min(layers, 1e6)));
}

Generations::Generations(RequestQueue& queue, const ServerOptions& options)
    : queue_(queue),
      max_generations_(options.max_generations),
      max_cache_bytes_(options.limits.max_cache_bytes),
      max_step_seconds_(Seconds(options.max_step)),
      park_after_(options.park_after),
      unread_timeout_(options.unread_timeout) {}

size_t Generations::Active() const {
  return std::count_if(running_.begin(), running_.end(), [](const Running& running) { return !running.parked; });
}

uint64_t Generations::cache_bytes() const {
  uint64_t held = 0;
  for (const Running& running : running_) held += running.cache_bytes().held;
  return held;
}

uint64_t Generations::Reserved(const Running& running) const {
  const CacheBytes bytes = running.cache_bytes();
  if (!running.parked) return std::max(bytes.held, bytes.ahead);
  return running.generation->CanDropCache() ? 0 : bytes.held;
}

GenerationRoom Generations::room() const {
  size_t places = 0;
  uint64_t bytes = 0;
  for (const Running& running : running_) {
    const bool goes_on = !running.parked || running.client_ready();
    if (goes_on) ++places;
    bytes += running.parked && goes_on ? running.cache_bytes().ahead : Reserved(running);
  }
  return {max_generations_ - std::min(max_generations_, places), max_cache_bytes_ - std::min(max_cache_bytes_, bytes)};
}

bool Generations::MakeRoom(uint64_t bytes, const Running* first) {
  const auto gives = [&](const Running& running) {
    return (running.parked || (first != nullptr && first->Before(running))) && running.generation->CanDropCache();
  };
  uint64_t held = 0, kept = 0;
  for (const Running& running : running_) {
    held += running.cache_bytes().held;
    kept += gives(running) ? 0 : running.cache_bytes().held;
  }
  if (kept + bytes > max_cache_bytes_) return false;
  while (held + bytes > max_cache_bytes_) {
    Running* last = nullptr;  // of those that are parked already, else of all
    for (Running& running : running_) {
      if (!gives(running) || running.cache_bytes().held == 0) continue;
      const bool later = last != nullptr && (running.parked == last->parked ? last->Before(running) : running.parked);
      if (last == nullptr || later) last = &running;
    }
    held -= last->cache_bytes().held;
    last->generation->DropCache();
    last->parked = true;
  }
  return true;
}

void Generations::Start(RequestPtr request) {
  const Time start = queue_.now();
  Running running{std::move(request), nullptr, ++started_, start};
  Request& started = *running.request;
  started.outcome.queue_seconds = Seconds(start - started.outcome.queued);
  started.ticket.model->metrics->CountGeneration(started);
  MakeRoom(started.work.generation->cache_bytes.next, nullptr);
  absl::StatusOr<std::unique_ptr<Generation>> generation = Generation::Create(
      *started.ticket.model->model, started.work.generation->prompt, started.work.generation->options);
  started.outcome.compute_seconds = running.own_seconds = Seconds(queue_.now() - start);
  if (!generation.ok()) return End(running, StartFailure(generation.status()));
  running.generation = *std::move(generation);
  running_.push_back(std::move(running));
}

UnderWay Generations::Update() {
  if (running_.empty()) return {.room = {max_generations_, max_cache_bytes_}};
  const Time now = queue_.now();
  const bool shutdown = queue_.cancelled();
  size_t parked = running_.size() - Active();
  for (size_t left = running_.size(); left > 0; --left) {
    Running running = std::move(running_.front());
    running_.pop_front();
    absl::Status reason = shutdown ? ShuttingDown() : CancelledOrExpired(*running.request, now);
    if (running.client_ready()) running.ready = now;
    if (reason.ok() && now - running.ready >= unread_timeout_) {
      reason = absl::CancelledError(absl::StrCat("the client took no token for ", Seconds(unread_timeout_), " s"));
    }
    if (!reason.ok()) {
      End(running, reason, true);
      continue;
    }
    const bool park = now - running.ready >= park_after_ && !HoldsRows(*running.generation);
    if (park && !running.parked && parked < max_generations_) {
      running.parked = true;
      ++parked;
    }
    running_.push_back(std::move(running));
  }
  GiveMemory();
  GoOn();
  return {CanStep(), room(), cache_bytes()};
}

template <typename Is>
std::vector<Generations::Running*> Generations::InOrder(const Is& is) {
  std::vector<Running*> found;
  for (Running& running : running_) {
    if (is(running)) found.push_back(&running);
  }
  std::sort(found.begin(), found.end(), [](const Running* a, const Running* b) { return a->Before(*b); });
  return found;
}

void Generations::GiveMemory() {
  for (Running& running : running_) {
    running.waits = !running.parked && running.cache_bytes().held < running.cache_bytes().next;
  }
  for (Running* running : InOrder([](const Running& each) { return each.waits; })) {
    const CacheBytes bytes = running->cache_bytes();
    if (!running->parked && MakeRoom(bytes.next - bytes.held, running)) TakeMemory(*running);
  }
}

void Generations::GoOn() {
  bool others_wait = false;  // for memory
  for (Running* running : InOrder([](const Running& each) { return each.parked && each.client_ready(); })) {
    if (Active() >= max_generations_) return;
    const CacheBytes bytes = running->cache_bytes();
    uint64_t reserved = std::max(bytes.held, bytes.ahead);
    for (const Running& other : running_) reserved += &other == running ? 0 : Reserved(other);
    // One whose memory nobody else can have needs no more, and would keep it from all if it did not go on.
    if (running->generation->CanDropCache() && (others_wait || reserved > max_cache_bytes_)) {
      others_wait = true;
      continue;
    }
    running->parked = false;
    MakeRoom(bytes.next - std::min(bytes.next, bytes.held), nullptr);
    TakeMemory(*running);
  }
}

void Generations::TakeMemory(Running& running) {
  running.generation->TakeMemory().IgnoreError();  // its next step tries again, and fails
  running.waits = false;
}

// Rows that are in memory go on: they began when the client took a token, and it has got none since.
bool Generations::CanStep(const Running& running) const {
  if (running.parked || running.waits) return false;
  if (HoldsRows(*running.generation)) return true;
  if (!running.client_ready()) return false;
  return !running.generation->prompt_next() ||
         std::none_of(running_.begin(), running_.end(), [&](const Running& other) {
           return other.request->ticket.priority == running.request->ticket.priority && other.generation->holds_part();
         });
}

PerLevel<bool> Generations::CanStep() const {
  PerLevel<bool> can = {};
  for (const Running& running : running_) can[running.request->ticket.priority - 1] |= CanStep(running);
  return can;
}

template <typename Is>
bool Generations::CanStep(uint32_t level, const Is& is) const {
  return std::any_of(running_.begin(), running_.end(), [&](const Running& running) {
    return running.request->ticket.priority - 1 == level && is(*running.generation) && CanStep(running);
  });
}

template <typename Takes>
std::vector<Generations::Running> Generations::Take(const Takes& takes) {
  std::vector<Running> taken;
  for (auto running = running_.begin(); running != running_.end();) {
    if (!CanStep(*running) || !takes(*running, taken)) {
      ++running;
      continue;
    }
    taken.push_back(std::move(*running));
    running = running_.erase(running);
  }
  return taken;
}

std::vector<Generations::Running> Generations::TakeHalfWay(uint32_t level, bool (Generation::*holds)() const) {
  return Take([&](const Running& running, const std::vector<Running>&) {
    return running.request->ticket.priority - 1 == level && ((*running.generation).*holds)();
  });
}

std::vector<Generations::Running> Generations::TakePrompts(uint32_t level, bool short_ones) {
  std::vector<Running> half_way = TakeHalfWay(level, &Generation::holds_part);
  if (!half_way.empty()) return half_way;
  int64_t most = 0, tokens = 0, rows = 0, samples = 0;  // rows at most; of those that are taken
  return Take([&](const Running& running, const std::vector<Running>& taken) {
    Generation& generation = *running.generation;
    if (running.request->ticket.priority - 1 != level) return false;
    if (!(short_ones ? generation.has_prompt() : generation.prompt_next())) return false;
    if (taken.empty()) {
      most = PromptRows(*running.request->ticket.model->costs);
      generation.LimitPart(static_cast<int32_t>(std::max(kLeastPart, most / generation.samples())));
    } else {
      if (!generation.Joins(*taken[0].generation)) return false;
      generation.LimitPart(0);  // whole
      const int64_t context = running.request->ticket.model->model->config().max_position_embeddings;
      if (tokens + generation.part_tokens() + 1 > context || rows + generation.part_rows() > most) return false;
      if (samples + generation.samples() > kRowsTogether) return false;
    }
    tokens += generation.part_tokens() + 1;
    rows += generation.part_rows();
    samples += generation.samples();
    return true;
  });
}

std::vector<Generations::Running> Generations::TakeDecoding(uint32_t level) {
  std::vector<Running> half_way = TakeHalfWay(level, &Generation::holds_token);
  if (!half_way.empty()) return half_way;
  int64_t rows = 0;
  return Take([&](const Running& running, const std::vector<Running>& taken) {
    const Generation& generation = *running.generation;
    if (running.request->ticket.priority - 1 != level || InPrompt(generation)) return false;
    const bool fits =
        taken.empty() || (generation.Joins(*taken[0].generation) && rows + generation.rows() <= kRowsTogether);
    if (fits) rows += generation.rows();
    return fits;
  });
}

void Generations::Step(uint32_t level) {
  const bool long_prompts = CanStep(level, [](const Generation& each) { return each.prompt_next(); });
  const bool tokens = CanStep(level, [&](const Generation& each) {
    return !each.has_prompt() || each.holds_token() || (long_prompts && !InPrompt(each));
  });
  const bool prompts = CanStep(level, [&](const Generation& each) { return !tokens || InPrompt(each); });
  if (!prompts && !tokens) return;
  double& lead = prompt_lead_[level];
  if (prompts != tokens) lead = 0.0;  // nobody to share with
  const bool in_prompt = prompts && lead <= 0.0;
  std::vector<Running> next = in_prompt ? TakePrompts(level, !tokens) : TakeDecoding(level);
  if (next.empty()) return;  // clients take no more meanwhile
  lead += in_prompt ? StepPrompts(next) : -Decode(next);
}

double Generations::StepPrompts(std::vector<Running>& together) {
  const auto side_by_side = static_cast<uint32_t>(running_.size() + together.size());
  std::vector<Generation*> generations;
  std::vector<double> shares;
  double all_rows = 0.0;
  for (const Running& running : together) {
    generations.push_back(running.generation.get());
    all_rows += shares.emplace_back(static_cast<double>(running.generation->part_rows()));
  }
  std::vector<absl::Status> steps(together.size());
  const Time start = queue_.now();
  const int64_t rows = Generation::StepPrompts(generations, steps);
  const double seconds = Seconds(queue_.now() - start);
  together[0].request->ticket.model->metrics->CountDevice(seconds);
  CostModel& costs = *together[0].request->ticket.model->costs;
  if (rows > 0 && seconds > 0.0) costs.ObserveLayer(static_cast<double>(std::max(rows, kFirstRows)), seconds);
  for (size_t i = 0; i < together.size(); ++i) {
    Running& running = together[i];
    running.request->outcome.compute_seconds += seconds;
    running.own_seconds += seconds * shares[i] / all_rows;
    running.request->outcome.batch_inputs = side_by_side;
    const Request& request = *running.request;
    const Generation& generation = *running.generation;
    if (steps[i].ok() && request.outcome.generated.tokens == 0 && !generation.has_prompt() &&
        !generation.holds_part()) {
      costs.ObservePrompt(static_cast<double>(request.work.tokens), running.own_seconds);
    }
    if (GoesOn(running, steps[i])) running_.push_back(std::move(running));
  }
  return seconds;
}

double Generations::Decode(std::vector<Running>& together) {
  const auto side_by_side = static_cast<uint32_t>(running_.size() + together.size());
  std::vector<Generation*> generations;
  for (const Running& running : together) generations.push_back(running.generation.get());
  std::vector<absl::Status> steps(together.size());
  const Time start = queue_.now();
  const LoadedModel& model = *together[0].request->ticket.model;
  Generation::DecodeTogether(generations, steps, TokenLayers(model));
  const double seconds = Seconds(queue_.now() - start), size = static_cast<double>(together.size());
  model.metrics->CountDevice(seconds);
  double whole = 0.0;  // of tokens that have ended
  for (Running& running : together) {
    running.request->outcome.compute_seconds += seconds;
    running.own_seconds += seconds / size;
    running.token_seconds += seconds;
    running.request->outcome.batch_inputs = side_by_side;
    if (running.generation->holds_token()) continue;
    whole = std::exchange(running.token_seconds, 0.0);
    model.costs->ObserveToken(whole / size);
  }
  if (whole > 0.0) model.costs->ObserveTokenLayer(whole / static_cast<double>(Generation::LayersOfToken(*model.model)));
  for (size_t i = 0; i < together.size(); ++i) {
    Running& running = together[i];
    if (GoesOn(running, steps[i])) running_.push_back(std::move(running));
  }
  return seconds;
}

bool Generations::GoesOn(Running& running, const absl::Status& step) {
  Request& request = *running.request;
  if (absl::IsCancelled(step)) {
    End(running, CancelledOrExpired(request, queue_.now()), true);
    return false;
  }
  if (!step.ok()) {
    End(running, IsNonFiniteOutput(step) ? step : DeviceFailure(step));
    return false;
  }
  const FinishReason finish = running.generation->finish_reason();
  if (const std::optional<GeneratedToken> token = running.generation->TakeToken()) {
    request.token(*token, finish);
  }
  if (finish == FinishReason::kNone) return true;
  End(running, absl::OkStatus());
  return false;
}

void Generations::End(Running& running, const absl::Status& status, bool wasted) {
  Request& request = *running.request;
  if (wasted) request.outcome.cancelled_seconds = running.own_seconds;
  running.generation.reset();  // frees its memory before the client hears of the end
  request.done(status);
}

}  // namespace edgewise::server
