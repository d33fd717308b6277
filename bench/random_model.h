// Models with random weights.
#ifndef EDGEWISE_BENCH_RANDOM_MODEL_H_
#define EDGEWISE_BENCH_RANDOM_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "model/model.h"

namespace edgewise::bench {

struct RandomModel {
  std::unique_ptr<Model> model;
  int64_t matrix_bytes = 0;  // of its matrices, the position embedding left out: what every token reads
};

// A model of this config.json, matrices normal with standard deviation 0.02, norms the identity; written to disk and
// loaded as any model is. `backend` must outlive it.
RandomModel MakeRandomModel(const std::string& config, Backend& backend);

}  // namespace edgewise::bench

#endif  // EDGEWISE_BENCH_RANDOM_MODEL_H_
