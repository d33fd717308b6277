#include "model/forward/heads.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "model/checkpoint/weights.h"
#include "model/forward/softmax.h"
#include "text/status_macros.h"

namespace edgewise {
namespace {

constexpr int64_t kMaxLogits = 1 << 22;  // floats

// Rows that have logits over the vocabulary at a time.
int64_t LogitsAtOnce(const ModelConfig& config, int64_t rows) {
  return std::min(rows, std::max<int64_t>(1, kMaxLogits / config.vocab_size));
}

// Floats of each buffer of a classifier, 0 where it has none. `outputs`: rows of logits.
struct ClassifierFloats {
  int64_t pooled, paired, hidden, output;
};
ClassifierFloats FloatsOf(const ModelConfig& config, int64_t sequences, int64_t outputs) {
  return {config.task == ModelTask::kTokenClassification ? 0 : sequences * config.hidden_size,
          config.task == ModelTask::kPairClassification ? outputs * 4 * config.hidden_size : 0,
          outputs * config.classifier_hidden_size, outputs * config.num_labels};
}

// Pooled rows of the sequences, or features of their pairs.
absl::StatusOr<Matrix> Pool(const Model& model, Matrix rows, const Members& members, Buffer& pooled, Buffer& paired) {
  const ModelConfig& config = model.config();
  Backend& backend = model.backend();
  std::vector<int64_t> offsets;
  std::vector<float> divisors;
  for (const auto& member : members) {
    int64_t row = member->row;
    for (const QueryRange& range : member->input->ranges) {
      const int32_t tokens = range.sequence->valid();
      offsets.push_back(std::exchange(row, row + tokens));
      divisors.push_back(
          static_cast<float>(config.pooling == Pooling::kMeanMaxLength ? config.max_position_embeddings : tokens));
    }
  }
  const int64_t count = static_cast<int64_t>(offsets.size());
  Matrix out = rows;  // Pooling::kCls: the first row of each sequence
  if (config.pooling != Pooling::kCls) {
    out = pooled.AsMatrix(count, config.hidden_size);
    offsets.push_back(rows.rows);
    RETURN_IF_ERROR(backend.PoolMean(rows, offsets, divisors, out));
  }
  if (config.task != ModelTask::kPairClassification) return out;
  // Sequences alternate: first and second of each pair.
  const int64_t stride = 2 * out.columns;
  const Matrix pairs = paired.AsMatrix(count / 2, 4 * out.columns);
  RETURN_IF_ERROR(backend.PairFeatures(ConstMatrix(out.data, count / 2, out.columns, stride),
                                       ConstMatrix(out.data + out.columns, count / 2, out.columns, stride), pairs));
  return pairs;
}

// Final norm, pooling and classifier: logits [sequences or pairs, labels], or [rows of all sequences, labels] for
// token-classification, on the host; `features`: the rows that the classifier sees.
absl::Status ClassifierLogits(const Model& model, Activations& rows, const Members& members,
                              std::vector<float>& features, std::vector<float>& logits) {
  const ModelConfig& config = model.config();
  const ModelWeights& weights = model.weights();
  Backend& backend = model.backend();
  ASSIGN_OR_RETURN(Matrix input, rows.FinalNorm());
  const bool per_token = config.task == ModelTask::kTokenClassification;
  const int64_t count = static_cast<int64_t>(members.size());
  const int64_t outputs = per_token ? rows.rows() : count;
  const ClassifierFloats floats =
      FloatsOf(config, config.task == ModelTask::kPairClassification ? 2 * count : count, outputs);
  Buffer pooled, paired, hidden, output;
  for (const auto& [buffer, size] : {std::pair(&pooled, floats.pooled), std::pair(&paired, floats.paired),
                                     std::pair(&hidden, floats.hidden), std::pair(&output, floats.output)}) {
    if (size == 0) continue;
    ASSIGN_OR_RETURN(*buffer, backend.Allocate(size));
  }
  if (!per_token) {
    ASSIGN_OR_RETURN(input, Pool(model, input, members, pooled, paired));
  }
  features.resize(input.rows * input.columns);
  RETURN_IF_ERROR(backend.Download(input.data, features));
  if (weights.classifier_hidden != nullptr) {
    const Matrix out = hidden.AsMatrix(outputs, config.classifier_hidden_size);
    RETURN_IF_ERROR(backend.Linear(*weights.classifier_hidden, input, out, false));
    input = out;
  }
  const Matrix out = output.AsMatrix(outputs, config.num_labels);
  RETURN_IF_ERROR(backend.Linear(*weights.classifier_output, input, out, false));
  logits.resize(outputs * config.num_labels);
  return backend.Download(out.data, logits);
}

// causal-lm: how likely every scored token was, and the distribution of the token that follows the text.
absl::Status Score(const Model& model, const Activations& rows, const Members& members) {
  struct Row {
    Member* member;
    int32_t next;  // token id; -1: the one that follows
  };
  std::vector<Row> wanted;
  std::vector<int64_t> places;
  for (const auto& member : members) {
    int64_t row = member->row;
    for (const QueryRange& range : member->input->ranges) {
      const ModelSequence& window = *range.sequence;
      for (int32_t i = window.first_scored; i < window.valid(); ++i) {
        wanted.push_back({member.get(), window.token_ids[window.positions[i]]});
        places.push_back(row + i - 1);
      }
      row += window.valid();
    }
    if (!member->input->next_token) continue;
    wanted.push_back({member.get(), -1});
    places.push_back(row - 1);
  }
  const size_t labels = model.config().num_labels;
  return NextTokenLogits(model, rows, places, Phase::kPrefill, [&](size_t i, const float* logits) {
    Member& member = *wanted[i].member;
    SampleResult& result = member.result;
    member.finite &= AllFinite(logits, labels);
    if (wanted[i].next >= 0) {
      result.token_probabilities.push_back(SoftmaxOf(logits, labels, wanted[i].next));
    } else {
      result.logits.assign(logits, logits + labels);
      const std::vector<double> probabilities = Softmax(logits, labels);
      result.probabilities.assign(probabilities.begin(), probabilities.end());
    }
  });
}

}  // namespace

int64_t HeadFloats(const ModelConfig& config, int64_t sequences) {
  if (config.task == ModelTask::kCausalLm) {
    return LogitsAtOnce(config, sequences) * (static_cast<int64_t>(config.hidden_size) + config.vocab_size);
  }
  const int64_t pair = config.task == ModelTask::kPairClassification ? 2 : 1;
  const ClassifierFloats floats = FloatsOf(config, sequences, sequences / pair);
  return floats.pooled + floats.paired + floats.hidden + floats.output;
}

absl::Status NextTokenLogits(const Model& model, const Activations& rows, std::span<const int64_t> places, Phase phase,
                             const std::function<void(size_t, const float*)>& visit) {
  if (places.empty()) return absl::OkStatus();
  const ModelConfig& config = model.config();
  const ModelWeights& weights = model.weights();
  Backend& backend = model.backend();
  const int64_t vocabulary = config.vocab_size;
  const int64_t wanted = static_cast<int64_t>(places.size());
  const int64_t most = LogitsAtOnce(config, wanted);
  ASSIGN_OR_RETURN(const Buffer last_rows, backend.Allocate(most * config.hidden_size));
  ASSIGN_OR_RETURN(const Buffer logit_rows, backend.Allocate(most * vocabulary));
  std::vector<float> host(most * vocabulary);
  for (int64_t first = 0; first < wanted; first += most) {
    const int64_t chunk = std::min(most, wanted - first);
    const Matrix last = last_rows.AsMatrix(chunk, config.hidden_size);
    const Matrix logits = logit_rows.AsMatrix(chunk, vocabulary);
    RETURN_IF_ERROR(backend.GatherRows(rows.hidden(), places.subspan(first, chunk), last));
    if (config.norm_position == NormPosition::kPre) {
      const Norm& norm = weights.final_norm;
      RETURN_IF_ERROR(backend.LayerNorm(last, norm.weight.data(), norm.bias.data(), config.layer_norm_eps, last));
    }
    RETURN_IF_ERROR(backend.Linear(*weights.lm_head, last, logits, false, phase));
    RETURN_IF_ERROR(backend.Download(logits.data, std::span(host).first(chunk * vocabulary)));
    for (int64_t r = 0; r < chunk; ++r) visit(first + r, host.data() + r * vocabulary);
  }
  return absl::OkStatus();
}

absl::Status ComputeOutputs(const Model& model, Activations& rows, const Members& members) {
  const ModelConfig& config = model.config();
  if (config.task == ModelTask::kCausalLm) return Score(model, rows, members);
  std::vector<float> features, logits;
  RETURN_IF_ERROR(ClassifierLogits(model, rows, members, features, logits));
  const int32_t labels = config.num_labels;
  const size_t width = features.size() / (logits.size() / labels);
  const bool per_token = config.task == ModelTask::kTokenClassification;
  const float *row = logits.data(), *seen = features.data();
  for (const auto& member : members) {
    const ModelSequence& sequence = *member->input->ranges[0].sequence;
    SampleResult& result = member->result;
    const size_t size = static_cast<size_t>(per_token ? sequence.length() : 1) * labels;
    result.logits.assign(size, 0.0f);
    result.probabilities.assign(size, 0.0f);
    for (int32_t i = 0; i < (per_token ? sequence.valid() : 1); ++i, row += labels, seen += width) {
      const int64_t out = static_cast<int64_t>(per_token ? sequence.positions[i] : 0) * labels;
      // A ReLU turns NaN into 0, so numbers that are not finite are looked for before the classifier too.
      member->finite &= AllFinite(seen, width) && AllFinite(row, labels);
      std::copy_n(row, labels, result.logits.begin() + out);
      const std::vector<double> outputs =
          config.task == ModelTask::kRegression ? std::vector<double>(row, row + labels) : Softmax(row, labels);
      std::transform(outputs.begin(), outputs.end(), result.probabilities.begin() + out,
                     [](double value) { return static_cast<float>(value); });
    }
  }
  return absl::OkStatus();
}

}  // namespace edgewise
