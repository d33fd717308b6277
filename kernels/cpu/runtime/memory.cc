#include "kernels/cpu/runtime/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace edgewise {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

std::atomic<uint64_t> working_bytes = 0;

}  // namespace

float* AllocateFloats(int64_t floats) {
  const size_t bytes =
      (static_cast<size_t>(std::max<int64_t>(floats, 1)) * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
  const bool huge = bytes >= kHugePage;
  void* memory = nullptr;
  if (posix_memalign(&memory, huge ? kHugePage : kAlignment, bytes) != 0) return nullptr;
  if (huge) madvise(memory, bytes, MADV_HUGEPAGE);  // without huge pages the memory is as good
  return static_cast<float*>(memory);
}

absl::StatusOr<Buffer> AllocateOnHost(int64_t floats) {
  float* const memory = AllocateFloats(floats);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory: ", floats * sizeof(float), " bytes asked for on the CPU"));
  }
  return Buffer(memory, floats, [](float* data) { std::free(data); });
}

uint64_t WorkingBytes() { return working_bytes.load(std::memory_order_relaxed); }

void CountWorkingBytes(int64_t more) {
  working_bytes.fetch_add(static_cast<uint64_t>(more), std::memory_order_relaxed);
}

}  // namespace edgewise
