// The CUDA backend that is linked with a test, not that of a module (tests/kernels/devices.h): the test sees the
// emulator that runs it.
#ifndef EDGEWISE_TESTS_CUDA_LINKED_BACKEND_H_
#define EDGEWISE_TESTS_CUDA_LINKED_BACKEND_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "kernels/cuda_module.h"

extern "C" edgewise::CudaModuleCreate EdgewiseCreateCudaBackend;

namespace edgewise::testing {

inline std::unique_ptr<Backend> MakeLinked(const std::string& precision = "fp32") {
  BackendOptions options;
  options.precision = precision;
  absl::StatusOr<std::unique_ptr<Backend>> backend;
  EdgewiseCreateCudaBackend(options, 0, &backend);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

inline DrawnRows DrawnFrom(uint64_t seed) { return {.self_loops = true, .key = {seed, 1, 2, 3}}; }

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_CUDA_LINKED_BACKEND_H_
