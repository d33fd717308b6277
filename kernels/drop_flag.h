// The word by which kernels learn, while they run, that a result is not wanted any more.
#ifndef EDGEWISE_KERNELS_DROP_FLAG_H_
#define EDGEWISE_KERNELS_DROP_FLAG_H_

#include <atomic>

namespace edgewise {

// Made by Backend::MakeDropFlag, which says how long it lives; named by the attention problems that it stands for. Once
// raised it stays so.
class DropFlag {
 public:
  DropFlag() = default;
  virtual ~DropFlag() = default;
  DropFlag(const DropFlag&) = delete;
  DropFlag& operator=(const DropFlag&) = delete;

  // Any thread, at any time, but not while the flag is destroyed. Does not wait for the device.
  virtual void Raise() { raised_.store(true, std::memory_order_release); }
  bool raised() const { return raised_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> raised_ = false;
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_DROP_FLAG_H_
