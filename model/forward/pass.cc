#include "model/forward/pass.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/weights.h"
#include "model/forward/pass_state.h"
#include "model/kinds/patterns.h"

namespace edgewise {
namespace {

constexpr uint32_t kFirstToleranceWave = 4;  // no ensemble with a tolerance is smaller

// The first layer that draws for any input: what lies before it is shared by the samples of every input.
int32_t FirstDrawn(const ModelConfig& config, const std::vector<ModelInput>& inputs) {
  int32_t first = config.num_hidden_layers;
  for (const ModelInput& input : inputs) first = std::min(first, FirstDrawnLayer(AttentionOf(config, input)));
  return first;
}

}  // namespace

Pass::State::State(const Model& model, const std::vector<ModelInput>& inputs, Options options)
    : model(model),
      config(model.config()),
      inputs(inputs),
      options(options),
      first_drawn(FirstDrawn(model.config(), inputs)),
      shared(model.backend()),
      active(model.backend()) {
  for (const ModelInput& input : inputs) {
    PassInput& state = states.emplace_back();
    state.wanted = model.Samples(input) ? input.samples : 1;
    if (input.graph.has_value() && !input.dense) {
      for (size_t l = 0; l < input.graph->layers.size(); ++l) {
        const ModelSequence& sequence = input.sequences[l / config.num_hidden_layers];
        auto& heads = state.given.emplace_back();
        for (const HeadEdges& head : input.graph->layers[l]) heads.push_back(ToValidTokens(head, sequence));
      }
    }
    state.result.pairs = model.Pairs(input);
    state.result.labels = config.num_labels;
    state.result.regression = config.task == ModelTask::kRegression;
    state.result.rows = config.task == ModelTask::kTokenClassification ? input.sequences[0].length() : 1;
    SelectSequences(static_cast<int64_t>(states.size()) - 1, input.sequences.size());
  }
}

// Windows of a text depend on each other through a budget, and through a graph that lies over all of them; otherwise as
// many run together as fit a wave.
bool Pass::State::RunsInParts(int64_t input) const {
  const ModelInput& of = inputs[input];
  return config.task == ModelTask::kCausalLm && !of.graph.has_value() && of.max_edges >= states[input].result.pairs;
}

// The sequences up to `end` run next, or the last of them where the input runs in parts.
void Pass::State::SelectSequences(int64_t input, size_t end) {
  PassInput& state = states[input];
  const std::vector<ModelSequence>& sequences = inputs[input].sequences;
  state.first_sequence = state.end_sequence = end;
  state.tokens = 0;
  state.ran = 0;
  while (state.first_sequence > 0) {
    const int64_t more = sequences[state.first_sequence - 1].valid();
    if (state.tokens > 0 && state.tokens + more > options.max_wave_tokens && RunsInParts(input)) break;
    state.tokens += more;
    --state.first_sequence;
  }
}

// Takes the next inputs that fit together, packs and embeds them.
absl::Status Pass::State::StartGroup() {
  layer = 0;
  prefix_done = shared_scores_ready = false;
  wave.clear();  // of a group that was dropped half-way, and what it leaves
  active.Clear();
  shared.Clear();
  prefixes.clear();
  unrecorded.clear();  // waits
  for (size_t i = group_begin; i < group_end; ++i) states[i].stop.reset();
  group_begin = group_end;
  int64_t tokens = 0;
  for (; group_end < states.size(); ++group_end) {
    const PassInput& state = states[group_end];
    const int64_t more = state.complete ? 0 : state.tokens;
    if (tokens > 0 && tokens + more > options.max_wave_tokens) break;
    tokens += more;
    if (!state.complete && state.first_sequence > 0) {  // its other parts are groups of their own
      if (tokens == more) ++group_end;
      break;
    }
  }
  PackedRows packed;
  for (size_t i = group_begin; i < group_end; ++i) {
    PassInput& state = states[i];
    if (state.complete) continue;
    state.shared_row = packed.rows();
    for (const ModelSequence& sequence : Sequences(static_cast<int64_t>(i))) packed.Add(sequence, 0);
    state.prefix = prefixes.emplace_back(MakeMember(static_cast<int64_t>(i), state.shared_row));
    const absl::Status flag = MakeCancelOnStop(i);
    if (!flag.ok()) return flag;
    if (inputs[i].max_edges >= state.result.pairs) continue;
    absl::StatusOr<std::unique_ptr<EdgeLedger>> ledger = model.backend().MakeLedger(inputs[i].max_edges);
    if (!ledger.ok()) return ledger.status();
    state.prefix->ledger = *std::move(ledger);
  }
  return shared.Embed(config, model.weights(), packed);
}

// Neighbours of one caller, the inputs of a request, have one flag.
absl::Status Pass::State::MakeCancelOnStop(size_t input) {
  if (input > group_begin && inputs[input - 1].stopping == inputs[input].stopping) {
    states[input].stop = states[input - 1].stop;
  }
  if (states[input].stop != nullptr) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<CancelOnStop>> made = CancelOnStop::Create(model.backend(), inputs[input].stopping);
  if (made.ok()) states[input].stop = *std::move(made);
  return made.status();
}

std::shared_ptr<PassMember> Pass::State::MakeMember(int64_t input, int64_t row) const {
  auto member = std::make_shared<PassMember>();
  member->input = input;
  member->row = row;
  member->result.layers.resize(config.num_hidden_layers * inputs[input].sequences.size());
  member->graph.resize(inputs[input].want_graph ? member->result.layers.size() : 0);
  return member;
}

// Picks the next samples of every input of the group that still wants some, and gives them rows that start as the
// shared ones.
absl::Status Pass::State::StartWave() {
  wave.clear();
  std::vector<int64_t> rows;
  for (size_t i = group_begin; i < group_end; ++i) {
    PassInput& state = states[i];
    if (state.complete) continue;
    const uint32_t done = state.ran;
    uint32_t count = state.wanted - done;
    if (inputs[i].tolerance > 0.0) count = std::min(count, std::max(done, kFirstToleranceWave));
    for (uint32_t s = 0; s < count; ++s) {
      const bool fits = static_cast<int64_t>(rows.size()) + state.tokens <= options.max_wave_tokens;
      if (!fits && !wave.empty()) break;
      wave.push_back(MakeMember(static_cast<int64_t>(i), static_cast<int64_t>(rows.size())));
      PassMember& member = *wave.back();
      member.sample = inputs[i].first_sample + done + s;
      if (state.prefix->ledger != nullptr) {
        absl::StatusOr<std::unique_ptr<EdgeLedger>> ledger = model.backend().CopyLedger(*state.prefix->ledger);
        if (!ledger.ok()) return ledger.status();
        member.ledger = *std::move(ledger);
      }
      for (int64_t r = 0; r < state.tokens; ++r) rows.push_back(state.shared_row + r);
    }
  }
  const absl::Status status = active.Resize(config, static_cast<int64_t>(rows.size()));
  if (!status.ok()) return status;
  return model.backend().GatherRows(shared.hidden(), rows, active.hidden());
}

absl::Status Pass::State::Step() {
  absl::Status status;
  if (GroupDone()) {
    status = StartGroup();
    if (!status.ok()) return status;
  }
  if (!prefix_done && layer < first_drawn) {
    status = RunLayer(prefixes, shared, false);
    ++layer;
    if (!status.ok() || layer < first_drawn) return status;
  }
  prefix_done = true;
  if (wave.empty()) {
    layer = first_drawn;
    status = StartWave();
    if (!status.ok()) return status;
  }
  status = RemoveCancelledMembers();
  if (!status.ok()) return status;
  if (!wave.empty() && layer < config.num_hidden_layers) {
    status = RunLayer(wave, active, layer == first_drawn);
    ++layer;
    if (!status.ok()) return status;
  }
  if (layer >= config.num_hidden_layers || wave.empty()) return FinishWave();
  return absl::OkStatus();
}

void Pass::State::Cancel(int64_t input, absl::Status reason) {
  PassInput& state = states[input];
  if (state.complete) return;
  state.complete = true;
  state.result.status = std::move(reason);
}

void Pass::State::CancelWhereCallersAsked() {
  for (size_t i = 0; i < states.size(); ++i) {
    if (inputs[i].stopping.stop_requested()) Cancel(static_cast<int64_t>(i), CancelledByCaller());
  }
}

// Classifies every member and hands its result to its input; inputs that have enough are finished.
absl::Status Pass::State::FinishWave() {
  absl::Status status;
  if (!wave.empty()) status = Classify(active, wave);
  if (status.ok()) status = RecordLayers();  // and drops those whose rows may be anything, whatever Classify found
  if (!status.ok()) return status;
  for (const auto& member : wave) {
    if (states[member->input].complete) continue;
    AddPrefix(*member);
    AddSample(*member);
  }
  for (size_t i = group_begin; i < group_end; ++i) {
    PassInput& state = states[i];
    if (state.complete) continue;
    std::vector<SampleResult>& samples = state.result.sample_results;
    const double tolerance = inputs[i].tolerance;
    const bool decides = state.end_sequence == inputs[i].sequences.size();  // how many samples there are
    const uint32_t converged = decides && tolerance > 0.0 ? ConvergedSamples(state.result, tolerance) : 0;
    if (converged > 0) {
      samples.resize(converged);
      state.wanted = state.ran = converged;
    }
    if (state.ran < state.wanted) continue;
    if (state.first_sequence > 0) {
      SelectSequences(static_cast<int64_t>(i), state.first_sequence);
      group_end = group_begin = i;  // the next part is the next group
      continue;
    }
    FinishInput(static_cast<int64_t>(i));
  }
  wave.clear();
  return absl::OkStatus();
}

void Pass::State::FinishInput(int64_t input) {
  PassInput& state = states[input];
  state.complete = true;
  if (!state.result.status.ok()) return;
  std::vector<SampleResult>& samples = state.result.sample_results;
  // Where nothing is drawn all samples are the one that ran; a tolerance is met at once.
  if (!model.Samples(inputs[input])) {
    const uint32_t wanted = inputs[input].samples;
    samples.resize(inputs[input].tolerance > 0.0 ? std::min(wanted, kFirstToleranceWave) : wanted, samples[0]);
  }
  state.result.samples = static_cast<uint32_t>(samples.size());
  CombineSamples(state.result);
}

Pass::Pass(const Model& model, const std::vector<ModelInput>& inputs, Options options)
    : state_(std::make_unique<State>(model, inputs, options)) {}

Pass::~Pass() = default;

bool Pass::done() const { return state_->Done(); }

absl::Status Pass::Step() {
  state_->CancelWhereCallersAsked();
  if (state_->Done()) return absl::OkStatus();
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

void Pass::Cancel(int64_t input, absl::Status reason) { state_->Cancel(input, std::move(reason)); }

InputResult Pass::TakeResult(int64_t input) { return std::move(state_->states[input].result); }

}  // namespace edgewise
