#include "server/validate/answer_size.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/forward/result.h"
#include "text/field_error.h"

namespace edgewise::server {
namespace {

// Upper bounds. Doubles hold every product, and are exact up to 2^53.
struct Bytes {
  double response = 1024;  // of the answer on the wire
  double results = 0;      // of the samples' results until they are combined
};

// The longest name that an answer can give a label.
double LabelBytes(const ModelConfig& config) {
  size_t bytes = 16;
  for (const std::string& label : config.labels) bytes = std::max(bytes, label.size());
  if (config.task == ModelTask::kCausalLm) {
    for (const std::string& token : config.tokenizer.vocabulary) bytes = std::max(bytes, token.size());
  }
  return static_cast<double>(bytes);
}

// `edges`: of a returned graph, at most.
void AddInput(const ModelInput& input, const OutputSelection& outputs, const ModelConfig& config, double label_bytes,
              double edges, Bytes& bytes) {
  double positions = 0, scored = 0;  // pads included; tokens whose probability a language model gives
  for (const ModelSequence& sequence : input.sequences) {
    positions += sequence.length();
    if (config.task == ModelTask::kCausalLm) scored += std::max(0, sequence.valid() - sequence.first_scored);
  }
  const double rows = config.task == ModelTask::kTokenClassification ? positions : 1, samples = input.samples;
  const double values = rows * config.num_labels;
  const double heads =
      static_cast<double>(input.sequences.size()) * config.num_hidden_layers * config.num_attention_heads;
  bytes.response += 256 + values * (outputs.logits ? 12 : 8) + rows * (label_bytes + 64);
  bytes.response += outputs.top_k * (label_bytes + 24);
  if (outputs.each_sample)
    bytes.response += samples * (64 + values * (outputs.logits ? 8 : 4) + scored * sizeof(double));
  if (outputs.layer_stats || outputs.key_degrees) bytes.response += heads * 40;
  if (outputs.key_degrees) bytes.response += heads * positions * 5;
  if (outputs.graph) bytes.response += heads * (32 + (positions + 1) * 5) + edges * 10;
  const double head_bytes = sizeof(HeadCounts) + (outputs.key_degrees ? positions * sizeof(uint32_t) : 0);
  bytes.results += samples * (values * 2 * sizeof(float) + scored * sizeof(double) + heads * head_bytes);
}

uint64_t Whole(double bytes) { return static_cast<uint64_t>(std::min(bytes, 1e19)); }

}  // namespace

absl::Status CheckAnswerSize(const Request& request, const Model& model, const RequestLimits& limits) {
  const double label_bytes = LabelBytes(model.config());
  Bytes bytes;
  for (const ModelInput& input : request.inputs) {
    const uint64_t edges = request.outputs.graph ? std::min(input.max_edges, model.Pairs(input)) : 0;
    REFUSE_IF(edges > limits.max_graph_edges, "outputs.graph", "of inputs[", &input - request.inputs.data(),
              "] may have ", edges, " edges; the server returns at most ", limits.max_graph_edges,
              " (lower the budget)");
    AddInput(input, request.outputs, model.config(), label_bytes, static_cast<double>(edges), bytes);
  }
  if (bytes.response > static_cast<double>(limits.max_response_bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("outputs would take up to ", Whole(bytes.response),
                                                     " bytes; the server sends at most ", limits.max_response_bytes,
                                                     " in one answer"));
  }
  REFUSE_IF(bytes.results > static_cast<double>(limits.max_result_bytes), "ensemble.samples",
            "times inputs would hold ", Whole(bytes.results), " bytes of results; the server holds at most ",
            limits.max_result_bytes, " for one request");
  return absl::OkStatus();
}

}  // namespace edgewise::server
