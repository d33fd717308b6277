// The instructions of sm_90a alone: copies by TMA, barriers in shared memory that count their bytes, and products of a
// warpgroup (128 threads) that run beside it.
#ifndef EDGEWISE_KERNELS_CUDA_DEVICE_WGMMA_CUH_
#define EDGEWISE_KERNELS_CUDA_DEVICE_WGMMA_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/tensor_map.h"

#if defined(EDGEWISE_CUDA_EMULATED)
#include <emulated_wgmma.h>  // the same functions
#endif

// Defined where code for sm_90a is compiled; elsewhere kernels that use this file are empty, and are not launched.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(EDGEWISE_CUDA_EMULATED)
#define EDGEWISE_HAS_WGMMA
#endif

namespace edgewise::cuda {

inline constexpr int kWarpgroup = 128;  // threads

#if !defined(EDGEWISE_CUDA_EMULATED)

// Goes on to the next phase once its number of threads have arrived and the bytes that they expect are there.
using SharedBarrier = uint64_t;

__device__ inline uint32_t SharedAddress(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ inline void InitBarrier(SharedBarrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(SharedAddress(&barrier)), "r"(arrivals));
}
__device__ inline void Arrive(SharedBarrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(SharedAddress(&barrier)) : "memory");
}
__device__ inline void ArriveExpecting(SharedBarrier& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(SharedAddress(&barrier)), "r"(bytes)
               : "memory");
}
// Until the phase of this parity is over; the first has parity 0.
__device__ inline void WaitFor(SharedBarrier& barrier, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra "
      "WAIT;\nDONE:\n}\n"
      :
      : "r"(SharedAddress(&barrier)), "r"(parity)
      : "memory");
}
// By the thread that has initialised barriers, before a block barrier.
__device__ inline void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

// Starts to copy a box of a matrix to shared memory, 1024-byte aligned: 16 bytes c of row r to place c ^ (r % 8) of its
// 128 bytes; zeros from outside of the matrix. The barrier gets the bytes.
__device__ inline void CopyBox(const TensorMap& map, int column, int64_t row, int matrix, void* to,
                               SharedBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
      :
      : "r"(SharedAddress(to)), "l"(&map), "r"(SharedAddress(&barrier)), "r"(column), "r"(static_cast<int>(row)),
        "r"(matrix)
      : "memory");
}
// Products and copies that begin after a barrier see the thread's writes to shared memory before this.
__device__ inline void ShowToProducts() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }

// Two warpgroups begin their products in turns: a hint that changes no result. `mine` is 0 or 1.
__device__ inline void TakeTurn(int mine) { asm volatile("bar.sync %0, 256;" : : "r"(1 + mine) : "memory"); }
__device__ inline void PassTurn(int mine) { asm volatile("bar.arrive %0, 256;" : : "r"(2 - mine) : "memory"); }

// By a whole warpgroup: how many registers each thread has from now on.
template <int kRegisters>
__device__ inline void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kRegisters));
}
template <int kRegisters>
__device__ inline void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kRegisters));
}

// Products between BeginProducts and CommitProducts are a group; registers that they read or add to belong to them
// until WaitForProducts says that all groups but the last kPending are done.
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
__device__ inline void CommitProducts() { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }
template <int kPending>
__device__ inline void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kPending) : "memory");
}

// A matrix that CopyBox has copied, as an operand of Multiply. From 16 columns to the next it is 2 more, from 16 rows
// to the next 128 more.
__device__ inline uint64_t SharedMatrix(const void* first) {
  return static_cast<uint64_t>((SharedAddress(first) & 0x3FFFFu) >> 4) | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

#define EDGEWISE_ROW(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define EDGEWISE_ROWS(d, n)                                                                                           \
  EDGEWISE_ROW(d, n), EDGEWISE_ROW(d, n + 1), EDGEWISE_ROW(d, n + 2), EDGEWISE_ROW(d, n + 3), EDGEWISE_ROW(d, n + 4), \
      EDGEWISE_ROW(d, n + 5), EDGEWISE_ROW(d, n + 6), EDGEWISE_ROW(d, n + 7)

// D [64, 8 kTiles] float32 = (add ? D : 0) + A [64, 16] bf16 times B [16, 8 kTiles] bf16, by a warpgroup. A warp
// has 16 rows, and its threads hold d and a as MmaBf16 has them. B: columns are rows of a matrix in shared memory, or
// with kTransposed its columns.
template <int kTiles, bool kTransposed>
__device__ inline void Multiply(float (&d)[kTiles][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  static_assert(kTiles == 8 || (kTiles == 16 && !kTransposed));
  const int adds = add ? 1 : 0;
  if constexpr (kTiles == 8) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"
        "%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, %38;\n}\n"
        : EDGEWISE_ROWS(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds), "n"(kTransposed ? 1 : 0));
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"
        "%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,"
        "%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}\n"
        : EDGEWISE_ROWS(d, 0), EDGEWISE_ROWS(d, 8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));
  }
}

#undef EDGEWISE_ROWS
#undef EDGEWISE_ROW

// The compiler moves no access to these registers over this place.
template <int kTiles>
__device__ inline void Hold(float (&d)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[n][i]) : : "memory");
  }
}

#endif

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_DEVICE_WGMMA_CUH_
