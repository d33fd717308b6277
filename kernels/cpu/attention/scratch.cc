#include "kernels/cpu/attention/scratch.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace edgewise::cpu_attention {
namespace {

constexpr size_t kHugePage = 2 << 20;

}  // namespace

Memory::~Memory() { std::free(data_); }

void Memory::Reserve(size_t bytes) {
  used_ = 0;
  if (bytes <= size_) return;
  std::free(data_);
  data_ = nullptr;
  size_ = 0;
  const bool huge = bytes >= kHugePage;
  const size_t unit = huge ? kHugePage : 64;
  const size_t rounded = (bytes + unit - 1) / unit * unit;
  data_ = static_cast<std::byte*>(std::aligned_alloc(unit, rounded));
  if (data_ == nullptr) throw std::bad_alloc();
  size_ = rounded;
  // Gathers touch many pages; advice only, so a refusal is no error.
  if (huge) (void)madvise(data_, rounded, MADV_HUGEPAGE);
}

void Memory::ReleaseAbove(size_t bytes) {
  if (size_ <= bytes) return;
  std::free(data_);
  data_ = nullptr;
  size_ = used_ = 0;
}

}  // namespace edgewise::cpu_attention
