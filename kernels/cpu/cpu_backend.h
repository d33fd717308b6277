// The backend that runs on the host.
#ifndef EDGEWISE_KERNELS_CPU_CPU_BACKEND_H_
#define EDGEWISE_KERNELS_CPU_CPU_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace edgewise {

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const BackendOptions& options);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_CPU_BACKEND_H_
