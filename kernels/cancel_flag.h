// A flag that tells running kernels that a result is no longer wanted.
#ifndef EDGEWISE_KERNELS_CANCEL_FLAG_H_
#define EDGEWISE_KERNELS_CANCEL_FLAG_H_

#include <atomic>

namespace edgewise {

// Made by Backend::MakeCancelFlag, which says how long a flag must live. Attention problems name their flag. A raised
// flag stays raised.
class CancelFlag {
 public:
  CancelFlag() = default;
  virtual ~CancelFlag() = default;
  CancelFlag(const CancelFlag&) = delete;
  CancelFlag& operator=(const CancelFlag&) = delete;

  // Raises the flag. Any thread, at any time before destruction. Does not wait for the device.
  virtual void Cancel() { cancelled_.store(true, std::memory_order_release); }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> cancelled_ = false;
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CANCEL_FLAG_H_
