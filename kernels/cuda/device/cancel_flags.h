// Flags that attention kernels read while they run (kernels/cancel_flag.h): words of device memory, which copies on a
// stream of their own set.
#ifndef EDGEWISE_KERNELS_CUDA_DEVICE_CANCEL_FLAGS_H_
#define EDGEWISE_KERNELS_CUDA_DEVICE_CANCEL_FLAGS_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cancel_flag.h"
#include "kernels/cuda/device/device_array.h"
#include "kernels/cuda/device/runtime.h"

namespace edgewise::cuda {

// Owns the words. Calls may come from any thread.
class CancelFlags : public std::enable_shared_from_this<CancelFlags> {
 public:
  // As many flags as `words` can be seen by kernels at a time. Waits for the device's stream.
  static absl::StatusOr<std::shared_ptr<CancelFlags>> Create(std::shared_ptr<Device> device, int32_t words);
  ~CancelFlags();
  CancelFlags(const CancelFlags&) = delete;
  CancelFlags& operator=(const CancelFlags&) = delete;

  // Where no word is free, a flag that kernels do not see. One that is never raised costs no call of CUDA; one that is
  // costs two copies, which nobody waits for, unless all other words are taken when its own is wanted again.
  std::unique_ptr<CancelFlag> Make();

  // What kernels read; null for a flag that they do not see, and where there is none.
  static const int32_t* WordOf(const CancelFlag* flag);

 private:
  class Flag;

  explicit CancelFlags(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  absl::Status Start(int32_t words);
  int32_t* Take();  // null: none
  void Give(int32_t* word, bool raised);
  bool Set(int32_t* word, int32_t value);  // enqueues

  const std::shared_ptr<Device> device_;
  DeviceArray words_;
  int32_t* values_ = nullptr;      // pinned: 0 and 1
  cudaStream_t stream_ = nullptr;  // of the copies to words
  absl::Mutex mutex_;
  std::vector<int32_t*> free_ ABSL_GUARDED_BY(mutex_);     // 0
  std::vector<int32_t*> cleared_ ABSL_GUARDED_BY(mutex_);  // 0 once the stream has been waited for
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_DEVICE_CANCEL_FLAGS_H_
