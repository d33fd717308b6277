#include "model/pass.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/activations.h"
#include "model/patterns.h"
#include "model/weights.h"

namespace edgewise {
namespace {

constexpr uint32_t kFirstToleranceWave = 4;  // no ensemble with a tolerance is smaller

// floor(remaining * w_layer / sum of w from layer on), but at least what is forced here and at most what leaves enough
// for what is forced later (DESIGN promise 2).
uint64_t Allowance(uint64_t remaining, const std::vector<double>& shares, int32_t layer, uint64_t forced_here,
                   uint64_t forced_later) {
  long double sum = 0.0L;
  for (size_t l = layer; l < shares.size(); ++l) sum += shares[l];
  const long double share = std::floor(static_cast<long double>(remaining) * (shares[layer] / sum));
  const uint64_t wanted = std::min(remaining, static_cast<uint64_t>(share));
  return std::min(std::max(wanted, forced_here), remaining - forced_later);
}

// One forward pass of one input: a member of the wave.
struct Member {
  int64_t input = 0;
  uint32_t sample = 0;       // index within the ensemble, first_sample included
  int64_t row = 0;           // first row of its first sequence among the wave's
  uint64_t remaining = kNoCap;
  SampleResult result;
  std::vector<std::vector<HeadEdges>> graph;  // [sides * layers][heads], when asked for
};

// What is known of one input across waves.
struct InputState {
  InputResult result;
  bool complete = false;
  uint32_t wanted = 0;           // forward passes to run
  int64_t shared_row = 0;        // first row of its first sequence among the shared rows
  int64_t tokens = 0;            // valid, over its sequences
  std::vector<std::vector<HeadEdges>> given;  // over valid tokens; empty: none
  Member prefix;                 // counts of the layers that the samples share
};

}  // namespace

struct Pass::State {
  State(const Model& model, const std::vector<ModelInput>& inputs, Options options);

  const Model& model;
  const ModelConfig& config;
  const std::vector<ModelInput>& inputs;
  const Options options;
  const int32_t first_drawn;  // layers before it are shared by an input's samples

  std::vector<InputState> states;
  Activations shared;            // rows of all inputs, once each
  std::vector<Member> prefixes;  // one per input while the shared layers run
  bool prefix_done = false;      // the shared layers have run
  bool shared_scores_ready = false;  // query, key, value and memberships of the first drawn layer
  std::vector<Member> wave;
  Activations active;            // rows of the wave
  int32_t layer = 0;             // next

