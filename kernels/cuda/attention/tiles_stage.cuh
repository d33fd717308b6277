// Copies rows of queries, keys and values to shared memory, in both precisions of the tile kernel. All threads of a
// block of kWarps warps call a function with that parameter.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_STAGE_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_STAGE_CUH_

#include <cuda_bf16.h>
#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/tiles_item.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/kv_page.h"

namespace edgewise::cuda {

// Floats column..column + 3 of a row of `columns`, zeros beyond; row null: zeros.
__device__ inline float4 LoadFour(const float* row, int column, int columns) {
  if (row == nullptr || column >= columns) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  return *reinterpret_cast<const float4*>(row + column);
}

// Threads side by side in a row of `groups` groups: 2 to this power, at most a warp. A shift, since a division by a
// number that is not known before takes some twenty instructions.
__device__ inline int LogThreadsOfRow(int groups) { return groups >= kWarpSize ? 5 : 32 - __clz(groups - 1); }

// Calls store(row, group, load(row, group)) for kRows rows and groups 0..groups - 1. Neighbouring threads take
// neighbouring groups, and kAtOnce loads of a thread are in flight.
template <int kWarps, int kRows, int kAtOnce, typename Load, typename Store>
__device__ inline void MoveGroups(int groups, const Load& load, const Store& store) {
  const int log_width = LogThreadsOfRow(groups), width = 1 << log_width;
  const int thread = static_cast<int>(threadIdx.x), step = kTileThreads<kWarps> >> log_width;
  for (int group = thread & (width - 1); group < groups; group += width) {
    for (int first = thread >> log_width; first < kRows; first += kAtOnce * step) {
      decltype(load(0, 0)) loaded[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * step < kRows) loaded[i] = load(first + i * step, group);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * step < kRows) store(first + i * step, group, loaded[i]);
      }
    }
  }
}

// The keys, or the values, of one head as tiles read them: rows of a matrix, or of pages.
template <typename Element>
struct HeadRows {
  const Element* first;  // in pages: any address
  int64_t stride;        // elements
  const float* const* pages;
  int64_t in_page;  // of the head

  __device__ const Element* operator()(int32_t token) const {
    if (pages == nullptr) return first + token * stride;
    const auto place = static_cast<unsigned>(token);
    return reinterpret_cast<const Element*>(pages[place / KvPage::kTokens]) + in_page +
           place % KvPage::kTokens * stride;
  }
};

// Those that the item reads. `matrix`: the call's keys or values, in its precision. `in_page`: of the head in a page of
// `dim` columns.
template <typename Element>
__device__ inline HeadRows<Element> RowsOfHead(const DeviceProblem& problem, const Element* matrix, int64_t stride,
                                               int64_t of_head, int64_t in_page, int dim) {
  if (problem.pages != nullptr) {
    return {reinterpret_cast<const Element*>(problem.pages), dim, problem.pages, in_page};
  }
  return {matrix + problem.first_row * stride + of_head, stride, nullptr, 0};
}
template <typename Element>
__device__ inline HeadRows<Element> KeysOf(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item,
                                           const Element* k, int64_t stride, int64_t head_stride) {
  const KvPage page{call.num_heads / call.heads_of_key, call.head_dim};
  const int64_t head = KeyHead(call, item.head);
  return RowsOfHead(problem, k, stride, head * head_stride, page.Keys(static_cast<int32_t>(head)), call.head_dim);
}
template <typename Element>
__device__ inline HeadRows<Element> ValuesOf(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item,
                                             const Element* v, int64_t stride, int64_t head_stride) {
  const KvPage page{call.num_heads / call.heads_of_key, call.value_dim};
  const int64_t head = KeyHead(call, item.head);
  return RowsOfHead(problem, v, stride, head * head_stride, page.Values(static_cast<int32_t>(head)), call.value_dim);
}

