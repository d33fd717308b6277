#include "tests/server/simulator/simulation.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/schedule/degrade.h"

namespace edgewise::server {
namespace {

constexpr int64_t kMostTurns = 200000;
constexpr uint64_t kLeastCacheBytes = uint64_t{256} << 10;  // of the longest generation of the catalogue
constexpr double kIdle = 0.01;  // seconds that pass at once where nothing can happen but that a client gives up

Clock::duration Duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Simulation::Simulation(uint64_t seed, Catalogue& catalogue)
    : catalogue_(catalogue), random_(seed), scenario_(Draw()), device_([this](double seconds) { Pass(seconds); }) {}

Simulation::~Simulation() = default;

double Simulation::Uniform(double from, double to) {
  return from + (to - from) * (static_cast<double>(random_() >> 11) * 0x1p-53);
}

Simulation::Scenario Simulation::Draw() {
  const auto one_of = [&](auto... values) {
    const std::array all = {values...};
    return all[random_() % all.size()];
  };
  Scenario scenario;
  ServerOptions& options = scenario.options;
  options.queue.max_requests = one_of(1u, 4u, 32u, 256u);
  options.queue.max_tokens = one_of(uint64_t{60}, uint64_t{500}, uint64_t{8} << 20);
  options.queue.max_batch = one_of(1u, 3u, 256u);
  options.queue.max_delay = std::chrono::milliseconds(one_of(20, 200, 2000));
  options.max_step = std::chrono::milliseconds(one_of(1, 5, 20));
  options.max_generations = one_of(1u, 2u, 8u);
  options.park_after = std::chrono::milliseconds(one_of(5, 20, 1000));
  options.unread_timeout = std::chrono::milliseconds(one_of(30, 300));
  options.limits.max_cache_bytes = one_of(kLeastCacheBytes, 2 * kLeastCacheBytes, uint64_t{1} << 30);
  scenario.arrivals = one_of(30, 150, 400);
  scenario.principals = one_of(size_t{1}, size_t{2}, size_t{3});
  scenario.greedy = one_of(0.0, 0.5, 0.9);
  scenario.highest_level = one_of(1u, 1u, 3u);
  scenario.interval = one_of(0.0001, 0.002, 0.005, 0.02);
  scenario.generating = one_of(0.0, 0.1, 0.5);
  scenario.faulty = one_of(0.0, 0.0, 0.02, 0.2);
  scenario.cancelling = one_of(0.0, 0.05, 0.3);
  scenario.urgent = one_of(0.0, 0.3, 0.9);
  scenario.consenting = one_of(0.0, 0.3, 0.9);
  scenario.shadowed = one_of(0.0, 0.5);
  scenario.misjudged = one_of(1.0, 1.0, 0.3, 3.0);
  scenario.unread_limit = one_of(size_t{1}, size_t{4}, size_t{32});
  scenario.cancel_all = one_of(false, false, true);
  return scenario;
}

// Seconds go by, in which others do what they do then.
void Simulation::Pass(double seconds) {
  const Time end = now_ + Duration(seconds * Uniform(0.7, 1.3));
  while (!events_.empty() && events_.begin()->first <= end) NextEvent();
  now_ = std::max(now_, end);
}

void Simulation::After(double seconds, std::function<void()> event) {
  events_.emplace(now_ + Duration(seconds), std::move(event));
}

void Simulation::NextEvent() {
  auto next = events_.extract(events_.begin());
  now_ = std::max(now_, next.key());
  next.mapped()();
}

Simulation::Counts& Simulation::Counts::operator+=(const Counts& other) {
  turns += other.turns;
  arrivals += other.arrivals;
  refused += other.refused;
  answered += other.answered;
  failed += other.failed;
  tokens += other.tokens;
  loads += other.loads;
  faults += other.faults;
  degraded += other.degraded;
  fewer_edges += other.fewer_edges;
  shadows += other.shadows;
  return *this;
}

void Simulation::Run() {
  for (size_t model = 0; model < Catalogue::kModels; ++model) {
    loading_.push_back({model, 0, nullptr});
    while (!loading_.empty()) LoadPiece();
  }
  queue_ = std::make_unique<RequestQueue>(scenario_.options.queue, [this] { return now_; });
  engine_ = std::make_unique<Engine>(*queue_, scenario_.options);
  After(0.0, [this] { Arrive(); });
  while (violation_.empty()) {
    if (!loading_.empty()) LoadPiece();
    BeforeTurn();
    const std::optional<Turn> turn = engine_->RunOnce(false);
    if (!turn) break;
    AfterTurn(*turn);
    Require(++counts_.turns < kMostTurns, "the work ends some time");
    if (turn->kind != Turn::kNothing || changed_ || now_ > turn_began_ || !loading_.empty()) continue;
    if (events_.empty() || events_.begin()->first > now_ + Duration(kIdle)) {
      now_ += Duration(kIdle);
    } else {
      NextEvent();
    }
  }
  counts_.faults = device_.failures();
  CheckEnd();
}

void Simulation::Arrive() {
  ++counts_.arrivals;
  const size_t model = random_() % Catalogue::kModels;
  if (models_[model]) Ask(model);
  if (Chance(scenario_.faulty)) device_.FailAfter(static_cast<int64_t>(random_() % 60));
  if (Chance(0.02)) device_.SetSlowness(Uniform(0.3, 4.0));
  if (Chance(0.02)) Change(random_() % Catalogue::kModels);
  if (counts_.arrivals < scenario_.arrivals) {
    const double apart = Chance(0.2) ? 0.0 : -std::log(1.0 - Uniform(0.0, 1.0));
    After(apart * scenario_.interval, [this] { Arrive(); });
  } else {
    After(Uniform(0.0, 0.3), [this] { End(); });
  }
}

void Simulation::Ask(size_t model) {
  Call& call = calls_.emplace_back();
  call.number = counts_.arrivals;
  const bool generates = model == Catalogue::kGenerates && Chance(scenario_.generating);
  const std::vector<SimulatedWork>& works = generates ? catalogue_.generations() : catalogue_.predicts();
  do {
    call.work = &works[random_() % works.size()];
  } while (call.work->model != model);
  call.version = versions_[model];
  call.alone = &catalogue_.AnswerOf(*call.work, call.version);
  call.level = static_cast<uint32_t>(random_() % kPriorityLevels);
  const size_t principal = Chance(scenario_.greedy) ? 0 : random_() % scenario_.principals;
  call.principal = std::string(1, static_cast<char>('a' + principal));
  if (principal == 0) call.level = std::max(call.level, scenario_.highest_level - 1);
  call.pushed = now_;
  RequestPtr request = MakeRequest(call);
  if (Chance(0.02)) call.client.request_stop(), call.cancelled = now_;
  Say(absl::StrCat(call.number, generates ? " generates" : " asks", " model ", model, " at level ", call.level, " for ",
                   call.principal, ", predicted ", request->forecast.seconds, " s, deadline in ",
                   call.deadline == Time::max() ? -1.0 : Seconds(call.deadline - now_), " s"));
  asking_ = &call;
  const absl::Status status = queue_->Push(request);
  asking_ = nullptr;
  if (!status.ok()) {
    OnRefused(call, status);
    request.reset();
    calls_.pop_back();
    return;
  }
  Require(request == nullptr, "a request is taken iff OK");
  if (Chance(scenario_.cancelling)) {
    After(Uniform(0.0, 0.06), [this, number = call.number] {
      Call* left = Find(number);
      if (left == nullptr) return;
      Say(absl::StrCat(number, " cancels"));
      left->cancelled = now_;
      left->client.request_stop();
      queue_->Wake();
    });
  }
}

// As RequestHandler does, from a message that is valid.
RequestPtr Simulation::MakeRequest(Call& call) {
  const LoadedModel& model = *models_[call.work->model];
  auto request = std::make_unique<Request>();
  request->ticket.rpc = call.work->generates() ? Rpc::kGenerate : Rpc::kPredict;
  request->ticket.model = models_[call.work->model];
  request->ticket.arrival = now_;
  request->ticket.priority = call.level + 1;
  request->ticket.principal.name = call.principal;
  request->ticket.stopping = call.client.get_token();
  if (call.work->generates()) {
    AddGeneration(call, *request);
  } else {
    AddPredict(call, *request);
  }
  if (Chance(scenario_.urgent)) {
    call.deadline = now_ + Duration(Chance(0.1) ? 0.0 : Chance(0.3) ? Uniform(0.0, 0.005) : Uniform(0.0, 0.2));
  } else if (Chance(0.3)) {
    call.deadline = now_ + Duration(Uniform(0.2, 2.0));
  }
  request->ticket.deadline = call.deadline;
  ++requests_alive_;
  const std::shared_ptr<void> alive(nullptr, [this](void*) { --requests_alive_; });
  request->done = [this, alive, &call, raw = request.get()](const absl::Status& status) { OnEnd(call, *raw, status); };
  call.request = request.get();
  call.predicted = LeastSeconds(*request);
  double& longest = longest_predicted_[{call.level, call.principal}];
  longest = std::max(longest, request->forecast.seconds);
  call.before = longest;
  for (const Call& other : calls_) {
    const bool own = other.principal == call.principal && other.level == call.level && !other.work->generates();
    if (!own || other.request == nullptr) continue;
    call.before += other.request->forecast.seconds + Scheduler::kBatchSeconds;
  }
  model.metrics->CountValid(*request, 0.0);
  return request;
}

void Simulation::AddPredict(Call& call, Request& request) {
  request.work.inputs = call.work->inputs;
  request.work.may_degrade = call.consents = Chance(scenario_.consenting);
  request.work.budget = Chance(0.5) ? BudgetKind::kEdges : BudgetKind::kDensity;
  for (ModelInput& input : request.work.inputs) {
    input.stopping = request.ticket.stopping;
    for (const ModelSequence& sequence : input.sequences) {
      request.work.tokens += static_cast<uint64_t>(sequence.valid());
      request.work.cost += static_cast<uint64_t>(sequence.length());
    }
  }
  Forecast& forecast = request.forecast;
  forecast = MakeForecast(*request.ticket.model, request.work);
  for (double* seconds : {&forecast.seconds, &forecast.one_seconds, &forecast.least_seconds}) {
    *seconds *= scenario_.misjudged;
  }
}

// As Shadows does: another number of samples, in the background.
void Simulation::AddShadow(const Call& call) {
  auto request = std::make_unique<Request>();
  request->ticket.model = call.request->ticket.model;
  request->ticket.background = true;
  request->work.inputs = call.work->inputs;
  const auto samples = static_cast<uint32_t>(1 + random_() % 8);
  for (ModelInput& input : request->work.inputs) input.samples = samples;
  request->ticket.deadline = now_ + Duration(Uniform(0.0, 1.0));
  const LoneAnswer& alone = catalogue_.AnswerOf(*call.work, call.version, {samples});
  ++requests_alive_, ++background_;
  const std::shared_ptr<void> alive(nullptr, [this](void*) { --requests_alive_; });
  request->done = [this, alive, &alone, raw = request.get()](const absl::Status& status) {
    OnShadowEnd(alone, *raw, status);
  };
  if (!queue_->PushBackground(request).ok()) --background_;
}

void Simulation::AddGeneration(Call& call, Request& request) {
  const Model& model = *request.ticket.model->model;
  GenerationWork& work = request.work.generation.emplace();
  work.prompt = *model.Prepare(call.work->prompt, TruncateMode::kRefuse);
  work.options = call.work->options;
  work.options.stopping = request.ticket.stopping;
  work.cache_bytes = CacheBytesOf(model, work.prompt, work.options);
  request.ready = [this, &call] { return call.unread < scenario_.unread_limit; };
  request.token = [this, &call](const GeneratedToken& token, FinishReason finish) { OnToken(call, token, finish); };
  request.work.tokens = static_cast<uint64_t>(work.prompt.valid());
  request.work.cost = static_cast<uint64_t>(work.prompt.length());
  call.seconds_to_read = Chance(0.1) ? 1000.0 : Chance(0.3) ? Uniform(0.0, 0.1) : 0.0;
}

// The client reads what came, some time after it came.
void Simulation::Read(Call& call) {
  After(call.seconds_to_read, [this, number = call.number] {
    Call* reading = Find(number);
    if (reading == nullptr) return;
    reading->unread = 0;
    queue_->Wake();
  });
}

// Between two turns a model is loaded again with other weights, or goes and comes back.
void Simulation::Change(size_t model) {
  const size_t version = (versions_[model] + 1) % Catalogue::kVersions;
  if (Chance(0.3)) {
    Say(absl::StrCat("model ", model, " goes"));
    models_[model] = nullptr;
    changed_ = true;
  }
  loading_.push_back({model, version, nullptr});
}

// Between two turns a piece of the model that loads.
void Simulation::LoadPiece() {
  NextModel& next = loading_.front();
  if (!next.loading) next.loading = std::make_unique<Loading>(catalogue_.Folder(next.model, next.version), device_);
  between_turns_ = true;
  const bool more = next.loading->RunPiece();
  between_turns_ = false;
  if (more) return;
  const size_t model = next.model, version = next.version;
  absl::StatusOr<std::unique_ptr<Model>> loading = next.loading->Take();
  loading_.pop_front();
  Say(absl::StrCat("model ", model, " is loaded with weights ", version, ": ", loading.status().ToString()));
  if (!loading.ok()) return;
  auto loaded = std::make_shared<LoadedModel>();
  loaded->name = absl::StrCat("m", model);
  loaded->version = ++counts_.loads;
  loaded->metrics = metrics_.ForModel(loaded->name, 1)->Loaded(metrics_.other()->Event(), **loading);
  loaded->metrics->ExpectShadow(metrics_.other()->Event());  // AddShadow gives requests one
  loaded->model = *std::move(loading);
  models_[model] = std::move(loaded);
  versions_[model] = version;
}

void Simulation::End() {
  closed_ = true;
  cancelled_all_ = scenario_.cancel_all;
  Say(cancelled_all_ ? "cancel all" : "close");
  if (cancelled_all_) queue_->CancelAll();
  queue_->Close();
}

Simulation::Call* Simulation::Find(int64_t number) {
  const auto call = std::find_if(calls_.begin(), calls_.end(), [&](const Call& c) { return c.number == number; });
  return call == calls_.end() ? nullptr : &*call;
}

}  // namespace edgewise::server
