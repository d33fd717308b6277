// The parts of an attention call, whose edges are in memory one part after the other.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_DRAWN_PARTS_H_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_DRAWN_PARTS_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <span>

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/items.h"
#include "kernels/cuda/device/runtime.h"

namespace edgewise::cuda {

// Draws a part's edges before they are used: once where there is one part, else every time. Enqueues on the device's
// stream; one thread at a time.
class DrawnParts {
 public:
  using Use = std::function<cudaError_t(const DeviceCall&)>;

  // `memory`: in the device's, of as many bytes as the longest part has. All outlive the object.
  DrawnParts(const Device& device, const DeviceCall& call, std::span<const RowPart> parts, unsigned char* memory)
      : device_(device), call_(call), parts_(parts) {
    call_.drawn = memory;
  }

  // Calls use(part) for every part while memory has all of its drawn edges; ends at the first error. For caps that are
  // not settled.
  cudaError_t ForDrawn(const Use& use);
  // Likewise, with the edges that caps keep. The first time they are counted. `problem`: for its parts alone; -1: for
  // all.
  cudaError_t ForKept(const Use& use, int32_t problem = -1);

 private:
  // use(part, whether it was drawn for this).
  cudaError_t ForParts(int32_t problem, const std::function<cudaError_t(const DeviceCall&, bool)>& use);

  const Device& device_;
  DeviceCall call_;
  const std::span<const RowPart> parts_;
  bool drawn_ = false;  // the only part
  bool kept_ = false;   // likewise, and caps have dropped what they drop
  bool counted_ = false;
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_DRAWN_PARTS_H_
