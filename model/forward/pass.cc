#include "model/forward/pass.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <memory_resource>
#include <new>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/forward/heads.h"
#include "model/forward/softmax.h"
#include "model/input/given_graph.h"

namespace edgewise {
namespace {

// One input over all its waves: its parts, its samples and its result.
struct PassInput : RunningInput {
  PassInput(const Model& model, const InputRun& run, const Pass::Options& options);

  // The sequences before `end` run next, or the last of them where a long text runs in parts, the last part first.
  void SelectSequences(size_t end);
  // The samples that the next wave may run.
  uint32_t NextSamples() const;
  // The result of the sample that comes `ahead` after the next one.
  SampleResult* NextResult(uint32_t ahead);
  // Looks whether a part has enough samples; then selects the next part, and returns true, or the result is complete.
  bool FinishPart();
  void Cancel(absl::Status reason);
  void Limit(uint32_t samples);
  uint32_t samples_done() const;
  InputResult TakeResult();

  const ModelConfig& config;
  const ModelInput& source;
  const Pass::Options& options;
  const bool draws;  // samples can differ
  InputResult result;
  uint32_t wanted_samples = 0;                      // of the result
  uint32_t samples = 0;                             // forward passes to run
  uint32_t ran = 0;                                 // of them, over the sequences that run
  size_t first_sequence = 0;                        // that runs
  std::vector<std::vector<HeadEdges>> given_edges;  // over valid tokens
  std::vector<SampleResult> unwanted;               // samples that a limit left out: a wave may still write to them
};

size_t ScoredTokens(const ModelConfig& config, std::span<const ModelSequence> sequences) {
  size_t tokens = 0;
  if (config.task != ModelTask::kCausalLm) return tokens;
  for (const ModelSequence& window : sequences) tokens += std::max(0, window.valid() - window.first_scored);
  return tokens;
}

PassInput::PassInput(const Model& model, const InputRun& run, const Pass::Options& options)
    : config(model.config()), source(*run.input), options(options), draws(model.Samples(source)) {
  const ModelInput& input = source;
  draw = &input;
  wanted = input.wanted;
  alternatives = input.alternatives;
  token_rows = input.token_rows;
  wanted_samples = run.samples;
  samples = draws ? run.samples : 1;
  if (input.graph.has_value()) {
    given_edges = ToValidTokens(*input.graph, input.sequences);
    given = &given_edges;
  }
  result.pairs = model.Pairs(input);
  result.labels = config.num_labels;
  result.regression = GivesValues(config.task);
  result.multi_label = config.multi_label;
  result.rows = OutputRows(config, input);
  if (run.max_edges < result.pairs) max_edges = run.max_edges;
  SelectSequences(input.sequences.size());
  shared = SampleResult(config, input.sequences.size(), 0, 0, wanted.graph);
  result.sample_results.reserve(samples);  // waves point to them
}

void PassInput::SelectSequences(size_t end) {
  // Windows of a text depend on each other through a budget, and through a graph that lies over all of them.
  const bool in_parts = config.task == ModelTask::kCausalLm && !source.graph.has_value() && max_edges == kNoCap;
  int64_t tokens = 0;
  for (first_sequence = end; first_sequence > 0; --first_sequence) {
    tokens += source.sequences[first_sequence - 1].valid();
    if (in_parts && first_sequence < end && tokens > options.max_wave_tokens) break;
  }
  ranges.clear();
  for (size_t s = first_sequence; s < end; ++s) ranges.push_back({&source.sequences[s]});
  next_token = end == source.sequences.size();
  samples = std::min(samples, wanted_samples);
  ran = 0;
  first_layer = first_sequence * config.num_hidden_layers;
  first_scored = ScoredTokens(config, std::span(source.sequences).first(first_sequence));
}

uint32_t PassInput::NextSamples() const {
  const uint32_t left = samples - ran;
  return source.tolerance > 0.0 ? std::min(left, std::max(ran, Pass::kFirstToleranceWave)) : left;
}

SampleResult* PassInput::NextResult(uint32_t ahead) {
  while (result.sample_results.size() <= ran + ahead) {
    result.sample_results.emplace_back(config, source.sequences.size(), result.rows,
                                       ScoredTokens(config, source.sequences), wanted.graph);
  }
  return &result.sample_results[ran + ahead];
}

bool PassInput::FinishPart() {
  if (draws && next_token && source.tolerance > 0.0) {  // the first part decides how many samples there are
    const uint32_t converged = ConvergedSamples(result, source.tolerance);
    if (converged > 0) {
      result.sample_results.resize(converged);
      samples = ran = converged;
    }
  }
  if (ran < samples) return false;
  complete = first_sequence == 0;
  if (!complete) SelectSequences(first_sequence);
  return !complete;
}

InputResult PassInput::TakeResult() {
  std::vector<SampleResult>& all = result.sample_results;
  if (!result.status.ok()) {
    all.clear();
  } else {
    if (wanted.graph) result.graph = Graph{std::move(all[0].graph)};
    // Where nothing is drawn all samples are the one that ran; a tolerance is met at once.
    if (!draws) {
      all.resize(source.tolerance > 0.0 ? std::min(wanted_samples, Pass::kFirstToleranceWave) : wanted_samples, all[0]);
    }
    if (all.size() > wanted_samples) {
      const auto begin = std::make_move_iterator(all.begin());
      std::vector<SampleResult> first(begin, begin + wanted_samples);
      unwanted = std::exchange(all, std::move(first));
    }
    result.samples = static_cast<uint32_t>(all.size());
    CombineSamples(result);
  }
  return std::move(result);
}

void PassInput::Cancel(absl::Status reason) {
  if (complete) return;
  complete = true;
  result.status = std::move(reason);
}

void PassInput::Limit(uint32_t most) {
  wanted_samples = std::min(wanted_samples, std::max(most, 1u));
  if (first_sequence == 0 && ran >= wanted_samples) complete = true;
  samples = std::min(samples, std::max(wanted_samples, ran + 1));  // a part ends with a wave
}

uint32_t PassInput::samples_done() const {
  if (complete) return wanted_samples;
  return first_sequence == 0 ? ran : 0;
}

// The first layer that draws for any input: the samples of every input share the layers below it.
int32_t FirstDrawn(const ModelConfig& config, const std::vector<InputRun>& runs) {
  int32_t first = config.num_hidden_layers;
  for (const InputRun& run : runs) first = std::min(first, FirstDrawnLayer(config, *run.input));
  return first;
}

}  // namespace

// Runs the inputs group by group, and the samples of a group wave by wave.
struct Pass::State {
  State(const Model& model, const std::vector<InputRun>& runs, Options options);

