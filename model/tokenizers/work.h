// The work on one text: its steps, the bytes that it holds, and how long it may become.
#ifndef EDGEWISE_MODEL_TOKENIZERS_WORK_H_
#define EDGEWISE_MODEL_TOKENIZERS_WORK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "base/work_bounds.h"

namespace edgewise::tokenizers {

// Values of fewer bytes are not counted: a text has few of them at a time.
inline constexpr size_t kUncounted = 4 << 10;

// One thread at a time.
struct Work : WorkMeter {
  explicit Work(WorkBounds& bounds) : WorkMeter(bounds) {}

  size_t piece = kWorkPiece;     // bytes of text that a normalizer changes at once
  size_t most_bytes = SIZE_MAX;  // of what normalizers make of the text
};

// A vector whose bytes are reserved before they are allocated.
template <typename T>
class Counted {
 public:
  explicit Counted(WorkBounds& bounds) : held_(bounds) {}

  absl::Status Reserve(size_t size) {
    if (size <= values_.capacity()) return absl::OkStatus();
    const size_t grown = std::max(size, 2 * values_.capacity()), bytes = grown * sizeof(T);
    // Both are held while the values move.
    if (bytes > kUncounted) RETURN_IF_ERROR(held_.Resize(bytes + values_.capacity() * sizeof(T)));
    values_.reserve(grown);
    return bytes > kUncounted ? held_.Resize(bytes) : absl::OkStatus();
  }
  absl::Status Push(const T& value) {
    if (values_.size() == values_.capacity()) RETURN_IF_ERROR(Reserve(std::max<size_t>(values_.size() + 1, 16)));
    values_.push_back(value);
    return absl::OkStatus();
  }
  std::vector<T>& values() { return values_; }
  const std::vector<T>& values() const { return values_; }

 private:
  ReservedBytes held_;
  std::vector<T> values_;
};

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_WORK_H_
