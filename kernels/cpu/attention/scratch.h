// The memory of an attention call on the CPU.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_SCRATCH_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_SCRATCH_H_

#include <cstddef>
#include <cstdint>

namespace edgewise::cpu_attention {

// 64-byte aligned memory that grows and is kept between calls; contents are lost when it grows.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  // Throws std::bad_alloc.
  void Reserve(size_t bytes);
  void ReleaseAbove(size_t bytes);
  // Next `count` objects of the reserved bytes, 64-byte aligned.
  template <typename T>
  T* Take(int64_t count) {
    T* taken = reinterpret_cast<T*>(data_ + used_);
    used_ += Rounded(count * sizeof(T));
    return taken;
  }
  static constexpr size_t Rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t used_ = 0;
};

}  // namespace edgewise::cpu_attention

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_SCRATCH_H_
