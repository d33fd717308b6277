// Times whole models under caps (caps_bench).
#ifndef EDGEWISE_BENCH_CAPS_MODELS_H_
#define EDGEWISE_BENCH_CAPS_MODELS_H_

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace edgewise::bench {

struct ModelRow {
  std::string name;
  int32_t tokens = 0;
  uint64_t edges = 0;          // without a cap
  double milliseconds = 0.0;   // of the forward pass, likewise
  std::vector<double> shares;  // [caps] of the time without a cap
};

// Times the forward pass of each model of `examples`/models, on the longest of its inputs in `examples`/data, under
// caps of the given shares of its edges, but at least its forced edges. CPU time, medians of `repeats` paired runs.
// Ends the program where a file cannot be read.
void TimeModels(Backend& backend, const std::filesystem::path& examples, std::span<const double> caps, int repeats,
                const std::function<void(const ModelRow&)>& use);

}  // namespace edgewise::bench

#endif  // EDGEWISE_BENCH_CAPS_MODELS_H_
