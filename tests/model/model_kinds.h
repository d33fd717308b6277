// One small model of every kind: attention, task, input, bias. The promises are tested on all of them: a new kind is a
// new row in model_kinds.cc.
#ifndef EDGEWISE_TESTS_MODEL_MODEL_KINDS_H_
#define EDGEWISE_TESTS_MODEL_MODEL_KINDS_H_

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"

namespace edgewise::testing {

struct ModelKind {
  std::string name;
  nlohmann::json changes;          // of SmallConfig, as a merge patch
  nlohmann::json override_with{};  // the override that every input asks for (ReadOverride); null: none
  bool windows = false;            // texts beyond the context
  CapRule keep = CapRule::kRandom;
  bool hugging_face = false;  // `changes` is the whole config.json of a Hugging Face folder (WriteHuggingFace)
};

std::ostream& operator<<(std::ostream& out, const ModelKind& kind);

std::vector<ModelKind> ModelKinds();
// Those that generate text.
std::vector<ModelKind> LanguageModelKinds();

// config.json of the kind.
nlohmann::json ConfigOf(const ModelKind& kind);

// A random input of up to `most` tokens or rows, with interior pads every other time where the model has pads, with a
// bias where it takes one, with the kind's override.
ModelInput RandomInput(const ModelKind& kind, const Model& model, std::mt19937_64& random, int32_t most = 40);

// The attention of every layer of a model under an override.
std::shared_ptr<const std::vector<AttentionConfig>> Override(const nlohmann::json& config,
                                                             const nlohmann::json& fields);

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_MODEL_MODEL_KINDS_H_
