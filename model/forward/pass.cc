#include "model/forward/pass.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/forward/heads.h"
#include "model/forward/softmax.h"
#include "model/input/given_graph.h"
#include "text/status_macros.h"

namespace edgewise {
namespace {

constexpr uint32_t kFirstToleranceWave = 4;  // no ensemble with a tolerance is smaller

// One input over all its waves: its parts, its samples and its result.
struct PassInput : RunningInput {
  PassInput(const Model& model, const ModelInput& input, const Pass::Options& options);

  // The sequences before `end` run next, or the last of them where a long text runs in parts, the last part first.
  void SelectSequences(size_t end);
  // The samples that the next wave may run.
  uint32_t NextSamples() const;
  // Takes the result of a sample of the sequences that run.
  void AddSample(Member& member);
  // Looks whether a part has enough samples; then selects the next part, and returns true, or completes the result.
  bool FinishPart();
  void Complete();
  void Cancel(absl::Status reason);

  const ModelConfig& config;
  const ModelInput& source;
  const Pass::Options& options;
  const bool draws;  // samples can differ
  InputResult result;
  uint32_t samples = 0;                             // forward passes to run
  uint32_t ran = 0;                                 // of them, over the sequences that run
  size_t first_sequence = 0;                        // that runs
  std::vector<std::vector<HeadEdges>> given_edges;  // over valid tokens
};

PassInput::PassInput(const Model& model, const ModelInput& input, const Pass::Options& options)
    : config(model.config()), source(input), options(options), draws(model.Samples(input)) {
  draw = &input;
  wanted = input.wanted;
  samples = draws ? input.samples : 1;
  if (input.graph.has_value()) {
    for (size_t l = 0; l < input.graph->layers.size(); ++l) {
      const ModelSequence& sequence = input.sequences[l / config.num_hidden_layers];
      auto& heads = given_edges.emplace_back();
      for (const HeadEdges& head : input.graph->layers[l]) heads.push_back(ToValidTokens(head, sequence));
    }
    given = &given_edges;
  }
  result.pairs = model.Pairs(input);
  result.labels = config.num_labels;
  result.regression = config.task == ModelTask::kRegression;
  result.rows = config.task == ModelTask::kTokenClassification ? input.sequences[0].length() : 1;
  if (input.max_edges < result.pairs) max_edges = input.max_edges;
  SelectSequences(input.sequences.size());
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
  ran = 0;
}

uint32_t PassInput::NextSamples() const {
  const uint32_t left = samples - ran;
  return source.tolerance > 0.0 ? std::min(left, std::max(ran, kFirstToleranceWave)) : left;
}

void PassInput::AddSample(Member& member) {
  if (!member.finite && result.status.ok()) result.status = NonFiniteOutput();
  SampleResult& part = member.result;
  const size_t layers = config.num_hidden_layers;
  if (ran == result.sample_results.size()) {
    SampleResult& added = result.sample_results.emplace_back();
    added.layers.resize(layers * source.sequences.size());
    added.graph.resize(wanted.graph ? added.layers.size() : 0);
    added.logits = std::move(part.logits);
    added.probabilities = std::move(part.probabilities);
  }
  SampleResult& sample = result.sample_results[ran++];
  sample.token_probabilities.insert(sample.token_probabilities.begin(), part.token_probabilities.begin(),
                                    part.token_probabilities.end());
  sample.edges += part.edges;
  sample.isolated += part.isolated;
  sample.capped |= part.capped;
  for (size_t l = 0; l < part.layers.size(); ++l) {
    sample.layers[first_sequence * layers + l] = std::move(part.layers[l]);
    if (wanted.graph) sample.graph[first_sequence * layers + l] = std::move(part.graph[l]);
  }
}

bool PassInput::FinishPart() {
  if (next_token && source.tolerance > 0.0) {  // the first part decides how many samples there are
    const uint32_t converged = ConvergedSamples(result, source.tolerance);
    if (converged > 0) {
      result.sample_results.resize(converged);
      samples = ran = converged;
    }
  }
  if (ran < samples) return false;
  if (first_sequence > 0) {
    SelectSequences(first_sequence);
    return true;
  }
  Complete();
  return false;
}

void PassInput::Complete() {
  complete = true;
  if (!result.status.ok() || options.cache != nullptr) return;
  std::vector<SampleResult>& all = result.sample_results;
  if (wanted.graph) result.graph = Graph{std::move(all[0].graph)};
  // Where nothing is drawn all samples are the one that ran; a tolerance is met at once.
  if (!draws)
    all.resize(source.tolerance > 0.0 ? std::min(source.samples, kFirstToleranceWave) : source.samples, all[0]);
  result.samples = static_cast<uint32_t>(all.size());
  CombineSamples(result);
}

void PassInput::Cancel(absl::Status reason) {
  if (complete) return;
  complete = true;
  result.status = std::move(reason);
}

// The first layer that draws for any input: the samples of every input share the layers below it.
int32_t FirstDrawn(const ModelConfig& config, const std::vector<ModelInput>& inputs) {
  int32_t first = config.num_hidden_layers;
  for (const ModelInput& input : inputs) first = std::min(first, FirstDrawnLayer(config, input));
  return first;
}

}  // namespace

// Runs the inputs group by group, and the samples of a group wave by wave.
struct Pass::State {
  State(const Model& model, const std::vector<ModelInput>& given, Options options)
      : model(model), options(options), wave(model, FirstDrawn(model.config(), given), Phase::kPrefill, options.cache) {
    for (const ModelInput& input : given) inputs.emplace_back(model, input, this->options);
  }

