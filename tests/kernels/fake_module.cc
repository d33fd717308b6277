// Stands in for libedgewise_cuda.so in cuda_module_test.cc: makes no backend and says why, with the code
// FAKE_MODULE_CODE of the environment.
#include <cstdlib>

#include "absl/status/status.h"
#include "kernels/cuda_module.h"

extern "C" void EdgewiseCreateCudaBackend(const edgewise::BackendOptions&, int ordinal,
                                          absl::StatusOr<std::unique_ptr<edgewise::Backend>>* backend) {
  *backend = absl::Status(static_cast<absl::StatusCode>(std::atoi(std::getenv("FAKE_MODULE_CODE"))),
                          "device " + std::to_string(ordinal) + " is no good");
}
