#include "kernels/cpu/attention/scratch.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace edgewise::cpu_attention {

void Memory::Reserve(size_t bytes) {
  if (bytes <= size_) return;
  ReleaseAbove(0);
  constexpr size_t kHugePage = 2 << 20;
  const bool huge = bytes >= kHugePage;
  const size_t unit = huge ? kHugePage : 64;
  const size_t rounded = (bytes + unit - 1) / unit * unit;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(unit, rounded)));
  if (data_ == nullptr) throw std::bad_alloc();
  size_ = rounded;
  // Gathers touch many pages. Advice only, so a refusal is no error.
  if (huge) static_cast<void>(madvise(data_.get(), rounded, MADV_HUGEPAGE));
}

void Memory::ReleaseAbove(size_t bytes) {
  if (size_ <= bytes) return;
  data_.reset();
  size_ = 0;
}

void Worker::Prepare(int64_t columns, int depth) {
  const int64_t words = columns / 64;
  draw.capacity = std::max(kTileRows * (columns + 64), columns + kDrawGroup + 64);
  call_memory.Lay([&](const auto& place) {
    place(draw.column, draw.capacity + 64);
    place(draw.byte, draw.capacity + 64);
    place(draw.count, draw.capacity + 64);
    place(draw.batch_row, draw.capacity / 16 + 64);
    place(draw.batch_lanes, draw.capacity / 16 + 64);
    place(draw.tie, draw.capacity + 64);
    place(draw.tie_value, draw.capacity + 64);
    place(draw.tie_query, draw.capacity + 64);
    place(draw.tie_low, draw.capacity + 64);
    place(draw.tie_high, draw.capacity + 64);
    place(position_bits, kBlockRows * words);
    place(bits, kBlockRows * words);
    place(rows, kBlockRows);
    place(row_keys, columns + 64);
    place(q, static_cast<int64_t>(kBlockRows) * depth);
    place(sums, static_cast<int64_t>(kBlockRows) * depth);
    place(max_score, kBlockRows);
    place(limits, kBlockRows);
    place(query_positions, kBlockRows);
  });
}

}  // namespace edgewise::cpu_attention
