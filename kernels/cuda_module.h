// The CUDA backend lives in a shared library of its own, which is opened where a GPU is asked for: a server without one
// never loads CUDA.
#ifndef EDGEWISE_KERNELS_CUDA_MODULE_H_
#define EDGEWISE_KERNELS_CUDA_MODULE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace edgewise {

inline constexpr char kCudaModuleName[] = "libedgewise_cuda.so";
// What the module exports, with C linkage: a function of type CudaModuleCreate. `ordinal`: of the CUDA device.
inline constexpr char kCudaModuleSymbol[] = "EdgewiseCreateCudaBackend";
using CudaModuleCreate = void(const BackendOptions& options, int ordinal,
                              absl::StatusOr<std::unique_ptr<Backend>>* backend);

// options.device is "cuda" or "cuda:N". The module is $EDGEWISE_CUDA_MODULE, or else lies beside the program or in
// ../lib/edgewise from there; it is never closed. INVALID_ARGUMENT: N is not a number, or the precision; UNIMPLEMENTED:
// no module; UNAVAILABLE: no driver, or no such device.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const BackendOptions& options);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CUDA_MODULE_H_
