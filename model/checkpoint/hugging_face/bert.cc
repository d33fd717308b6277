#include "model/checkpoint/hugging_face/family.h"

namespace edgewise::hugging_face {
namespace {

constexpr TensorName kSequence[] = {
    {"classifier.hidden", "pooler.dense"},
    {"classifier.output", "classifier"},
};

constexpr TensorName kTokens[] = {{"classifier.output", "classifier"}};

constexpr TensorName kMasked[] = {
    {"classifier.hidden", "cls.predictions.transform.dense"},
    {"classifier.norm", "cls.predictions.transform.LayerNorm"},
    {"classifier.output.weight", "cls.predictions.decoder.weight"},
    {"classifier.output.weight", "embeddings.word_embeddings.weight"},
    {"classifier.output.bias", "cls.predictions.decoder.bias"},
    {"classifier.output.bias", "cls.predictions.bias"},
};

constexpr TaskHead kHeads[] = {
    {"Model", ModelTask::kEmbedding},
    {"ForSequenceClassification", ModelTask::kSequenceClassification, TaskHead::Act::kTanh, kSequence},
    {"ForTokenClassification", ModelTask::kTokenClassification, TaskHead::Act::kNone, kTokens},
    {"ForMaskedLM", ModelTask::kFillMask, TaskHead::Act::kHidden, kMasked},
    {"ForPreTraining", ModelTask::kFillMask, TaskHead::Act::kHidden, kMasked},
};

constexpr std::string_view kUnread[] = {"embeddings.position_ids", "embeddings.token_type_ids", "cls.seq_relationship",
                                        "qa_outputs"};

}  // namespace

constinit const Family kBert = {.model_type = "bert",
                                .class_name = "Bert",
                                .prefix = "bert.",
                                .mask_token = "[MASK]",
                                .tensors = kBertTensors,
                                .heads = kHeads,
                                .unread = kUnread};

}  // namespace edgewise::hugging_face
