// Narrow models whose full waves are cheap to run.
#ifndef EDGEWISE_TESTS_MODEL_WAVE_CONFIG_H_
#define EDGEWISE_TESTS_MODEL_WAVE_CONFIG_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"

namespace edgewise::testing {

// A full wave of texts, given as how many and how long.
inline std::vector<ModelInput> Texts(const Model& model, int count, int32_t tokens) {
  std::vector<ModelInput> inputs;
  const bool pair = model.config().task == ModelTask::kPairClassification;
  for (int i = 0; i < count; ++i) {
    const std::vector<int32_t> first = RandomTokens(tokens, 49, i);
    inputs.push_back(MakeInput(model, first, pair ? first : std::vector<int32_t>()));
    inputs.back().seed = i;
  }
  return inputs;
}

// Samples share a dense layer, and each draws in two more, so that both have all kinds of rows.
inline nlohmann::json ThreeLayers() {
  return {{"num_hidden_layers", 3},
          {"attention",
           {{{"kind", "dense"}},
            {{"kind", "sbm"}, {"num_clusters", 16}, {"law", "bernoulli"}},
            {{"kind", "sbm"}, {"num_clusters", 16}, {"law", "bernoulli"}}}}};
}

// One narrow layer.
inline nlohmann::json WaveConfig(const nlohmann::json& changes) {
  nlohmann::json config = SmallConfig();
  config.merge_patch({{"num_hidden_layers", 1}, {"num_attention_heads", 1}, {"head_dim", 16}, {"hidden_size", 16}});
  config.merge_patch(changes);
  return config;
}

inline nlohmann::json LanguageConfig(int32_t length) {
  return WaveConfig({{"task", "causal-lm"},
                     {"pooling", nullptr},
                     {"num_labels", nullptr},
                     {"classifier_hidden_size", nullptr},
                     {"pad_token_id", -1},
                     {"vocab_size", 2001},
                     {"num_hidden_layers", 2},
                     {"max_position_embeddings", length},
                     {"attention",
                      {{"kind", "ssa"},
                       {"bias", "local"},
                       {"windows", 6},
                       {"sigma", {0.2, 0.3}},
                       {"num_clusters", nullptr},
                       {"law", nullptr},
                       {"exploration", nullptr}}}});
}

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_MODEL_WAVE_CONFIG_H_
