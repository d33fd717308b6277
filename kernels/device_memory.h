// The memory of a device that has its own.
#ifndef EDGEWISE_KERNELS_DEVICE_MEMORY_H_
#define EDGEWISE_KERNELS_DEVICE_MEMORY_H_

#include <cstdint>

namespace edgewise {

// Bytes. The driver, code on the device and other processes hold the rest of `total`.
struct DeviceMemory {
  uint64_t weights = 0;  // of this process' models
  uint64_t in_use = 0;   // of this process: weights, passes and generations
  uint64_t kept = 0;     // taken from the driver, and free for the next call
  uint64_t free = 0;     // that the driver has
  uint64_t total = 0;
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_DEVICE_MEMORY_H_
