#include "kernels/cpu/attention/scratch.h"

#include <algorithm>
#include <new>

#include "kernels/cpu/runtime/memory.h"

namespace edgewise::cpu_attention {

void Memory::Reserve(size_t bytes) {
  if (bytes <= size()) return;
  data_.reset();
  float* const data = AllocateFloats(static_cast<int64_t>((bytes + sizeof(float) - 1) / sizeof(float)));
  if (data == nullptr) throw std::bad_alloc();
  data_ = {reinterpret_cast<std::byte*>(data), FreeCounted{bytes}};
  CountWorkingBytes(static_cast<int64_t>(bytes));
}

void Memory::ReleaseAbove(size_t bytes) {
  if (size() > bytes) data_.reset();
}

std::byte* Pile::TakeBytes(size_t bytes) {
  constexpr size_t kChunkBytes = size_t{1} << 20;
  while (next_.chunk < chunks_.size() && next_.used + bytes > chunks_[next_.chunk].memory.size()) {
    next_ = {next_.chunk + 1, 0};
  }
  if (next_.chunk == chunks_.size()) {
    Chunk& chunk = chunks_.emplace_back();
    const auto size = static_cast<int64_t>(std::max(bytes, kChunkBytes));
    chunk.memory.Lay([&](const auto& place) { place(chunk.data, size); });
  }
  std::byte* const begin = chunks_[next_.chunk].data + next_.used;
  next_.used += bytes;
  return begin;
}

void Pile::ReleaseAbove(size_t bytes) {
  next_ = {};
  size_t all = 0;
  for (const Chunk& chunk : chunks_) all += chunk.memory.size();
  if (all > bytes) chunks_.clear();
}

void Worker::Prepare(int64_t columns, int depth) {
  kept.DropFrom({});
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
    place(starts, kBlockRows);
    place(query_positions, kBlockRows);
  });
}

}  // namespace edgewise::cpu_attention