namespace tiles_fp32 {

// Copies `columns` floats, at most kColumns, of the rows row_of(0..kRows-1) (null: zeros), times `factor`, to shared
// memory: their parts, `part_stride` elements apart, with zeros up to kColumns.
template <int kWarps, int kRows, int kColumns, typename RowOf>
__device__ inline void StageParts(const RowOf& row_of, int columns, float factor, int part_stride, int stride,
                                  __nv_bfloat16* to) {
  constexpr int kGroups = kColumns / 4, kStep = kTileThreads<kWarps> / kGroups;  // a thread has every kStep-th row
  constexpr int kAll = kRows / kStep, kMost = kWarps > 1 ? 4 : 8;
  constexpr int kAtOnce = kAll < kMost ? kAll : kMost;  // loads of a thread in flight
  static_assert(kRows % (kStep * kAtOnce) == 0);
  const int column = static_cast<int>(threadIdx.x) % kGroups * 4;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x) / kGroups; first < kRows; first += kAtOnce * kStep) {
    float4 x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) x[i] = LoadFour(row_of(first + i * kStep), column, columns);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const PairParts low = PartPair(x[i].x * factor, x[i].y * factor),
                      high = PartPair(x[i].z * factor, x[i].w * factor);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        *reinterpret_cast<uint2*>(to + part * part_stride + (first + i * kStep) * stride + column) =
            make_uint2(low.part[part], high.part[part]);
      }
    }
  }
}

}  // namespace tiles_fp32

namespace tiles_bf16 {

inline constexpr int kStep = 16;  // columns or keys that one product sums over

EDGEWISE_HOST_DEVICE inline int Steps(int dim) { return (dim + kStep - 1) / kStep; }
// Elements from one row to the next in shared memory: 8 neighbouring rows lie in different banks.
EDGEWISE_HOST_DEVICE inline int Stride(int dim) { return Steps(dim) * kStep + 8; }

// Starts to copy 16 bytes from global to shared memory; zeros unless `copied`, and then `from` is only to be an
// address.
__device__ inline void StartCopy(__nv_bfloat16* to, const __nv_bfloat16* from, bool copied) {
  constexpr int kBytes = 16;
  const int bytes = copied ? kBytes : 0;
#if defined(EDGEWISE_CUDA_EMULATED)
  __pipeline_memcpy_async(to, from, kBytes, kBytes - bytes);
#else
  // As __pipeline_memcpy_async, which takes two instructions and a choice between them.
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from), "r"(bytes)
               : "memory");
#endif
}

// Starts to copy the rows of a tile's keys (-1: zeros) to shared memory, as one group of asynchronous copies.
// kGroups: of 8 columns, or a few more; 0: not known.
template <int kWarps, int kGroups, int kKeys>
__device__ inline void StartTile(const int32_t (&keys)[kKeys], const HeadRows<__nv_bfloat16>& from, int columns,
                                 __nv_bfloat16* to) {
  const int stride = Stride(columns), groups = 2 * Steps(columns);
  const int log_width = LogThreadsOfRow(kGroups > 0 ? kGroups : groups);
  const int thread = static_cast<int>(threadIdx.x), group = thread & ((1 << log_width) - 1);
  const int first = thread >> log_width, step = kTileThreads<kWarps> >> log_width;
  const bool inside = 8 * group < columns;
  if (group < groups) {
#pragma unroll(kGroups > 0 ? 8 : 1)
    for (int i = 0; i < kKeys / step; ++i) {
      const int32_t key = keys[first + i * step];
      const bool copied = inside && key >= 0;
      StartCopy(to + (first + i * step) * stride + 8 * group, copied ? from(key) + 8 * group : from.first, copied);
    }
  }
  __pipeline_commit();
}

// Waits for all groups of copies but the last, for all threads of the block.
__device__ inline void WaitForTile() {
  __pipeline_wait_prior(1);
  __syncthreads();
}

// The queries of the rows, rounded, that begin at place_of(0..) of q; below 0: zeros.
template <int kWarps, typename PlaceOf>
__device__ inline void StageQueries(const DeviceCall& call, const PlaceOf& place_of, __nv_bfloat16* to) {
  const int columns = call.head_dim, stride = Stride(columns);
  const auto load = [&](int row, int group) {
    const int64_t place = place_of(row);
    if (place < 0 || 4 * group >= columns) return make_uint2(0, 0);
    if (call.q16 != nullptr) return *reinterpret_cast<const uint2*>(call.q16 + place + 4 * group);
    const float4 x = *reinterpret_cast<const float4*>(call.q + place + 4 * group);
    return make_uint2(PackBf16(x.x, x.y), PackBf16(x.z, x.w));
  };
  MoveGroups<kWarps, kWarps * kWarpQueries, 4>(4 * Steps(columns), load, [&](int row, int group, uint2 x) {
    *reinterpret_cast<uint2*>(to + row * stride + 4 * group) = x;
  });
}

}  // namespace tiles_bf16
}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_STAGE_CUH_
