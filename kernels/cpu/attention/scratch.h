// Memory that attention on the CPU keeps between calls. The backend owns it and passes it in.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_SCRATCH_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <type_traits>
#include <vector>

#include "kernels/cpu/runtime/memory.h"
#include "kernels/cpu/simd/kernels.h"

namespace edgewise {
namespace cpu_attention {

struct FreeCounted {
  size_t bytes = 0;
  void operator()(std::byte* data) const {
    std::free(data);
    CountWorkingBytes(-static_cast<int64_t>(bytes));
  }
};

// 64-byte aligned memory that grows. Arrays laid out in it lose their contents when it is laid out again.
class Memory {
 public:
  // Lays out the arrays that visit(place) names by place(pointer, count). Calls `visit` twice: once to count bytes and
  // once to set the pointers. Throws std::bad_alloc.
  template <typename Visit>
  void Lay(const Visit& visit) {
    size_t bytes = 0;
    visit([&](auto*& pointer, int64_t count) { bytes += Rounded(static_cast<size_t>(count) * sizeof(*pointer)); });
    Reserve(bytes);
    std::byte* next = data_.get();
    visit([&](auto*& pointer, int64_t count) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(next);
      next += Rounded(static_cast<size_t>(count) * sizeof(*pointer));
    });
  }
  void ReleaseAbove(size_t bytes);
  size_t size() const { return data_ == nullptr ? 0 : data_.get_deleter().bytes; }
  static constexpr size_t Rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  void Reserve(size_t bytes);

  std::unique_ptr<std::byte, FreeCounted> data_;
};

// Memory for arrays one after the other, which stay until all behind a place are dropped. It keeps its memory then.
class Pile {
 public:
  struct Place {
    size_t chunk = 0, used = 0;
  };
  // 64-byte aligned, not initialised. Throws std::bad_alloc.
  template <typename T>
  T* Take(int64_t count) {
    return reinterpret_cast<T*>(TakeBytes(Memory::Rounded(static_cast<size_t>(count) * sizeof(T))));
  }
  Place place() const { return next_; }
  void DropFrom(Place place) { next_ = place; }
  void ReleaseAbove(size_t bytes);  // drops all

 private:
  struct Chunk {
    Memory memory;
    std::byte* data = nullptr;
  };
  std::byte* TakeBytes(size_t bytes);

  std::vector<Chunk> chunks_;
  Place next_;
};

// Edges of one block of query rows as lists of keys, rows and keys as token indices.
struct EdgeLists {
  std::vector<int64_t> offsets;     // [rows + 1] into
  std::vector<int32_t> keys;        // ascending within a row; may have room beyond the last
  std::vector<float> multiplicity;  // as keys; empty: all 1

  // Room for `more` keys after the first `used`; these stay.
  int32_t* Room(int64_t used, int64_t more) {
    const auto room = static_cast<size_t>(used + more);
    if (keys.size() < room) keys.resize(room + static_cast<size_t>(used));
    return keys.data() + used;
  }
};

// A view of the edges of one block of query rows, rows and keys as token indices.
struct BlockEdges {
  const uint64_t* bits = nullptr;       // [rows, words of the head], or
  const int64_t* offsets = nullptr;     // [rows + 1] into
  const int32_t* keys = nullptr;        // ascending within a row
  const float* multiplicity = nullptr;  // as keys; null: all 1
  uint64_t count = 0;
};

// An accepted event (kernels/draw/events.h) of an age within a span.
struct OpenEvent {
  int32_t row = 0;     // in its block
  int32_t key = 0;     // token
  uint32_t age = 0;    // in 2^-31
  int32_t before = 0;  // law poisson_multi: events of the pair that are younger than the span
  bool known = false;  // the pair is an edge without it: forced, or by a younger event. Only of law poisson_multi
};

// The edges of a block of query rows that exist for every tau of a span, forced ones included, and what is open.
struct DrawnBlock {
  uint64_t* bits = nullptr;            // [rows, words] in the worker; null: worker.lists
  uint64_t count = 0;                  // of the edges
  std::vector<ParallelEdge> parallel;  // edges of multiplicity above 1
  std::vector<OpenPair> open;          // a forced edge is open where its multiplicity is
  std::vector<OpenEvent> events;       // by row, key and age
};

// Buffers of one thread of the pool, for one block of query rows of the longest sequence of a call.
struct alignas(64) Worker {
  Memory call_memory;   // of the arrays below
  Memory block_memory;  // of AttendBlock
  Memory extra_memory;  // of DrawExtras
  Memory event_memory;  // of EventScratch and the next four
  Pile kept;            // edges of blocks under a cap, until the next call
  EventScratch events;
  int64_t* event_ends = nullptr;   // [kBlockRows]
  uint64_t* event_bits = nullptr;  // [(n + 63) / 64] one bit a key; zero between uses
  int32_t* event_keys = nullptr;   // [capacity + 2 n + 64] of one row
  uint32_t* event_ages = nullptr;  // likewise
  DrawScratch draw;
  uint64_t* position_bits = nullptr;   // [kBlockRows, words] edges by position
  uint64_t* bits = nullptr;            // [kBlockRows, words] edges by token index
  DrawRow* rows = nullptr;             // [kBlockRows]
  int32_t* row_keys = nullptr;         // [columns + 64]
  float* q = nullptr;                  // [kBlockRows, depth]
  float* sums = nullptr;               // [kBlockRows, depth]
  float* max_score = nullptr;          // [kBlockRows]
  int32_t* limits = nullptr;           // [kBlockRows] AttendBlock::limits
  int32_t* starts = nullptr;           // [kBlockRows] AttendBlock::starts
  int32_t* query_positions = nullptr;  // [kBlockRows] AttendBlock::query_positions
  EdgeLists lists;
  DrawnBlock drawn;
  std::vector<ParallelEdge> added;  // by AddOpenPairs and AddOpenEvents

  // Throws std::bad_alloc.
  void Prepare(int64_t columns, int depth);
};

}  // namespace cpu_attention
}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_SCRATCH_H_
