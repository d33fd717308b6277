// Memory of requests, reserved on a backend when a model is loaded.
#ifndef EDGEWISE_MODEL_RESERVE_H_
#define EDGEWISE_MODEL_RESERVE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "model/model.h"

namespace edgewise {

// Reserves a full wave of a pass (kMaxWaveTokens). Not included: longer texts, windows that run at once under a budget
// or a given graph, graphs that are wanted.
absl::Status ReserveForPasses(const Model& model);

// The generations that may run at once.
struct GenerationLimits {
  uint64_t cache_bytes = 0;  // keys and values together
  uint64_t generations = 0;
  uint64_t samples = 0;  // of each
};

// What generations need within these limits, if one at a time is amid its prompt: `cache_bytes` for keys and values, or
// as many as so many generations of so many samples can have, if that is less; and rows of a prompt. For a model that
// does not generate nothing. RESOURCE_EXHAUSTED: there is not so much memory.
absl::Status ReserveForGenerations(const Model& model, const GenerationLimits& limits);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_RESERVE_H_
