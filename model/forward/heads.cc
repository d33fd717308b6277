#include "model/forward/heads.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "model/checkpoint/weights.h"
#include "model/forward/softmax.h"

namespace edgewise {
namespace {

constexpr int64_t kMaxLogits = 1 << 22;  // floats

// Rows that have logits over the vocabulary at a time.
int64_t LogitsAtOnce(const ModelConfig& config, int64_t rows) {
  return std::min(rows, std::max<int64_t>(1, kMaxLogits / config.vocab_size));
}

// Whether outputs are distributions over the vocabulary, of rows that are gathered.
bool OverVocabulary(const ModelConfig& config) {
  return config.task == ModelTask::kCausalLm || config.task == ModelTask::kFillMask;
}

// Features of pairs, whose sequences alternate in `rows`: the first and the second of each pair.
absl::StatusOr<Matrix> Pairs(Backend& backend, Matrix rows, Buffer& paired) {
  const int64_t pairs = rows.rows / 2, stride = 2 * rows.columns;
  ASSIGN_OR_RETURN(paired, backend.Allocate(pairs * 4 * rows.columns));
  const Matrix out = paired.AsMatrix(pairs, 4 * rows.columns);
  RETURN_IF_ERROR(backend.PairFeatures(ConstMatrix(rows.data, pairs, rows.columns, stride),
                                       ConstMatrix(rows.data + rows.columns, pairs, rows.columns, stride), out));
  return out;
}

// The mean row of each sequence, of those that the wave has left.
absl::StatusOr<Matrix> PoolMean(Wave& wave, Matrix rows, Buffer& pooled) {
  const ModelConfig& config = wave.model().config();
  Backend& backend = wave.model().backend();
  std::pmr::vector<int64_t> offsets(wave.scratch());
  std::pmr::vector<float> divisors(wave.scratch());
  int64_t row = 0;
  for (const Member* member : wave.samples()) {
    for (const QueryRange& range : member->input->ranges) {
      const int32_t tokens = range.sequence->valid() - range.sequence->pooled_from;
      offsets.push_back(std::exchange(row, row + tokens));
      divisors.push_back(
          static_cast<float>(config.pooling == Pooling::kMeanMaxLength ? config.max_position_embeddings : tokens));
    }
  }
  const auto sequences = static_cast<int64_t>(offsets.size());
  offsets.push_back(row);
  ASSIGN_OR_RETURN(pooled, backend.Allocate(sequences * config.hidden_size));
  const Matrix out = pooled.AsMatrix(sequences, config.hidden_size);
  RETURN_IF_ERROR(backend.PoolMean(rows, offsets, divisors, out));
  return out;
}

// Final norm, pooling and classifier: logits [sequences or pairs, labels], or [rows of all sequences, labels] for
// token-classification, on the host; `features`: the rows that the classifier sees. embedding: the logits are the
// vectors.
absl::Status ClassifierLogits(Wave& wave, std::pmr::vector<float>& features, std::pmr::vector<float>& logits) {
  const ModelConfig& config = wave.model().config();
  const ModelWeights& weights = wave.model().weights();
  Backend& backend = wave.model().backend();
  ASSIGN_OR_RETURN(Matrix input, wave.rows().FinalNorm());
  Buffer pooled, paired, hidden, output;
  // In models that read one row of a sequence only these rows are left.
  if (config.task != ModelTask::kTokenClassification && !ReadsOneRow(config)) {
    ASSIGN_OR_RETURN(input, PoolMean(wave, input, pooled));
  }
  if (config.task == ModelTask::kPairClassification) {
    ASSIGN_OR_RETURN(input, Pairs(backend, input, paired));
  }
  features.resize(input.rows * input.columns);
  RETURN_IF_ERROR(backend.Download(input.data, features));
  if (weights.classifier_hidden != nullptr) {
    ASSIGN_OR_RETURN(hidden, backend.Allocate(input.rows * config.classifier_hidden_size));
    const Matrix out = hidden.AsMatrix(input.rows, config.classifier_hidden_size);
    RETURN_IF_ERROR(backend.Linear(*weights.classifier_hidden, input, out, false));
    if (config.classifier_norm) RETURN_IF_ERROR(ApplyNorm(wave.model(), weights.classifier_norm, out, out));
    input = out;
  }
  Buffer dense[2];  // the last two layers' rows
  for (size_t l = 0; l < config.dense.size(); ++l) {
    ASSIGN_OR_RETURN(dense[l % 2], backend.Allocate(input.rows * config.dense[l].out_features));
    const Matrix out = dense[l % 2].AsMatrix(input.rows, config.dense[l].out_features);
    RETURN_IF_ERROR(backend.Linear(*weights.dense[l], input, out, false));
    input = out;
  }
  logits.resize(input.rows * config.num_labels);
  if (config.task == ModelTask::kEmbedding) return backend.Download(input.data, logits);
  ASSIGN_OR_RETURN(output, backend.Allocate(input.rows * config.num_labels));
  const Matrix out = output.AsMatrix(input.rows, config.num_labels);
  RETURN_IF_ERROR(backend.Linear(*weights.classifier_output, input, out, false));
  return backend.Download(out.data, logits);
}

// The rows of the tokens where they are wanted, on the host; then those of the head are left.
absl::Status TakeTokenRows(Wave& wave) {
  const auto wanted = [](const Member* member) { return member->input->token_rows; };
  if (std::none_of(wave.samples().begin(), wave.samples().end(), wanted)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Matrix rows, wave.rows().FinalNorm());
  for (Member* member : wave.samples()) {
    if (!wanted(member)) continue;
    std::vector<float>& out = member->result->token_rows;
    out.resize(member->input->rows() * rows.columns);
    RETURN_IF_ERROR(wave.model().backend().Download(rows.data + member->row * rows.columns, out));
    member->finite &= AllFinite(out.data(), out.size());
  }
  return wave.KeepHeadRows();
}

// Copies a row of logits, and its probabilities, to row `row` of the member's result.
void FillRow(Member& member, int64_t row, const float* logits, std::span<double> probabilities,
             bool multi_label = false) {
  const auto out = row * static_cast<int64_t>(probabilities.size());
  std::copy_n(logits, probabilities.size(), member.result->logits.begin() + out);
  multi_label ? Sigmoids(logits, probabilities) : Softmax(logits, probabilities);
  std::copy(probabilities.begin(), probabilities.end(), member.result->probabilities.begin() + out);
}

// Calls visit(i, logits that row places[i] gives [vocab_size], host) for every i in order. Runs a few rows at a time:
// memory does not grow with rows x vocabulary. Waits for the backend.
absl::Status VocabularyLogits(Wave& wave, std::span<const int64_t> places,
                              absl::FunctionRef<void(size_t, const float*)> visit) {
  std::pmr::vector<float> host(wave.scratch());
  return VisitLogits(wave, places, Phase::kPrefill, [&](size_t first, Matrix logits) {
    host.resize(logits.rows * logits.columns);
    RETURN_IF_ERROR(wave.model().backend().Download(logits.data, host));
    for (int64_t r = 0; r < logits.rows; ++r) visit(first + r, host.data() + r * logits.columns);
    return absl::OkStatus();
  });
}

// fill-mask: the distribution at every mask token.
absl::Status FillMasks(Wave& wave) {
  const ModelConfig& config = wave.model().config();
  std::pmr::vector<std::pair<Member*, int64_t>> wanted(wave.scratch());  // and the row of its result
  std::pmr::vector<int64_t> places(wave.scratch());
  for (Member* member : wave.samples()) {
    const ModelSequence& sequence = *member->input->ranges[0].sequence;
    for (int32_t i = 0, row = 0; i < sequence.valid(); ++i) {
      if (sequence.token_ids[sequence.positions[i]] != config.mask_token_id) continue;
      wanted.emplace_back(member, row++);
      places.push_back(member->row + i);
    }
  }
  std::pmr::vector<double> probabilities(config.num_labels, wave.scratch());
  return VocabularyLogits(wave, places, [&](size_t i, const float* logits) {
    const auto& [member, row] = wanted[i];
    member->finite &= AllFinite(logits, probabilities.size());
    FillRow(*member, row, logits, probabilities);
  });
}

// causal-lm: how likely every scored token was, and the distribution of the token that follows the text.
absl::Status Score(Wave& wave) {
  struct Row {
    Member* member;
    double* probability;  // out: of the token `next`; null: all of the token that follows the text
    int32_t next;
    TokenAlternatives* alternatives;  // out; null: not wanted
  };
  std::pmr::vector<Row> wanted(wave.scratch());
  std::pmr::vector<int64_t> places(wave.scratch());
  for (Member* member : wave.samples()) {
    const RunningInput& input = *member->input;
    double* probability = member->result->token_probabilities.data() + input.first_scored;
    std::vector<TokenAlternatives>& alternatives = member->result->alternatives;
    if (input.alternatives > 0) alternatives.resize(member->result->token_probabilities.size());
    size_t scored = input.first_scored;
    int64_t row = member->row;
    for (const QueryRange& range : input.ranges) {
      const ModelSequence& window = *range.sequence;
      for (int32_t i = window.first_scored; i < window.valid(); ++i) {
        wanted.push_back({member, probability++, window.token_ids[window.positions[i]],
                          input.alternatives > 0 ? &alternatives[scored++] : nullptr});
        places.push_back(row + i - 1);
      }
      row += window.valid();
    }
    if (!input.next_token) continue;
    wanted.push_back({member, nullptr, -1, nullptr});
    places.push_back(row - 1);
  }
  const size_t labels = wave.model().config().num_labels;
  const int32_t pad = wave.model().config().pad_token_id;
  std::pmr::vector<double> probabilities(labels, wave.scratch());
  return VocabularyLogits(wave, places, [&](size_t i, const float* logits) {
    Member& member = *wanted[i].member;
    member.finite &= AllFinite(logits, labels);
    if (TokenAlternatives* const alternatives = wanted[i].alternatives) {
      Softmax(logits, probabilities);
      *wanted[i].probability = probabilities[static_cast<size_t>(wanted[i].next)];
      *alternatives = MostProbable(probabilities, member.input->alternatives, pad);
    } else if (wanted[i].probability != nullptr) {
      *wanted[i].probability = SoftmaxOf(logits, labels, wanted[i].next);
    } else {
      FillRow(member, 0, logits, probabilities);
    }
  });
}

}  // namespace

int64_t HeadFloats(const ModelConfig& config, int64_t sequences) {
  if (OverVocabulary(config)) {
    const int64_t row = static_cast<int64_t>(config.hidden_size) + config.classifier_hidden_size + config.vocab_size;
    return LogitsAtOnce(config, sequences) * row;
  }
  const bool pairs = config.task == ModelTask::kPairClassification;
  const int64_t pooled = config.task == ModelTask::kTokenClassification ? 0 : sequences * config.hidden_size;
  if (config.task == ModelTask::kEmbedding) {
    int64_t columns = config.classifier_hidden_size;
    for (const DenseLayer& layer : config.dense) columns += layer.out_features;
    return pooled + sequences * columns;
  }
  const int64_t outputs = pairs ? sequences / 2 : sequences;
  return pooled + outputs * ((pairs ? 4 * config.hidden_size : 0) + config.classifier_hidden_size + config.num_labels);
}

absl::Status VisitLogits(Wave& wave, std::span<const int64_t> places, Phase phase,
                         absl::FunctionRef<absl::Status(size_t, Matrix)> visit) {
  if (places.empty()) return absl::OkStatus();
  const ModelConfig& config = wave.model().config();
  const ModelWeights& weights = wave.model().weights();
  Backend& backend = wave.model().backend();
  const int64_t vocabulary = config.vocab_size;
  const auto wanted = static_cast<int64_t>(places.size());
  const int64_t most = LogitsAtOnce(config, wanted);
  ASSIGN_OR_RETURN(const Buffer last_rows, backend.Allocate(most * config.hidden_size));
  ASSIGN_OR_RETURN(const Buffer logit_rows, backend.Allocate(most * vocabulary));
  Buffer hidden_rows;
  if (weights.classifier_hidden != nullptr) {
    ASSIGN_OR_RETURN(hidden_rows, backend.Allocate(most * config.classifier_hidden_size));
  }
  for (int64_t first = 0; first < wanted; first += most) {
    const int64_t chunk = std::min(most, wanted - first);
    const Matrix last = last_rows.AsMatrix(chunk, config.hidden_size);
    const Matrix logits = logit_rows.AsMatrix(chunk, vocabulary);
    RETURN_IF_ERROR(backend.GatherRows(wave.rows().hidden(), places.subspan(first, chunk), last));
    if (config.norm_position == NormPosition::kPre) {
      RETURN_IF_ERROR(ApplyNorm(wave.model(), weights.final_norm, last, last));
    }
    Matrix input = last;
    if (weights.classifier_hidden != nullptr) {
      input = hidden_rows.AsMatrix(chunk, config.classifier_hidden_size);
      RETURN_IF_ERROR(backend.Linear(*weights.classifier_hidden, last, input, false, phase));
    }
    if (config.classifier_norm) {
      RETURN_IF_ERROR(ApplyNorm(wave.model(), weights.classifier_norm, input, input));
    }
    const LinearWeights& output = weights.lm_head != nullptr ? *weights.lm_head : *weights.classifier_output;
    RETURN_IF_ERROR(backend.Linear(output, input, logits, false, phase));
    RETURN_IF_ERROR(visit(static_cast<size_t>(first), logits));
  }
  return absl::OkStatus();
}

absl::Status ComputeOutputs(Wave& wave) {
  const ModelConfig& config = wave.model().config();
  if (config.task == ModelTask::kCausalLm) return Score(wave);
  if (config.task == ModelTask::kFillMask) return FillMasks(wave);
  std::pmr::vector<float> features(wave.scratch()), logits(wave.scratch());
  RETURN_IF_ERROR(TakeTokenRows(wave));
  RETURN_IF_ERROR(ClassifierLogits(wave, features, logits));
  const int32_t labels = config.num_labels;
  const size_t width = features.size() / (logits.size() / labels);
  const bool per_token = config.task == ModelTask::kTokenClassification;
  const float *row = logits.data(), *seen = features.data();
  std::pmr::vector<double> probabilities(labels, wave.scratch());
  for (Member* member : wave.samples()) {
    const ModelSequence& sequence = *member->input->ranges[0].sequence;
    for (int32_t i = 0; i < (per_token ? sequence.valid() : 1); ++i, row += labels, seen += width) {
      // A ReLU turns NaN into 0, so numbers that are not finite are looked for before the classifier too.
      member->finite &= AllFinite(seen, width) && AllFinite(row, labels);
      if (GivesValues(config.task)) {
        std::copy_n(row, labels, member->result->logits.begin());
        std::transform(row, row + labels, member->result->probabilities.begin(),
                       [&](float logit) { return config.sigmoid ? static_cast<float>(Sigmoid(logit)) : logit; });
      } else {
        FillRow(*member, per_token ? sequence.positions[i] : 0, row, probabilities, config.multi_label);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace edgewise
