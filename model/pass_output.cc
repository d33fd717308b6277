// The end of a pass: classifier, values or next-token distribution of every member.
#include <algorithm>

#include "model/pass_state.h"
#include "model/softmax.h"
#include "model/weights.h"

namespace edgewise {

void Pass::State::CheckFinite(PassMember& member, const float* row) {
  absl::Status& status = states[member.input].result.status;
  if (status.ok() && !AllFinite(row, config.num_labels)) status = NonFiniteOutput();
}

// causal-lm: how likely every scored token was, and the distribution of the token that follows the text.
absl::Status Pass::State::Score(Activations& rows, std::vector<PassMember>& members) {
  struct Row {
    PassMember* member;
    int32_t next;  // token id; -1: the one that follows
  };
  std::vector<Row> wanted;
  std::vector<int64_t> places;
  for (PassMember& member : members) {
    member.result.token_probabilities.clear();
    int64_t row = member.row;
    for (const ModelSequence& window : Sequences(member.input)) {
      for (int32_t i = window.first_scored; i < window.valid(); ++i) {
        wanted.push_back({&member, window.token_ids[window.positions[i]]});
        places.push_back(row + i - 1);
      }
      row += window.valid();
    }
    if (states[member.input].end_sequence < inputs[member.input].sequences.size()) continue;  // the text goes on
    wanted.push_back({&member, -1});
    places.push_back(row - 1);
  }
  const size_t labels = config.num_labels;
  return rows.NextTokenLogits(config, model.weights(), places, RowCount::kMany, [&](size_t i, const float* logits) {
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

absl::Status Pass::State::Classify(Activations& rows, std::vector<PassMember>& members) {
  if (config.task == Task::kCausalLm) return Score(rows, members);
  std::vector<PooledSequence> sequences;
  for (const PassMember& member : members) {
    int64_t row = member.row;
    for (const ModelSequence& sequence : Sequences(member.input)) {
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
  for (PassMember& member : members) {
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
          config.task == Task::kRegression ? std::vector<double>(row, row + labels) : Softmax(row, labels);
      std::transform(outputs.begin(), outputs.end(), member.result.probabilities.begin() + static_cast<int64_t>(out),
                     [](double value) { return static_cast<float>(value); });
    }
  }
  return absl::OkStatus();
}

}  // namespace edgewise
