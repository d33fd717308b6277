// The functions of kernels/cuda/device/wgmma.cuh where the device is emulated: copies and products are done where they
// begin.
#ifndef EDGEWISE_TESTS_CUDA_EMULATOR_EMULATED_WGMMA_H_
#define EDGEWISE_TESTS_CUDA_EMULATOR_EMULATED_WGMMA_H_

#include "kernels/cuda/device/tensor_map.h"
#include "tests/cuda/emulator/device.h"

namespace edgewise::cuda {

using SharedBarrier = emulator::SharedBarrier;
inline void InitBarrier(SharedBarrier& barrier, int arrivals) { barrier.Init(arrivals); }
inline void Arrive(SharedBarrier& barrier) { barrier.Arrive(0); }
inline void ArriveExpecting(SharedBarrier& barrier, int bytes) { barrier.Arrive(bytes); }
inline void WaitFor(SharedBarrier& barrier, int parity, emulator::Where where = emulator::Where::current()) {
  barrier.Wait(parity, where);
}
inline void PublishBarriers() {}
inline void CopyBox(const TensorMap& map, int column, int64_t row, int matrix, void* to, SharedBarrier& barrier) {
  emulator::CopyBox(map, column, row, matrix, kMapColumns, kMapRows, to, barrier);
}
inline void ShowToProducts() {}
inline void TakeTurn(int) {}
inline void PassTurn(int) {}
template <int kRegisters>
inline void GiveRegisters() {}
template <int kRegisters>
inline void TakeRegisters() {}
inline void BeginProducts() {}
inline void CommitProducts() {}
template <int kPending>
inline void WaitForProducts() {
  emulator::MeetWarpgroup();
}
inline uint64_t SharedMatrix(const void* first) { return reinterpret_cast<uintptr_t>(first) / 16; }

// By each warp for its own 16 rows.
template <int kTiles, bool kTransposed>
inline void Multiply(float (&d)[kTiles][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  const int lane = emulator::Lane(), g = lane / 4, t = lane % 4;
  for (int n = 0; n < kTiles; ++n) {
    const auto at = [&](int k) -> uint32_t {
      const int row = kTransposed ? k : n * 8 + g, column = kTransposed ? n * 8 + g : k;
      uintptr_t address = static_cast<uintptr_t>(b) * 16 + row * 128 + column * 2;
      address ^= (address >> 7 & 7) << 4;
      return *reinterpret_cast<const uint16_t*>(address);  // NOLINT(performance-no-int-to-ptr)
    };
    const uint32_t pairs[2] = {at(2 * t) | at(2 * t + 1) << 16, at(2 * t + 8) | at(2 * t + 9) << 16};
    if (!add) d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0.0f;
    emulator::MmaBf16(d[n], a, pairs);
  }
}

template <int kTiles>
void Hold(float (&)[kTiles][4]) {}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_TESTS_CUDA_EMULATOR_EMULATED_WGMMA_H_
