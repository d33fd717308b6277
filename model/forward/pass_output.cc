// The end of a pass: classifier, values or next-token distribution of every member, and what that adds to its input.
#include <algorithm>
#include <utility>

#include "model/checkpoint/weights.h"
#include "model/forward/pass_state.h"
#include "model/forward/softmax.h"

namespace edgewise {

void Pass::State::CheckFinite(PassMember& member, const float* row) {
  absl::Status& status = states[member.input].result.status;
  if (status.ok() && !AllFinite(row, config.num_labels)) status = NonFiniteOutput();
}

// causal-lm: how likely every scored token was, and the distribution of the token that follows the text.
absl::Status Pass::State::Score(Activations& rows, const PassMembers& members) {
  struct Row {
    PassMember* member;
    int32_t next;  // token id; -1: the one that follows
  };
  std::vector<Row> wanted;
  std::vector<int64_t> places;
  for (const auto& member : members) {
    int64_t row = member->row;
    for (const ModelSequence& window : Sequences(member->input)) {
      for (int32_t i = window.first_scored; i < window.valid(); ++i) {
        wanted.push_back({member.get(), window.token_ids[window.positions[i]]});
        places.push_back(row + i - 1);
      }
      row += window.valid();
    }
    if (states[member->input].end_sequence < inputs[member->input].sequences.size()) continue;  // the text goes on
    wanted.push_back({member.get(), -1});
    places.push_back(row - 1);
  }
  const size_t labels = config.num_labels;
  return rows.NextTokenLogits(config, model.weights(), places, Phase::kPrefill, [&](size_t i, const float* logits) {
    SampleResult& result = wanted[i].member->result;
    CheckFinite(*wanted[i].member, logits);
    if (wanted[i].next >= 0) {
      result.token_probabilities.push_back(SoftmaxOf(logits, labels, wanted[i].next));
    } else {
      result.logits.assign(logits, logits + labels);
      const std::vector<double> probabilities = Softmax(logits, labels);
      result.probabilities.assign(probabilities.begin(), probabilities.end());
    }
  });
}

absl::Status Pass::State::Classify(Activations& rows, const PassMembers& members) {
  if (config.task == ModelTask::kCausalLm) return Score(rows, members);
  std::vector<PooledSequence> sequences;
  for (const auto& member : members) {
    int64_t row = member->row;
    for (const ModelSequence& sequence : Sequences(member->input)) {
      sequences.push_back({row, sequence.valid()});
      row += sequence.valid();
    }
  }
  std::vector<float> logits;
  const absl::Status status = rows.Classify(config, model.weights(), sequences, logits);
  if (!status.ok()) return status;

  const int32_t labels = config.num_labels;
  const bool per_token = config.task == ModelTask::kTokenClassification;
  int64_t next = 0;  // row of `logits`
  for (const auto& ran : members) {
    PassMember& member = *ran;
    const ModelSequence& sequence = inputs[member.input].sequences[0];
    PassInput& state = states[member.input];
    const size_t size = static_cast<size_t>(state.result.rows) * labels;
    member.result.logits.assign(size, 0.0f);
    member.result.probabilities.assign(size, 0.0f);
    for (int32_t i = 0; i < (per_token ? sequence.valid() : 1); ++i, ++next) {
      const float* row = logits.data() + next * labels;
      const size_t out = static_cast<size_t>(per_token ? sequence.positions[i] : 0) * labels;
      CheckFinite(member, row);
      std::copy_n(row, labels, member.result.logits.begin() + static_cast<int64_t>(out));
      const std::vector<double> outputs =
          config.task == ModelTask::kRegression ? std::vector<double>(row, row + labels) : Softmax(row, labels);
      std::transform(outputs.begin(), outputs.end(), member.result.probabilities.begin() + static_cast<int64_t>(out),
                     [](double value) { return static_cast<float>(value); });
    }
  }
  return absl::OkStatus();
}

// What the layers that all samples of an input share add to each.
void Pass::State::AddPrefix(PassMember& member) const {
  const PassMember& prefix = *states[member.input].prefix;
  member.result.edges += prefix.result.edges;
  member.result.isolated += prefix.result.isolated;
  member.result.capped |= prefix.result.capped;
  const size_t layers = config.num_hidden_layers;
  for (size_t l = 0; l < member.result.layers.size(); ++l) {
    if (l % layers >= static_cast<size_t>(first_drawn)) continue;
    member.result.layers[l] = prefix.result.layers[l];
    if (!member.graph.empty()) member.graph[l] = prefix.graph[l];
  }
}

// A sample that ran, or what an earlier part of the text adds to it.
void Pass::State::AddSample(PassMember& member) {
  PassInput& state = states[member.input];
  std::vector<SampleResult>& samples = state.result.sample_results;
  const size_t index = state.ran++;
  if (index == samples.size()) {
    if (inputs[member.input].want_graph) state.result.graph = Graph{std::move(member.graph)};
    samples.push_back(std::move(member.result));
    return;
  }
  SampleResult& sample = samples[index];
  SampleResult& part = member.result;
  sample.token_probabilities.insert(sample.token_probabilities.begin(), part.token_probabilities.begin(),
                                    part.token_probabilities.end());
  sample.edges += part.edges;
  sample.isolated += part.isolated;
  const size_t layers = config.num_hidden_layers;
  for (size_t l = state.first_sequence * layers; l < state.end_sequence * layers; ++l) {
    sample.layers[l] = std::move(part.layers[l]);
    if (inputs[member.input].want_graph) state.result.graph->layers[l] = std::move(member.graph[l]);
  }
}

}  // namespace edgewise
