// The word by which kernels learn, while they run, that a result is not wanted any more.
#ifndef EDGEWISE_KERNELS_CANCEL_FLAG_H_
#define EDGEWISE_KERNELS_CANCEL_FLAG_H_

#include <atomic>

namespace edgewise {

// Made by Backend::MakeCancelFlag, which says how long it lives; named by the attention problems that it stands for.
// Once raised it stays so.
class CancelFlag {
 public:
  CancelFlag() = default;
  virtual ~CancelFlag() = default;
  CancelFlag(const CancelFlag&) = delete;
  CancelFlag& operator=(const CancelFlag&) = delete;

  // Any thread, at any time, but not while the flag is destroyed. Does not wait for the device.
  virtual void Cancel() { cancelled_.store(true, std::memory_order_release); }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> cancelled_ = false;
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CANCEL_FLAG_H_
