#include "model/config/config.h"

#include <algorithm>

namespace edgewise {
namespace {

constexpr const char* kTasks[] = {"sequence-classification",
                                  "pair-classification",
                                  "token-classification",
                                  "regression",
                                  "causal-lm",
                                  "embedding",
                                  "fill-mask"};
constexpr const char* kTokenizers[] = {"none", "byte", "char", "word", "hugging-face"};

}  // namespace

const char* ModelTaskName(ModelTask task) { return kTasks[static_cast<size_t>(task)]; }

bool HasWindows(const ModelConfig& config) {
  return std::any_of(config.attention.begin(), config.attention.end(),
                     [](const AttentionConfig& layer) { return layer.reach != AllPairs::kFar; });
}

bool GivesValues(ModelTask task) { return task == ModelTask::kRegression || task == ModelTask::kEmbedding; }

const char* TokenizerName(TokenizerKind kind) { return kTokenizers[static_cast<size_t>(kind)]; }

}  // namespace edgewise
