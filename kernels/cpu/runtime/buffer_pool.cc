#include "kernels/cpu/runtime/buffer_pool.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/runtime/memory.h"

namespace edgewise {

BufferPool::~BufferPool() {
  const absl::MutexLock lock(&mutex_);
  most_kept_bytes_ = 0;
  Shrink();
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
      data = kept_[size].back().data;
      kept_[size].pop_back();
      kept_bytes_ -= Bytes(size);
    } else {
      data = Take(size);
    }
    if (data != nullptr) {
      used_bytes_ += Bytes(size);
      most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
      Shrink();
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

void BufferPool::Age() {
  const absl::MutexLock lock(&mutex_);
  most_used_before_ = most_used_bytes_;
  most_used_bytes_ = used_bytes_;
  Shrink();
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
  kept_[size].push_back({data, ++releases_});
  kept_bytes_ += Bytes(size);
  used_bytes_ -= Bytes(size);
  Shrink();
}

void BufferPool::Shrink() {
  const size_t most = std::max({kLeastBytes, most_used_bytes_, most_used_before_});
  while (kept_bytes_ > most_kept_bytes_ || (kept_bytes_ > 0 && kept_bytes_ + used_bytes_ > most)) {
    int oldest = -1;
    for (int size = 0; size < kSizes; ++size) {
      if (kept_[size].empty()) continue;
      if (oldest < 0 || kept_[size].front().freed < kept_[oldest].front().freed) oldest = size;
    }
    Return(kept_[oldest].front().data, oldest);
    kept_[oldest].erase(kept_[oldest].begin());
    kept_bytes_ -= Bytes(oldest);
  }
}

}  // namespace edgewise
