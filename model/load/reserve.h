// Reserves the memory of requests on a backend when a model is loaded.
#ifndef EDGEWISE_MODEL_LOAD_RESERVE_H_
#define EDGEWISE_MODEL_LOAD_RESERVE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "model/model.h"

namespace edgewise {

// Reserves the memory of a full wave of a pass (kMaxWaveTokens). Not included: longer texts, windows that run at once
// under a budget or a given graph, and graphs in answers. RESOURCE_EXHAUSTED: the backend has too little memory.
absl::Status ReserveForPasses(const Model& model);

// The generations that may run at once.
struct GenerationLimits {
  uint64_t cache_bytes = 0;  // keys and values together
  uint64_t generations = 0;
  uint64_t samples = 0;  // of each
};

// Reserves the memory of generations within these limits, if no step decodes more than kRowsTogether rows, or one
// generation, and one step of prompts at a time is under way, of one generation, or of no more tokens than the context
// has, kMaxWaveTokens rows and kRowsTogether samples: the rows of both steps, and keys and values of
// `cache_bytes`, or of all generations and samples at full length where that is less. Returns OK at once for models
// that do not generate. RESOURCE_EXHAUSTED: the backend has too little memory.
absl::Status ReserveForGenerations(const Model& model, const GenerationLimits& limits);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_LOAD_RESERVE_H_