  absl::Status Step();
  absl::Status StartGroup();
  absl::Status StartWave();
  absl::Status FinishWave();
  void CancelWhereCallersAsked();
  bool Done(size_t begin, size_t end) const {
    return std::all_of(inputs.begin() + static_cast<int64_t>(begin), inputs.begin() + static_cast<int64_t>(end),
                       [](const PassInput& input) { return input.complete; });
  }

  const Model& model;
  const Options options;
  std::deque<PassInput> inputs;
  size_t group_begin = 0;  // inputs that run together: from here
  size_t group_end = 0;    // to before here
  Wave wave;               // of the group
};

absl::Status Pass::State::Step() {
  if (Done(group_begin, group_end)) RETURN_IF_ERROR(StartGroup());
  if (wave.shared()) {
    RETURN_IF_ERROR(wave.RunLayer());
    if (!wave.done()) return absl::OkStatus();
    if (options.cache != nullptr) {
      inputs[0].Complete();
      return absl::OkStatus();
    }
  }
  if (wave.samples().empty()) RETURN_IF_ERROR(StartWave());
  RETURN_IF_ERROR(wave.RemoveComplete());
  if (!wave.samples().empty() && !wave.done()) RETURN_IF_ERROR(wave.RunLayer());
  return wave.done() || wave.samples().empty() ? FinishWave() : absl::OkStatus();
}

// Takes the next inputs that fit together.
absl::Status Pass::State::StartGroup() {
  wave.Clear();  // waits: nothing names the flags of the last group any more
  for (size_t i = group_begin; i < group_end; ++i) inputs[i].cancel.reset();
  group_begin = group_end;
  std::vector<RunningInput*> group;
  int64_t rows = 0;
  for (; group_end < inputs.size(); ++group_end) {
    PassInput& input = inputs[group_end];
    if (input.complete) continue;
    rows += input.rows();
    const bool alone = input.first_sequence > 0;  // its other parts are groups of their own
    if (!group.empty() && (alone || rows > options.max_wave_tokens)) break;
    // Neighbours of one caller, the inputs of a request, have one flag.
    if (!group.empty() && group.back()->draw->stopping == input.draw->stopping) input.cancel = group.back()->cancel;
    if (input.cancel == nullptr) {
      ASSIGN_OR_RETURN(input.cancel, CancelOnStop::Create(model.backend(), input.draw->stopping));
    }
    group.push_back(&input);
    if (alone) {
      ++group_end;
      break;
    }
  }
  return wave.Start(group);
}

// Picks the next samples of every input of the group that wants more.
absl::Status Pass::State::StartWave() {
  std::vector<Wave::Sample> samples;
  int64_t rows = 0;
  for (size_t i = group_begin; i < group_end; ++i) {
    PassInput& input = inputs[i];
    if (input.complete) continue;
    const int64_t more = input.rows();
    for (uint32_t s = 0; s < input.NextSamples(); ++s, rows += more) {
      if (!samples.empty() && rows + more > options.max_wave_tokens) break;
      samples.push_back({&input, input.draw->first_sample + input.ran + s});
    }
  }
  return wave.StartSamples(samples);
}

// Hands the results of the samples to their inputs, and completes those that have enough.
absl::Status Pass::State::FinishWave() {
  const Members& samples = wave.samples();
  if (!samples.empty() && options.cache == nullptr) RETURN_IF_ERROR(ComputeOutputs(model, wave.rows(), samples));
  RETURN_IF_ERROR(wave.Finish());
  CancelWhereCallersAsked();  // after the wait: the results of the others are whole
  for (const auto& member : samples) {
    if (!member->input->complete) static_cast<PassInput*>(member->input)->AddSample(*member);
  }
  wave.RemoveSamples();
  for (size_t i = group_begin; i < group_end; ++i) {
    if (inputs[i].complete || !inputs[i].FinishPart()) continue;
    group_end = group_begin = i;  // the next part is the next group
  }
  return absl::OkStatus();
}

void Pass::State::CancelWhereCallersAsked() {
  for (PassInput& input : inputs) {
    if (input.draw->stopping.stop_requested()) input.Cancel(CancelledByCaller());
  }
}

Pass::Pass(const Model& model, const std::vector<ModelInput>& inputs, Options options)
    : state_(std::make_unique<State>(model, inputs, options)) {}

Pass::~Pass() = default;

bool Pass::done() const { return state_->Done(0, state_->inputs.size()); }

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

InputResult Pass::TakeResult(int64_t input) { return std::move(state_->inputs[input].result); }

}  // namespace edgewise
