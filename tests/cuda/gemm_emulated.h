// The library of matrix products (kernels/cuda/ops/gemm_library.h) where the device is emulated: it offers what a test
// asks it to, right or wrong, and else one algorithm for few rows.
#ifndef EDGEWISE_TESTS_CUDA_GEMM_EMULATED_H_
#define EDGEWISE_TESTS_CUDA_GEMM_EMULATED_H_

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/cuda/ops/gemm_library.h"

namespace edgewise::cuda::testing {

// The fault of an algorithm in products of `rows` rows or more; kRefuses: of `rows` rows alone. Its other bytes are
// those of our own kernel.
enum class Fault : uint64_t { kNone, kSumsBackwards, kRefuses };

inline GemmLibrary::Algorithm FakeAlgorithm(uint64_t name, Fault fault = Fault::kNone, int64_t rows = 1) {
  return {name, static_cast<uint64_t>(fault), static_cast<uint64_t>(rows)};
}

struct FakeLibrary {
  std::vector<GemmLibrary::Algorithm> offered = {FakeAlgorithm(0)};
  int64_t most_rows = 16;  // of products for which something is offered
  std::function<float(const GemmLibrary::Algorithm&)> milliseconds = [](const auto&) { return 1.0f; };
  float own_milliseconds = 1e6f;                    // of our own kernels
  std::vector<std::pair<uint64_t, GemmCall>> runs;  // name and call of each, while `records`
  bool records = false;
};

// For libraries made from now on, which know no plans of others before them. Null: as it was. The test owns it.
void SetFakeLibrary(FakeLibrary* library);

}  // namespace edgewise::cuda::testing

#endif  // EDGEWISE_TESTS_CUDA_GEMM_EMULATED_H_
