// The CUDA backend is a shared library of its own. Only servers that ask for a GPU open it; others never load CUDA.
#ifndef EDGEWISE_KERNELS_CUDA_MODULE_H_
#define EDGEWISE_KERNELS_CUDA_MODULE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace edgewise {

inline constexpr char kCudaModuleName[] = "libedgewise_cuda.so";
inline constexpr char kLeastDriver[] = "580";  // of NVIDIA, for CUDA 13
// Name of the function that the module exports with C linkage, of type CudaModuleCreate. `ordinal`: of the CUDA device.
inline constexpr char kCudaModuleSymbol[] = "EdgewiseCreateCudaBackend";
using CudaModuleCreate = void(const BackendOptions& options, int ordinal,
                              absl::StatusOr<std::unique_ptr<Backend>>* backend);

// options.device is "cuda" or "cuda:N". The module is $EDGEWISE_CUDA_MODULE, or else lies beside the program or in
// ../lib/edgewise from there; it stays open. INVALID_ARGUMENT: N is not a number, or the precision is unknown;
// UNIMPLEMENTED: no module; UNAVAILABLE: no driver, or no such device; RESOURCE_EXHAUSTED: no memory on it. The
// messages of the last three are "device DEVICE: REASON; WHAT TO DO".
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const BackendOptions& options);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CUDA_MODULE_H_
