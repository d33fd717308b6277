// The attention that a request puts in the place of a model's (docs/model-format.md, "Override").
// model/kinds/override.h reads it and applies it.
#ifndef EDGEWISE_MODEL_CONFIG_OVERRIDE_H_
#define EDGEWISE_MODEL_CONFIG_OVERRIDE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace edgewise {

// 0, or empty: not given.
struct AttentionOverride {
  std::string kind;  // "ssa" or "block"
  // ssa: exactly one of the first three.
  uint32_t windows = 0;        // the number of windows; sources lie near their queries
  uint32_t window_tokens = 0;  // the same, by the tokens of a window
  uint32_t keep = 0;           // the number of sources, at any position
  // With windows a fraction of the length, with window_tokens in tokens. One number, or those of the first and the last
  // layer.
  std::vector<double> sigma;
  // block
  uint32_t block_size = 0;          // positions
  std::string pattern;              // as in config.json, but list
  std::optional<uint32_t> width;    // pattern local, in blocks; 1
  uint32_t stride = 0;              // pattern strided, in blocks
  std::optional<double> threshold;  // pattern learned
  // The layers below the last `last_layers` are dense; 0: none is.
  uint32_t last_layers = 0;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CONFIG_OVERRIDE_H_
