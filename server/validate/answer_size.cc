#include "server/validate/answer_size.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "model/forward/result.h"

namespace edgewise::server {
namespace {

// An answer as objects, and serialized, over its size on the wire.
constexpr double kAnswerObjects = 3.0;

// Upper bounds. Doubles hold every product, and are exact up to 2^53.
struct Bytes {
  double response = 1024;  // of the answer on the wire
  double results = 0;      // of the samples' results until they are combined
};

double GraphEdges(const ModelInput& input, const Model& model) {
  return static_cast<double>(std::min(input.max_edges, model.Pairs(input)));
}

// The longest name that an answer can give a label.
double LabelBytes(const Model& model) {
  const ModelConfig& config = model.config();
  size_t bytes = 16;
  for (const std::string& label : config.labels) bytes = std::max(bytes, label.size());
  if (config.task == ModelTask::kCausalLm) {
    for (const std::string& token : config.tokenizer.vocabulary) bytes = std::max(bytes, token.size());
  }
  if (GivesVocabulary(config.task) && model.tokenizer() != nullptr) {
    bytes = std::max(bytes, 3 * model.tokenizer()->longest_token());  // a byte that is no UTF-8 becomes U+FFFD
  }
  return static_cast<double>(bytes);
}

// The longest token of a text.
double TokenBytes(const Model& model) {
  size_t bytes = 1;
  for (const std::string& token : model.config().tokenizer.vocabulary) bytes = std::max(bytes, 1 + token.size());
  if (model.tokenizer() != nullptr) bytes = std::max<size_t>(bytes, 1 + 3 * model.tokenizer()->longest_token());
  return static_cast<double>(bytes);
}

// Counts of one input.
struct Counts {
  double positions = 0;  // pads included
  double rows = 1;       // of probabilities
  double values = 0;     // of probabilities
  double heads = 0;      // over layers and sequences
  double scored = 0;     // tokens whose probability a language model gives
};

Counts CountsOf(const ModelInput& input, const ModelConfig& config) {
  Counts counts;
  for (const ModelSequence& sequence : input.sequences) {
    counts.positions += sequence.length();
    if (config.task == ModelTask::kCausalLm) counts.scored += std::max(0, sequence.valid() - sequence.first_scored);
  }
  counts.rows = OutputRows(config, input);
  counts.values = counts.rows * config.num_labels;
  counts.heads = static_cast<double>(input.sequences.size()) * config.num_hidden_layers * config.num_attention_heads;
  return counts;
}

// The outputs that the message asks for, of one input.
void AddOutputs(const Counts& counts, const OutputSelection& outputs, const ModelInput& input, const Model& model,
                double label_bytes, Bytes& bytes) {
  const double samples = input.samples;
  const double logits = outputs.logits ? counts.values * sizeof(float) : 0;
  bytes.response += logits + counts.rows * outputs.top_k * (label_bytes + 24);
  if (outputs.each_sample) {
    bytes.response += samples * (64 + counts.values * sizeof(float) + logits + counts.scored * sizeof(double));
  }
  if (outputs.token_scores) {
    const double alternatives = input.alternatives, tokens = counts.scored + 1;
    bytes.response += tokens * (1 + alternatives) * (label_bytes + 24);
    bytes.results += samples * tokens * (sizeof(TokenAlternatives) + alternatives * sizeof(TokenProbability));
  }
  if (outputs.token_embeddings) {
    const double numbers = counts.positions * model.config().hidden_size;
    bytes.response += numbers * sizeof(float);
    bytes.results += (samples + 1) * numbers * sizeof(float);
  }
  if (outputs.input_tokens) bytes.response += counts.positions * (TokenBytes(model) + 24);
  if (outputs.layer_stats || outputs.key_degrees) bytes.response += counts.heads * 40;
  if (outputs.key_degrees) bytes.response += counts.heads * counts.positions * 5;
  if (outputs.key_degrees) bytes.results += samples * counts.heads * counts.positions * sizeof(uint32_t);
  if (outputs.graph) bytes.response += counts.heads * (32 + (counts.positions + 1) * 5) + 10 * GraphEdges(input, model);
}

uint64_t InputBytes(const ModelInput& input) {
  uint64_t bytes = sizeof input;
  for (const ModelSequence& sequence : input.sequences) bytes += BytesOf(sequence);
  if (!input.graph) return bytes;
  for (const std::vector<HeadEdges>& layer : input.graph->layers) {
    for (const HeadEdges& head : layer) {
      bytes += sizeof head + sizeof(int64_t) * head.row_offsets.capacity() +
               sizeof(int32_t) * (head.keys.capacity() + head.weights.capacity() + head.multiplicity.capacity());
    }
  }
  return bytes;
}

uint64_t Whole(double count) { return static_cast<uint64_t>(std::min(count, 1e19)); }

// The graphs of an answer may have this many edges.
absl::Status CheckGraphs(const Work& work, const Model& model, const RequestLimits& limits) {
  for (size_t i = 0; i < work.inputs.size(); ++i) {
    const double edges = GraphEdges(work.inputs[i], model);
    REFUSE_IF(edges > static_cast<double>(limits.max_graph_edges), "outputs.graph", "of inputs[", i, "] may have ",
              Whole(edges), " edges; the server returns at most ", limits.max_graph_edges, " (lower the budget)");
  }
  return absl::OkStatus();
}

// The error of an answer that does not fit.
absl::Status TooLarge(const Bytes& bytes, const RequestLimits& limits) {
  if (bytes.response > static_cast<double>(limits.max_response_bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("outputs would take up to ", Whole(bytes.response),
                                                     " bytes; the server sends at most ", limits.max_response_bytes,
                                                     " in one answer"));
  }
  return FieldError("ensemble.samples", absl::StrCat("times inputs would hold ", Whole(bytes.results),
                                                     " bytes of results; the server holds at most ",
                                                     limits.max_result_bytes, " for one request"));
}

}  // namespace

uint64_t BytesOf(const ModelSequence& sequence) {
  return sizeof sequence +
         sizeof(int32_t) *
             (sequence.token_ids.capacity() + sequence.token_types.capacity() + sequence.positions.capacity()) +
         sizeof(tokenizers::Span) * sequence.offsets.capacity() +
         sizeof(float) * (sequence.features.capacity() + sequence.bias_values.capacity()) +
         sequence.bias_buckets.capacity();
}

absl::Status CheckAnswerSize(Work& work, const Model& model, const RequestLimits& limits) {
  if (work.outputs.graph) RETURN_IF_ERROR(CheckGraphs(work, model, limits));
  const double label_bytes = LabelBytes(model);
  Bytes bytes;
  uint64_t inputs = 0;
  for (const ModelInput& input : work.inputs) {
    inputs += InputBytes(input);
    const Counts counts = CountsOf(input, model.config());
    bytes.response += 256 + counts.values * 2 * sizeof(float) + counts.rows * (label_bytes + 64);
    bytes.results += input.samples * (counts.values * 2 * sizeof(float) + counts.scored * sizeof(double) +
                                      counts.heads * sizeof(HeadCounts));
    if (work.outputs != OutputSelection()) AddOutputs(counts, work.outputs, input, model, label_bytes, bytes);
  }
  const bool fits = bytes.response <= static_cast<double>(limits.max_response_bytes) &&
                    bytes.results <= static_cast<double>(limits.max_result_bytes);
  work.answer_bytes = Whole(bytes.response);
  work.held_bytes = inputs + Whole(bytes.results + kAnswerObjects * bytes.response);
  return fits ? absl::OkStatus() : TooLarge(bytes, limits);
}

}  // namespace edgewise::server