  absl::Status Step();
  absl::Status StartPrefix();
  absl::Status StartWave();
  absl::Status RunLayer(std::vector<Member>& members, Activations& rows, bool from_shared);
  absl::Status Attend(std::vector<Member>& members, const Activations& source, Activations& rows, bool from_shared);
  void Record(Member& member, uint32_t side, const AttentionReport& report);
  absl::Status DropDeadMembers();
  absl::Status FinishWave();
  absl::Status Classify(Activations& rows, std::vector<Member>& members);
  void FinishInput(int64_t input);
  bool Done() const {
    return std::all_of(states.begin(), states.end(), [](const InputState& state) { return state.complete; });
  }
};

Pass::State::State(const Model& model, const std::vector<ModelInput>& inputs, Options options)
    : model(model),
      config(model.config()),
      inputs(inputs),
      options(options),
      first_drawn(FirstDrawnLayer(model.config())),
      shared(model.backend()),
      active(model.backend()) {
  for (const ModelInput& input : inputs) {
    InputState& state = states.emplace_back();
    state.wanted = model.Samples(input) ? input.samples : 1;
    for (const ModelSequence& sequence : input.sequences) state.tokens += sequence.valid();
    if (input.graph.has_value() && !input.dense) {
      for (size_t l = 0; l < input.graph->layers.size(); ++l) {
        const ModelSequence& sequence = input.sequences[l / config.num_hidden_layers];
        auto& heads = state.given.emplace_back();
        for (const HeadEdges& head : input.graph->layers[l]) heads.push_back(ToValidTokens(head, sequence));
      }
    }
    state.result.pairs = model.Pairs(input);
    state.result.labels = config.num_labels;
    state.result.rows = config.task == Task::kTokenClassification ? input.sequences[0].length() : 1;
  }
}

// Packs all inputs and embeds them.
absl::Status Pass::State::StartPrefix() {
  std::vector<int32_t> ids, positions;
  int64_t tokens = 0;
  for (const InputState& state : states) tokens += state.complete ? 0 : state.tokens;
  ids.reserve(tokens);
  positions.reserve(tokens);
  for (size_t i = 0; i < inputs.size(); ++i) {
    InputState& state = states[i];
    if (state.complete) continue;
    state.shared_row = static_cast<int64_t>(ids.size());
    for (const ModelSequence& sequence : inputs[i].sequences) {
      for (int32_t position : sequence.positions) {
        ids.push_back(sequence.token_ids[position]);
        positions.push_back(position);
      }
    }
    Member& member = prefixes.emplace_back();
    member.input = static_cast<int64_t>(i);
    member.row = state.shared_row;
    member.remaining = inputs[i].max_edges >= state.result.pairs ? kNoCap : inputs[i].max_edges;
    member.result.layers.resize(config.num_hidden_layers * inputs[i].sequences.size());
    member.graph.resize(inputs[i].want_graph ? member.result.layers.size() : 0);
  }
  const absl::Status status = shared.Resize(config, static_cast<int64_t>(ids.size()));
  if (!status.ok()) return status;
  const ModelWeights& weights = model.weights();
  const ConstMatrix position = weights.position.data() == nullptr
                                   ? ConstMatrix()
                                   : weights.position.AsMatrix(config.max_position_embeddings, config.hidden_size);
  return model.backend().Embed(weights.word.AsMatrix(config.vocab_size, config.hidden_size), position, ids, positions,
                               shared.hidden());
}

// Picks the next samples of every input that still wants some, and gives them rows that start as the shared ones.
absl::Status Pass::State::StartWave() {
  wave.clear();
  std::vector<int64_t> rows;
  for (size_t i = 0; i < inputs.size(); ++i) {
    InputState& state = states[i];
    if (state.complete) continue;
    const uint32_t done = static_cast<uint32_t>(state.result.sample_results.size());
    uint32_t count = state.wanted - done;
    if (inputs[i].tolerance > 0.0) count = std::min(count, std::max(done, kFirstToleranceWave));
    for (uint32_t s = 0; s < count; ++s) {
      const bool fits = static_cast<int64_t>(rows.size()) + state.tokens <= options.max_wave_tokens;
      if (!fits && !wave.empty()) break;
      Member& member = wave.emplace_back(state.prefix);
      member.sample = inputs[i].first_sample + done + s;
      member.row = static_cast<int64_t>(rows.size());
      for (int64_t r = 0; r < state.tokens; ++r) rows.push_back(state.shared_row + r);
    }
  }
  const absl::Status status = active.Resize(config, static_cast<int64_t>(rows.size()));
  if (!status.ok()) return status;
  return model.backend().GatherRows(shared.hidden(), rows, active.hidden());
}

absl::Status Pass::State::Step() {
  if (layer == 0 && prefixes.empty() && !prefix_done) {
    const absl::Status status = StartPrefix();
    if (!status.ok()) return status;
  }
  if (!prefix_done && layer < first_drawn) {
    const absl::Status status = RunLayer(prefixes, shared, false);
    ++layer;
    if (!status.ok() || layer < first_drawn) return status;
  }
  if (!prefix_done) {
    for (Member& member : prefixes) states[member.input].prefix = std::move(member);
    prefixes.clear();
    prefix_done = true;
  }
  if (wave.empty()) {
    layer = first_drawn;
    const absl::Status status = StartWave();
    if (!status.ok()) return status;
  }
  absl::Status status = DropDeadMembers();
  if (!status.ok()) return status;
  if (!wave.empty() && layer < config.num_hidden_layers) {
    status = RunLayer(wave, active, layer == first_drawn);
    ++layer;
    if (!status.ok()) return status;
  }
  if (layer >= config.num_hidden_layers || wave.empty()) return FinishWave();
  return absl::OkStatus();
}

// Rows of dropped inputs leave the wave. Not before the first drawn layer has run: until then rows still equal the
// shared ones, and the next layer skips what has no member.
absl::Status Pass::State::DropDeadMembers() {
  const auto dead = [&](const Member& member) { return states[member.input].complete; };
  if (std::none_of(wave.begin(), wave.end(), dead)) return absl::OkStatus();
  std::erase_if(wave, dead);
  std::vector<int64_t> rows;
  for (Member& member : wave) {
    const int64_t first = member.row;
    member.row = static_cast<int64_t>(rows.size());
    for (int64_t r = 0; r < states[member.input].tokens; ++r) rows.push_back(first + r);
  }
  return active.Compact(rows);
}

// One layer of all members. `from_shared`: query, key, value and memberships come from the shared rows.
absl::Status Pass::State::RunLayer(std::vector<Member>& members, Activations& rows, bool from_shared) {
  const LayerWeights& weights = model.weights().layer(layer);
  const bool pre = config.norm_position == NormPosition::kPre;
  const bool draws = config.attention[layer].kind == AttentionKind::kSbm;
  Activations& source = from_shared ? shared : rows;
  absl::Status status;
  if (!from_shared || !shared_scores_ready) {
    status = source.ProjectAttention(weights, config, pre, draws);
    if (!status.ok()) return status;
    shared_scores_ready |= from_shared;
  }
  status = rows.ReserveAttended();
  if (status.ok()) status = Attend(members, source, rows, from_shared);
  if (!status.ok()) return status;
  return rows.FinishLayer(weights, config, pre);
}

absl::Status Pass::State::Attend(std::vector<Member>& members, const Activations& source, Activations& rows,
                                 bool from_shared) {
  std::vector<AttentionProblem> problems;
  std::vector<EdgeCap> caps;
  std::vector<uint64_t> forced;  // of each cap
  size_t sides = 0;
  for (const Member& member : members) sides += inputs[member.input].sequences.size();
  std::vector<AttentionReport> reports(sides);
  for (Member& member : members) {
    const ModelInput& input = inputs[member.input];
    const InputState& state = states[member.input];
    int32_t cap = -1;
    if (member.remaining != kNoCap) {
      uint64_t forced_later = 0;
      for (int32_t l = layer + 1; l < config.num_hidden_layers; ++l) forced_later += ForcedEdges(config, input, l);
      cap = static_cast<int32_t>(caps.size());
      caps.push_back({Allowance(member.remaining, config.budget_shares, layer, ForcedEdges(config, input, layer),
                                forced_later)});
    }
    int64_t offset = 0;
    for (uint32_t side = 0; side < input.sequences.size(); ++side) {
      const ModelSequence& sequence = input.sequences[side];
      AttentionReport& report = reports[problems.size()];
      report.want_expected = input.want_expected;
      report.want_key_degrees = input.want_key_degrees;
      report.want_graph = input.want_graph;
      AttentionProblem& problem = problems.emplace_back();
      problem.first_row = (from_shared ? state.shared_row : member.row) + offset;
      problem.tokens = sequence.valid();
      problem.out_row = member.row + offset;
      problem.positions = sequence.valid() == sequence.length() ? nullptr : sequence.positions.data();
      problem.pattern = MakePattern(config, input, state.given, layer, side, member.sample);
      problem.cap = cap;
      problem.report = &report;
      offset += sequence.valid();
    }
  }
  const absl::Status status =
      model.backend().Attend(source.AttentionView(config), problems, caps, rows.attended());
  if (!status.ok()) return status;

  size_t problem = 0;
  for (Member& member : members) {
    const bool budgeted = member.remaining != kNoCap;
    if (budgeted) member.result.capped |= caps[problems[problem].cap].capped;
    for (uint32_t side = 0; side < inputs[member.input].sequences.size(); ++side) {
      Record(member, side, reports[problem++]);
    }
  }
  return absl::OkStatus();
}

// Adds what one layer reports of one sequence to its member.
void Pass::State::Record(Member& member, uint32_t side, const AttentionReport& report) {
  const ModelSequence& sequence = inputs[member.input].sequences[side];
  const size_t index = side * config.num_hidden_layers + layer;
  std::vector<HeadCounts>& heads = member.result.layers[index];
  heads.clear();
  for (const HeadReport& head : report.heads) {
    HeadCounts& counts = heads.emplace_back();
    counts.edges = head.edges;
    counts.isolated = head.isolated;
    // A multiple of 2^-20, so that sums over samples are exact and parts of an ensemble merge to the whole.
    counts.expected = std::round(head.expected * 1048576.0) / 1048576.0;
    member.result.edges += head.edges;
    member.result.isolated += head.isolated;
    if (member.remaining != kNoCap) member.remaining -= head.edges;
    if (!head.key_degrees.empty()) {
      counts.key_degrees.assign(sequence.length(), 0);
      for (size_t i = 0; i < head.key_degrees.size(); ++i) {
        counts.key_degrees[sequence.positions[i]] = head.key_degrees[i];
      }
    }
    if (report.want_graph) member.graph[index].push_back(ToPositions(head.graph, sequence));
  }
}

// Classifies every member and hands its result to its input; inputs that have enough are finished.
absl::Status Pass::State::FinishWave() {
  if (!wave.empty()) {
    const absl::Status status = Classify(active, wave);
    if (!status.ok()) return status;
  }
  for (Member& member : wave) {
    InputState& state = states[member.input];
    if (inputs[member.input].want_graph) state.result.graph = Graph{std::move(member.graph)};
    state.result.sample_results.push_back(std::move(member.result));
  }
  for (size_t i = 0; i < states.size(); ++i) {
    InputState& state = states[i];
    if (state.complete) continue;
    std::vector<SampleResult>& samples = state.result.sample_results;
    const double tolerance = inputs[i].tolerance;
    const uint32_t converged =
        tolerance > 0.0 ? ConvergedSamples(samples, state.result.rows, state.result.labels, tolerance) : 0;
    if (converged > 0) samples.resize(converged);
    if (converged > 0 || samples.size() == state.wanted) FinishInput(static_cast<int64_t>(i));
  }
  wave.clear();
  return absl::OkStatus();
}

absl::Status Pass::State::Classify(Activations& rows, std::vector<Member>& members) {
  std::vector<PooledSequence> sequences;
  for (const Member& member : members) {
    int64_t row = member.row;
    for (const ModelSequence& sequence : inputs[member.input].sequences) {
      sequences.push_back({row, sequence.valid()});
      row += sequence.valid();
    }
  }
  std::vector<float> logits;
  const absl::Status status = rows.Classify(config, model.weights(), sequences, logits);
  if (!status.ok()) return status;

  const int32_t labels = config.num_labels;
  const bool per_token = config.task == Task::kTokenClassification;
  int64_t next = 0;  // row of `logits`
  for (Member& member : members) {
    const ModelSequence& sequence = inputs[member.input].sequences[0];
    InputState& state = states[member.input];
    const size_t size = static_cast<size_t>(state.result.rows) * labels;
    member.result.logits.assign(size, 0.0f);
    member.result.probabilities.assign(size, 0.0f);
    for (int32_t i = 0; i < (per_token ? sequence.valid() : 1); ++i, ++next) {
      const float* row = logits.data() + next * labels;
      const size_t out = static_cast<size_t>(per_token ? sequence.positions[i] : 0) * labels;
      double total = 0.0;
      const double largest = *std::max_element(row, row + labels);
      for (int32_t c = 0; c < labels; ++c) total += std::exp(row[c] - largest);
      for (int32_t c = 0; c < labels; ++c) {
        member.result.logits[out + c] = row[c];
        member.result.probabilities[out + c] = static_cast<float>(std::exp(row[c] - largest) / total);
      }
      if (!std::isfinite(total) && state.result.status.ok()) {
        state.result.status = absl::InternalError("the model gave a number that is not finite (NON_FINITE_OUTPUT)");
      }
    }
  }
  return absl::OkStatus();
}

void Pass::State::FinishInput(int64_t input) {
  InputState& state = states[input];
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

absl::Status Pass::Step() { return state_->Done() ? absl::OkStatus() : state_->Step(); }

void Pass::Drop(int64_t input, absl::Status reason) {
  InputState& state = state_->states[input];
  if (state.complete) return;
  state.complete = true;
  state.result.status = std::move(reason);
}

int64_t Pass::live_tokens() const {
  int64_t tokens = 0;
  for (const Member& member : state_->wave) tokens += state_->states[member.input].tokens;
  if (!state_->wave.empty()) return tokens;
  for (const InputState& state : state_->states) tokens += state.complete ? 0 : state.tokens;
  return tokens;
}

InputResult Pass::TakeResult(int64_t input) { return std::move(state_->states[input].result); }

}  // namespace edgewise
