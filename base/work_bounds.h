// Limits the preparation of one message: time until its deadline or its cancellation, and bytes. The code that does the
// work (tokenizers, chat templates, images) asks between pieces of it; the code that started the work answers.
#ifndef EDGEWISE_BASE_WORK_BOUNDS_H_
#define EDGEWISE_BASE_WORK_BOUNDS_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"

namespace edgewise {

// Work that goes on for longer than about this many bytes of text, or steps of like cost, asks Continue in between.
inline constexpr size_t kWorkPiece = 16 << 10;

// Used by one thread at a time.
class WorkBounds {
 public:
  virtual ~WorkBounds() = default;
  // Whether the work may go on. DEADLINE_EXCEEDED, CANCELLED: it ends with this status, as it is.
  virtual absl::Status Continue() { return absl::OkStatus(); }
  // Before `bytes` more are held. RESOURCE_EXHAUSTED: they may not be, and are not counted.
  virtual absl::Status Reserve(uint64_t bytes) { return (void)bytes, absl::OkStatus(); }
  // `bytes` of those are held no longer.
  virtual void Release(uint64_t bytes) { (void)bytes; }
};

// No bounds, for tests and tools; any thread may use them.
inline WorkBounds& NoBounds() {
  static WorkBounds none;
  return none;
}

// Bytes of `bounds`, released at the end; `bounds` must outlive it.
class ReservedBytes {
 public:
  explicit ReservedBytes(WorkBounds& bounds) : bounds_(&bounds) {}
  ReservedBytes(ReservedBytes&& other) noexcept : bounds_(other.bounds_), bytes_(std::exchange(other.bytes_, 0)) {}
  ReservedBytes& operator=(ReservedBytes&& other) noexcept {
    std::swap(bounds_, other.bounds_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ReservedBytes() {
    if (bytes_ > 0) bounds_->Release(bytes_);
  }

  // Changes the reservation to `bytes`. RESOURCE_EXHAUSTED: as before.
  absl::Status Resize(uint64_t bytes) {
    if (bytes > bytes_) {
      if (absl::Status status = bounds_->Reserve(bytes - bytes_); !status.ok()) return status;
    } else if (bytes < bytes_) {
      bounds_->Release(bytes_ - bytes);
    }
    bytes_ = bytes;
    return absl::OkStatus();
  }
  uint64_t bytes() const { return bytes_; }

 private:
  WorkBounds* bounds_;
  uint64_t bytes_ = 0;
};

// Asks whether the work goes on, once for every piece of it.
class WorkMeter {
 public:
  explicit WorkMeter(WorkBounds& bounds) : bounds_(&bounds) {}

  // Call it every kWorkPiece steps, each about as long as reading a byte of text takes.
  absl::Status Charge(uint64_t steps) {
    if (steps < left_) return left_ -= steps, absl::OkStatus();
    left_ = kWorkPiece;
    return bounds_->Continue();
  }
  WorkBounds& bounds() const { return *bounds_; }

 private:
  WorkBounds* bounds_;
  uint64_t left_ = kWorkPiece;
};

}  // namespace edgewise

#endif  // EDGEWISE_BASE_WORK_BOUNDS_H_
