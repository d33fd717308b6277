// Barriers in shared memory and the copying engine of sm_90. Copies are done when they are begun: a kernel that does
// not wait for one is found where a thread that comes before the copy, in some order, reads what nothing wrote.
// Reports and ends the process where
//  - a barrier gets more arrivals or bytes than its phase has, or is used before it is initialised;
//  - a copy goes to a place that is not 1024-byte aligned, or begins at a column that is not 16-byte aligned;
//  - no thread can go on, since those that wait here wait for ever.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cuda/emulator/scheduler.h"

namespace emulator {
namespace {

struct Waiting {
  const SharedBarrier* barrier;
  int thread;
  Where where;
};
std::vector<Waiting> waiting;  // of the running block

}  // namespace

std::string TextOfWaiting() {
  std::string text;
  for (const Waiting& of : waiting) {
    text += "\n  thread " + std::to_string(of.thread) + ": a barrier in shared memory at " + of.where.file + ":" +
            std::to_string(of.where.line);
  }
  return text;
}

void SharedBarrier::Init(int arrivals) {
  arrivals_ = missing_ = arrivals;
  bytes_ = phase_ = 0;
}

void SharedBarrier::Arrive(int more_bytes) {
  if (missing_ <= 0 || missing_ > arrivals_) Fail("a barrier in shared memory got an arrival that it does not await");
  bytes_ += more_bytes;
  --missing_;
  EndPhase();
}

void SharedBarrier::AddBytes(int bytes) {
  bytes_ -= bytes;
  if (bytes_ < 0 && missing_ == 0) Fail("a barrier in shared memory got bytes that it does not await");
  EndPhase();
}

void SharedBarrier::EndPhase() {
  if (missing_ > 0 || bytes_ > 0) return;
  missing_ = arrivals_;
  phase_ ^= 1;
  std::erase_if(waiting, [&](const Waiting& of) {
    if (of.barrier != this) return false;
    MakeReady(of.thread / kLanes, 1u << of.thread % kLanes);
    return true;
  });
}

void SharedBarrier::Wait(int parity, Where where) {
  if (phase_ != 0 && phase_ != 1) Fail("waits at %s:%d for a barrier that is not initialised", where.file, where.line);
  if (phase_ != parity) return;
  waiting.push_back({this, block.running, where});
  GiveWay();
}

void MeetWarpgroup(Where where) {
  constexpr int kThreads = 4 * kLanes;
  static SharedBarrier barriers[kMaxThreads / kThreads];  // zeros at first
  SharedBarrier& barrier = barriers[block.running / kThreads];
  if (barrier.arrivals_ == 0) barrier.Init(kThreads);
  const int phase = barrier.phase_;
  barrier.Arrive(0);
  barrier.Wait(phase, where);
}

void CopyBox(const TensorMap& map, int column, int64_t row, int matrix, int box_columns, int box_rows, void* to,
             SharedBarrier& barrier) {
  constexpr int kPiece = 8;  // elements of 16 bytes
  if (box_columns != 8 * kPiece || column % kPiece != 0 || reinterpret_cast<uintptr_t>(to) % 1024 != 0) {
    Fail("CopyBox of %d columns from column %d to %p", box_columns, column, to);
  }
  if (matrix < 0 || matrix >= map.count) Fail("CopyBox of matrix %d of %d", matrix, static_cast<int>(map.count));
  const auto* const from = static_cast<const uint16_t*>(map.data) + matrix * map.matrix_stride;
  auto* const box = static_cast<uint16_t*>(to);
  for (int r = 0; r < box_rows; ++r) {
    for (int c = 0; c < box_columns; ++c) {
      const bool inside = row + r >= 0 && row + r < map.rows && column + c < map.columns;
      box[r * box_columns + (c / kPiece ^ r % 8) * kPiece + c % kPiece] =
          inside ? from[(row + r) * map.row_stride + column + c] : 0;
    }
  }
  barrier.AddBytes(box_rows * box_columns * 2);
}

}  // namespace emulator
