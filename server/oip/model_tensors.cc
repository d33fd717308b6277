#include "server/oip/model_tensors.h"

#include <utility>

#include "edgewise/v1/inference.pb.h"
#include "model/config/config.h"

namespace edgewise::server {
namespace {

using google::protobuf::FieldDescriptor;

constexpr int64_t kAny = -1;

bool TakesPairs(const Model& model) {
  const ModelTask task = model.config().task;
  const bool joins = task == ModelTask::kSequenceClassification || task == ModelTask::kRegression;
  return task == ModelTask::kPairClassification || (joins && model.tokenizer() != nullptr);
}

// Adds the outputs of these names.
void Add(std::initializer_list<const char*> names, bool of_tokens, int64_t columns,
         std::vector<OutputTensorInfo>& outputs) {
  const auto& type = of_tokens ? *v1::TokenPrediction::descriptor() : *v1::Prediction::descriptor();
  for (const char* name : names) {
    outputs.push_back({.name = name, .field = type.FindFieldByName(name), .of_tokens = of_tokens, .columns = columns});
  }
}

}  // namespace

std::vector<InputTensorInfo> InputsOf(const Model& model) {
  const ModelConfig& config = model.config();
  if (config.feature_size > 0) {
    const bool images = config.image_processor.serves;
    std::vector<InputTensorInfo> inputs;
    if (images) inputs.push_back({"image", inference::TYPE_STRING, {kAny, 1}});
    inputs.push_back({"features", inference::TYPE_FP32, {kAny, kAny, config.feature_size}, images});
    return inputs;
  }
  const bool texts = config.tokenizer.kind != TokenizerKind::kNone;
  const bool needs_pair = config.task == ModelTask::kPairClassification;
  std::vector<InputTensorInfo> inputs;
  if (texts) inputs.push_back({"text", inference::TYPE_STRING, {kAny, 1}});
  if (texts && TakesPairs(model)) inputs.push_back({"text_pair", inference::TYPE_STRING, {kAny, 1}, !needs_pair});
  inputs.push_back({"input_ids", inference::TYPE_INT64, {kAny, kAny}, texts});
  inputs.push_back({"attention_mask", inference::TYPE_INT64, {kAny, kAny}, true});
  if (needs_pair) {
    inputs.push_back({"input_ids_pair", inference::TYPE_INT64, {kAny, kAny}, texts});
    inputs.push_back({"attention_mask_pair", inference::TYPE_INT64, {kAny, kAny}, true});
  }
  return inputs;
}

std::vector<OutputTensorInfo> OutputsOf(const Model& model) {
  const ModelConfig& config = model.config();
  const int64_t labels = config.num_labels;
  std::vector<OutputTensorInfo> outputs;
  bool logits = true;
  switch (config.task) {
    case ModelTask::kEmbedding:
      logits = false;
      Add({"embedding", "stddev"}, false, config.embedding_size, outputs);
      break;
    case ModelTask::kRegression:
      logits = config.sigmoid;
      Add({"values", "stddev"}, false, labels, outputs);
      break;
    default: {
      const bool tokens = config.task == ModelTask::kTokenClassification || config.task == ModelTask::kFillMask;
      Add({"probabilities", "label", "label_id", "stddev", "predictive_entropy", "mutual_information"}, tokens, labels,
          outputs);
      if (config.task == ModelTask::kTokenClassification) Add({"begin", "end"}, true, kAny, outputs);
      if (config.task == ModelTask::kFillMask) Add({"position"}, true, kAny, outputs);
      if (config.task == ModelTask::kCausalLm) Add({"log_likelihood", "perplexity"}, false, kAny, outputs);
    }
  }
  if (logits) {
    Add({"logits"}, outputs[0].of_tokens, labels, outputs);
    outputs.back().by_name = true;
  }
  for (OutputTensorInfo& output : outputs) output.of_masks = output.of_tokens && config.task == ModelTask::kFillMask;
  Add({"samples"}, false, kAny, outputs);
  for (const char* name : {"edges", "density", "budget", "capped"}) {
    outputs.push_back({.name = name, .field = v1::EdgeReport::descriptor()->FindFieldByName(name), .of_edges = true});
  }
  return outputs;
}

inference::DataType OutputTensorInfo::type() const {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_FLOAT:
      return inference::TYPE_FP32;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return inference::TYPE_FP64;
    case FieldDescriptor::CPPTYPE_INT32:
      return inference::TYPE_INT32;
    case FieldDescriptor::CPPTYPE_UINT32:
      return inference::TYPE_UINT32;
    case FieldDescriptor::CPPTYPE_UINT64:
      return inference::TYPE_UINT64;
    case FieldDescriptor::CPPTYPE_BOOL:
      return inference::TYPE_BOOL;
    case FieldDescriptor::CPPTYPE_STRING:
      return inference::TYPE_STRING;
    default:
      return inference::TYPE_INVALID;
  }
}

std::vector<int64_t> OutputTensorInfo::shape() const {
  std::vector<int64_t> shape = {kAny};
  if (of_tokens) shape.push_back(kAny);
  if (field->is_repeated()) shape.push_back(columns);
  return shape;
}

const char* DatatypeName(inference::DataType type) {
  static constexpr const char* kNames[] = {"INVALID", "BOOL",  "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16",
                                           "INT32",   "INT64", "FP16",  "FP32",   "FP64",   "BYTES",  "BF16"};
  return kNames[type];
}

}  // namespace edgewise::server
