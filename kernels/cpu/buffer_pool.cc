#include "kernels/cpu/buffer_pool.h"

#include <algorithm>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/memory.h"

namespace edgewise {

BufferPool::~BufferPool() {
  const absl::MutexLock lock(&mutex_);
  FreeKept();
}

absl::StatusOr<Buffer> BufferPool::Allocate(int64_t floats) {
  const size_t wanted = static_cast<size_t>(floats) * sizeof(float);
  int size = 0;
  while (size < kSizes && Bytes(size) < wanted) ++size;
  float* data = nullptr;
  {
    const absl::MutexLock lock(&mutex_);
    if (size == kSizes) {
      // Beyond any machine.
    } else if (!kept_[size].empty()) {
      data = kept_[size].back();
      kept_[size].pop_back();
      kept_bytes_ -= Bytes(size);
    } else {
      if (kept_bytes_ + Bytes(size) > most_kept_bytes_) FreeKept();  // other sizes are wanted now
      data = Take(size);
    }
  }
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("out of memory: ", wanted, " bytes asked for on the CPU"));
  }
  return Buffer(data, floats, [this, size](float* freed) { Free(freed, size); });
}

void BufferPool::Keep(int64_t floats) {
  const absl::MutexLock lock(&mutex_);
  most_kept_bytes_ = std::max(most_kept_bytes_, static_cast<size_t>(floats) * sizeof(float));
}

float* BufferPool::Take(int size) {
  float* data = AllocateFloats(static_cast<int64_t>(Bytes(size) / sizeof(float)));
  if (data != nullptr) CountWorkingBytes(static_cast<int64_t>(Bytes(size)));
  return data;
}

void BufferPool::Return(float* data, int size) {
  std::free(data);
  CountWorkingBytes(-static_cast<int64_t>(Bytes(size)));
}

void BufferPool::Free(float* data, int size) {
  const absl::MutexLock lock(&mutex_);
  if (kept_bytes_ + Bytes(size) > most_kept_bytes_) return Return(data, size);
  kept_[size].push_back(data);
  kept_bytes_ += Bytes(size);
}

void BufferPool::FreeKept() {
  for (int size = 0; size < kSizes; ++size) {
    for (float* data : kept_[size]) Return(data, size);
    kept_[size].clear();
  }
  kept_bytes_ = 0;
}

}  // namespace edgewise