  void MakeFirstResults();
  absl::Status Step();
  absl::Status StartGroup();
  absl::Status StartWave();
  absl::Status FinishWave();
  void CancelWhereCallersAsked();

  const Model& model;
  const Options options;
  const int32_t first_drawn;
  std::vector<PassInput> inputs;
  absl::Status flags;                              // an error where the backend gave no flag for a stop
  std::vector<RunningInput*> group;                // inputs that run together
  size_t next_input = 0;                           // of the next group
  const std::unique_ptr<Wave, Wave::Return> wave;  // of the group
};

Pass::State::State(const Model& model, const std::vector<InputRun>& runs, Options options)
    : model(model), options(options), first_drawn(FirstDrawn(model.config(), runs)), wave(Wave::Take(model)) {
  inputs.reserve(runs.size());  // groups point to them
  group.reserve(runs.size());
  for (const InputRun& run : runs) {
    PassInput& added = inputs.emplace_back(model, run, this->options);
    // Neighbours of one caller, the inputs of a request, have one flag.
    const std::stop_token& stopping = run.input->stopping;
    if (inputs.size() > 1 && stopping == inputs[inputs.size() - 2].draw->stopping) {
      added.cancel = inputs[inputs.size() - 2].cancel;
    } else if (!stopping.stop_requested()) {
      auto flag = CancelOnStop::Create(model.backend(), stopping);
      if (flag.ok()) {
        added.cancel = *std::move(flag);
      } else {
        flags = flag.status();
      }
    }
  }
  MakeFirstResults();
}

// The results of the first wave have their place before the first step; later waves make their own, so that a large
// ensemble begins at once.
void Pass::State::MakeFirstResults() {
  int64_t rows = 0;
  size_t first = 0;  // inputs of the first group
  for (; first < inputs.size(); ++first) {
    rows += inputs[first].rows();
    if (first > 0 && rows > options.max_wave_tokens) break;
  }
  const auto samples =
      static_cast<uint32_t>(std::max<int64_t>(1, options.max_wave_tokens / std::max<int64_t>(1, rows)));
  for (size_t i = 0; i < first; ++i) inputs[i].NextResult(std::min(samples, inputs[i].NextSamples()) - 1);
}

absl::Status Pass::State::Step() {
  RETURN_IF_ERROR(flags);
  const auto complete = [](const RunningInput* input) { return input->complete; };
  if (std::all_of(group.begin(), group.end(), complete)) RETURN_IF_ERROR(StartGroup());
  if (wave->shared()) {
    RETURN_IF_ERROR(wave->Step());
    if (!wave->done()) return absl::OkStatus();
  }
  if (wave->samples().empty()) RETURN_IF_ERROR(StartWave());
  RETURN_IF_ERROR(wave->RemoveComplete());
  if (!wave->samples().empty() && !wave->done()) RETURN_IF_ERROR(wave->Step());
  return wave->done() || wave->samples().empty() ? FinishWave() : absl::OkStatus();
}

// Takes the next inputs that fit together.
absl::Status Pass::State::StartGroup() {
  group.clear();
  int64_t rows = 0;
  bool alone = false;
  for (; next_input < inputs.size() && !alone; ++next_input) {
    PassInput& input = inputs[next_input];
    if (input.complete) continue;
    rows += input.rows();
    alone = input.first_sequence > 0;  // its other parts are groups of their own
    if (!group.empty() && (alone || rows > options.max_wave_tokens)) break;
    group.push_back(&input);
  }
  return wave->Start(group, {first_drawn, Phase::kPrefill, options.step_rows});
}

// Picks the next samples of every input of the group that wants more.
absl::Status Pass::State::StartWave() {
  std::pmr::vector<Wave::Sample> samples(wave->scratch());
  uint32_t next = std::numeric_limits<uint32_t>::max();
  for (const RunningInput* running : group) {
    const auto& input = static_cast<const PassInput&>(*running);
    if (!input.complete) next = std::min(next, input.ran);
  }
  int64_t rows = 0;
  for (bool more = true, full = false; more && !full; ++next) {
    more = false;
    for (RunningInput* running : group) {
      auto& input = static_cast<PassInput&>(*running);
      if (input.complete || next >= input.ran + input.NextSamples()) continue;
      more = true;
      if (next < input.ran) continue;
      rows += input.rows();
      full = !samples.empty() && rows > options.max_wave_tokens;
      if (full) break;
      samples.push_back({&input, input.draw->first_sample + next, input.NextResult(next - input.ran)});
    }
  }
  return wave->StartSamples(samples);
}

// Counts the samples for their inputs, and completes those that have enough.
absl::Status Pass::State::FinishWave() {
  if (!wave->samples().empty()) RETURN_IF_ERROR(ComputeOutputs(*wave));
  RETURN_IF_ERROR(wave->Finish());
  CancelWhereCallersAsked();  // after the wait: the results of the others are whole
  for (const Member* member : wave->samples()) {
    auto& input = static_cast<PassInput&>(*member->input);
    if (input.complete) continue;
    ++input.ran;
    const bool counts = member->sample - input.draw->first_sample < input.wanted_samples;
    if (!member->finite && counts && input.result.status.ok()) input.result.status = NonFiniteOutput();
  }
  wave->RemoveSamples();
  for (RunningInput* running : group) {
    auto& input = static_cast<PassInput&>(*running);
    if (input.complete || !input.FinishPart()) continue;
    group.clear();  // it ran alone: the next part is the next group
    next_input = static_cast<size_t>(&input - inputs.data());
    break;
  }
  return absl::OkStatus();
}

void Pass::State::CancelWhereCallersAsked() {
  for (PassInput& input : inputs) {
    if (input.draw->stopping.stop_requested()) input.Cancel(CancelledByCaller());
  }
}

Pass::Pass(const Model& model, const std::vector<ModelInput>& inputs, Options options)
    : Pass(model, std::vector<InputRun>(inputs.begin(), inputs.end()), options) {}

Pass::Pass(const Model& model, const std::vector<InputRun>& runs, Options options)
    : state_(std::make_unique<State>(model, runs, options)) {}

Pass::~Pass() = default;

bool Pass::done() const {
  return std::all_of(state_->inputs.begin(), state_->inputs.end(),
                     [](const PassInput& input) { return input.complete; });
}
bool Pass::done(int64_t input) const { return state_->inputs[input].complete; }

absl::Status Pass::Step() {
  state_->CancelWhereCallersAsked();
  if (done()) return absl::OkStatus();
  try {
    const absl::Status status = state_->Step();
    // At the end: what the caller learns while this waits, it knows before the next layer.
    return status.ok() ? state_->model.backend().Throttle() : status;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory in the forward pass");
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("the forward pass failed: ", error.what()));
  }
}

void Pass::Cancel(int64_t input, absl::Status reason) { state_->inputs[input].Cancel(std::move(reason)); }

void Pass::Limit(int64_t input, uint32_t samples) { state_->inputs[input].Limit(samples); }

uint32_t Pass::samples_done(int64_t input) const { return state_->inputs[input].samples_done(); }

bool Pass::between_waves() const { return state_->wave->samples().empty(); }

InputResult Pass::TakeResult(int64_t input) { return state_->inputs[input].TakeResult(); }

}  // namespace edgewise
