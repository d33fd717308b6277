#include "server/validate/answer_size.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/forward/result.h"
#include "text/field_error.h"

namespace edgewise::server {
namespace {

// Counts of one input. All sizes here are doubles: they hold every product, and are exact up to 2^53.
struct Counts {
  double positions = 0;  // pads included
  double rows = 1;       // of probabilities
  double heads = 0;      // over layers and sequences
  double scored = 0;     // tokens whose probability a language model gives
  double edges = 0;      // at most, in one sample
};

Counts CountsOf(const ModelInput& input, const Model& model) {
  const ModelConfig& config = model.config();
  Counts counts;
  for (const ModelSequence& sequence : input.sequences) {
    counts.positions += sequence.length();
    if (config.task == ModelTask::kCausalLm) counts.scored += std::max(0, sequence.valid() - sequence.first_scored);
  }
  if (config.task == ModelTask::kTokenClassification) counts.rows = counts.positions;
  counts.heads = static_cast<double>(input.sequences.size()) * config.num_hidden_layers * config.num_attention_heads;
  counts.edges = static_cast<double>(std::min(input.max_edges, model.Pairs(input)));
  return counts;
}

// The longest name that an answer can give a label.
double LabelBytes(const ModelConfig& config) {
  size_t bytes = 16;
  for (const std::string& label : config.labels) bytes = std::max(bytes, label.size());
  if (config.task == ModelTask::kCausalLm) {
    for (const std::string& token : config.tokenizer.vocabulary) bytes = std::max(bytes, token.size());
  }
  return static_cast<double>(bytes);
}

// Upper bound of the bytes that the answer to one input takes on the wire.
double ResponseBytes(const Counts& counts, const OutputSelection& outputs, double samples, double labels,
                     double label_bytes) {
  double bytes = 256 + counts.rows * (labels * (outputs.logits ? 12 : 8) + label_bytes + 64);
  bytes += outputs.top_k * (label_bytes + 24);
  if (outputs.each_sample) {
    bytes += samples * (64 + counts.rows * labels * (outputs.logits ? 8 : 4) + counts.scored * sizeof(double));
  }
  if (outputs.layer_stats || outputs.key_degrees) bytes += counts.heads * 40;
  if (outputs.key_degrees) bytes += counts.heads * counts.positions * 5;
  if (outputs.graph) bytes += counts.heads * (32 + (counts.positions + 1) * 5) + counts.edges * 10;
  return bytes;
}

// The bytes that the results of an input's samples take until they are combined.
double ResultBytes(const Counts& counts, const OutputSelection& outputs, double samples, double labels) {
  const double per_head = sizeof(HeadCounts) + (outputs.key_degrees ? counts.positions * sizeof(uint32_t) : 0);
  return samples *
         (counts.rows * labels * 2 * sizeof(float) + counts.scored * sizeof(double) + counts.heads * per_head);
}

uint64_t Whole(double bytes) { return static_cast<uint64_t>(std::min(bytes, 1e19)); }

}  // namespace

absl::Status CheckAnswerSize(const std::vector<ModelInput>& inputs, const OutputSelection& outputs, const Model& model,
                             const RequestLimits& limits) {
  const double labels = model.config().num_labels, label_bytes = LabelBytes(model.config());
  double response = 1024, result = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Counts counts = CountsOf(inputs[i], model);
    if (outputs.graph && counts.edges > static_cast<double>(limits.max_graph_edges)) {
      return FieldError("outputs.graph", absl::StrCat("of inputs[", i, "] may have ", Whole(counts.edges),
                                                      " edges; the server returns at most ", limits.max_graph_edges,
                                                      " (lower the budget)"));
    }
    response += ResponseBytes(counts, outputs, inputs[i].samples, labels, label_bytes);
    result += ResultBytes(counts, outputs, inputs[i].samples, labels);
  }
  if (response > static_cast<double>(limits.max_response_bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("outputs would take up to ", Whole(response),
                                                     " bytes; the server sends at most ", limits.max_response_bytes,
                                                     " in one answer"));
  }
  if (result > static_cast<double>(limits.max_result_bytes)) {
    return FieldError("ensemble.samples", absl::StrCat("times inputs would hold ", Whole(result),
                                                       " bytes of results; the server holds at most ",
                                                       limits.max_result_bytes, " for one request"));
  }
  return absl::OkStatus();
}

}  // namespace edgewise::server
