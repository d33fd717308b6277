// The products of a decoder's step: 16 rows at a time, y = W x by m16n8k16 products.
//
// A block has 8 warps and tiles of 8 rows of W. Warp w takes runs w, w + 8, .. of 32 columns, and the warps' sums are
// added in order. A lane reads 16 bytes of a row of W, and of x likewise: columns are taken in another order than they
// lie, the same for both. With g = lane / 4 and t = lane % 4 a lane has row g of the tile and rows g, g + 8 of x.
#ifndef EDGEWISE_KERNELS_CUDA_DECODE_PRODUCT_CUH_
#define EDGEWISE_KERNELS_CUDA_DECODE_PRODUCT_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/decode/kernels.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/vector.cuh"

namespace edgewise::cuda::decode {

inline constexpr int kWarps = 8, kThreads = kWarps * kWarpSize;
inline constexpr int kRows = 16;    // at a time
inline constexpr int kTile = 8;     // rows of W
inline constexpr int kRun = 32;     // columns that a warp takes at a time
inline constexpr int kHeld = 4;     // runs of weights of a warp that are on their way at once
inline constexpr int kSlab = 4096;  // columns of x in shared memory at a time

// Elements from one row of x to the next in shared memory: rows lie 64 bytes apart modulo 128.
EDGEWISE_HOST_DEVICE inline int StrideOf(int columns) {
  const int slab = columns < kSlab ? columns : kSlab;
  return (slab + 63) / 64 * 64 + 32;
}
inline size_t SharedBytes(int columns) {
  return static_cast<size_t>(kRows) * StrideOf(columns) * sizeof(__nv_bfloat16);
}

// The next kernel of the stream may start; this one has what the kernels before wrote.
__device__ inline void StartNext() {
#if !defined(EDGEWISE_CUDA_EMULATED) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void Wait() {
#if !defined(EDGEWISE_CUDA_EMULATED) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Row `g` of a tile is this row of W: neighbours.
struct Neighbours {
  int32_t out;
  EDGEWISE_HOST_DEVICE int32_t tiles() const { return (out + kTile - 1) / kTile; }
  EDGEWISE_HOST_DEVICE int32_t operator()(int32_t tile, int g) const { return tile * kTile + g; }
};
// Four rows and those `apart` behind them, of runs of 2 * apart rows: halves that belong together.
struct Halves {
  int32_t out, apart;
  EDGEWISE_HOST_DEVICE int32_t tiles() const { return out / kTile; }
  EDGEWISE_HOST_DEVICE int32_t operator()(int32_t tile, int g) const {
    const int32_t of_run = apart / 4, run = tile / of_run;
    return run * 2 * apart + (tile - run * of_run) * 4 + g % 4 + (g < 4 ? 0 : apart);
  }
};

// The weights of kHeld runs of a warp. Not by __ldg: ptxas moves loads of data that is only read behind Wait.
struct HeldWeights {
  uint4 at[kHeld];
};

template <typename RowsOfTile>
__device__ inline void LoadWeights(const DecodeProduct& product, const RowsOfTile& rows, int32_t tile, int first_run,
                                   HeldWeights& to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int32_t row = tile < rows.tiles() ? rows(tile, lane / 4) : product.out;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int column = (first_run + i * kWarps) * kRun + lane % 4 * 8;
    to.at[i] = row < product.out && column < product.in_padded
                   ? *reinterpret_cast<const uint4*>(product.weight + int64_t{row} * product.in_padded + column)
                   : make_uint4(0, 0, 0, 0);
  }
}

// All products of a kernel's block, of rows[0] rows. stage(first row, rows, first column, columns) puts a slab of x
// [kRows, StrideOf(in_padded)] into shared memory, zeros beyond; finish(row, tile, g, sum of g, sum of its partner
// g ^ 4), by the threads of rows that run. The first weights are on their way while the kernel before ends.
template <typename RowsOfTile, typename Stage, typename Finish>
__device__ inline void Multiply(const DecodeProduct& product, const RowsOfTile& rows_of_tile, const int32_t* rows,
                                const Stage& stage, const Finish& finish) {
  __shared__ float sums[kWarps][kRows * kTile];
  const auto* const x = reinterpret_cast<const __nv_bfloat16*>(DynamicShared());
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int g = lane / 4, t = lane % 4, stride = StrideOf(product.in_padded);
  const bool one_slab = product.in_padded <= kSlab;
  StartNext();
  HeldWeights held;
  LoadWeights(product, rows_of_tile, static_cast<int32_t>(blockIdx.x), warp, held);
  Wait();
  const int32_t count = *rows;
  for (int32_t first_row = 0; first_row < count; first_row += kRows) {
    const int32_t here = min(kRows, count - first_row);
    if (one_slab) {
      __syncthreads();
      stage(first_row, here, 0, product.in_padded);
      __syncthreads();
    }
    for (int32_t tile = static_cast<int32_t>(blockIdx.x); tile < rows_of_tile.tiles();
         tile += static_cast<int32_t>(gridDim.x)) {
      float sum[4] = {};
      for (int first = 0; first < product.in_padded; first += kSlab) {
        const int columns = min(kSlab, product.in_padded - first);
        if (!one_slab) {
          __syncthreads();
          stage(first_row, here, first, columns);
          __syncthreads();
        }
        const int runs = (columns + kRun - 1) / kRun;
        for (int run = warp; run < runs; run += kHeld * kWarps) {
          if (run > warp || first > 0 || first_row > 0 || tile != static_cast<int32_t>(blockIdx.x)) {
            LoadWeights(product, rows_of_tile, tile, first / kRun + run, held);
          }
#pragma unroll
          for (int i = 0; i < kHeld; ++i) {
            if (run + i * kWarps >= runs) break;
            const __nv_bfloat16* const from = x + g * stride + (run + i * kWarps) * kRun + t * 8;
            const uint4 low = *reinterpret_cast<const uint4*>(from),
                        high = *reinterpret_cast<const uint4*>(from + 8 * stride);
            const uint32_t a0[4] = {low.x, high.x, low.y, high.y}, a1[4] = {low.z, high.z, low.w, high.w};
            const uint32_t b0[2] = {held.at[i].x, held.at[i].y}, b1[2] = {held.at[i].z, held.at[i].w};
            MmaBf16(sum, a0, b0);
            MmaBf16(sum, a1, b1);
          }
        }
      }
      __syncthreads();  // the sums before have been read
      float* const to = sums[warp];
      to[g * kTile + 2 * t] = sum[0];
      to[g * kTile + 2 * t + 1] = sum[1];
      to[(g + 8) * kTile + 2 * t] = sum[2];
      to[(g + 8) * kTile + 2 * t + 1] = sum[3];
      __syncthreads();
      const int of = static_cast<int>(threadIdx.x);
      if (of >= here * kTile) continue;
      float own = 0.0f, partner = 0.0f;
      for (int w = 0; w < kWarps; ++w) {
        own += sums[w][of];
        partner += sums[w][of ^ 4];
      }
      finish(first_row + of / kTile, tile, of % kTile, own, partner);
    }
  }
}

// Stages rows of bf16 of `columns` columns.
struct StoredRows {
  const __nv_bfloat16* x;
  int32_t columns;

  __device__ void operator()(int32_t first_row, int32_t rows, int first, int count) const {
    auto* const to = reinterpret_cast<__nv_bfloat16*>(DynamicShared());
    const int groups = (count + kRun - 1) / kRun * (kRun / 8), stride = StrideOf(columns);
    for (int i = static_cast<int>(threadIdx.x); i < kRows * groups; i += kThreads) {
      const int row = i / groups, column = i % groups * 8;
      const bool here = row < rows && first + column < columns;
      *reinterpret_cast<uint4*>(to + row * stride + column) =
          here ? *reinterpret_cast<const uint4*>(x + int64_t{first_row + row} * columns + first + column)
               : make_uint4(0, 0, 0, 0);
    }
  }
};

// Stages rows of float32 of `columns` columns, normed and rounded; a warp has every eighth row. numbers[r]: of row r;
// null: r.
struct NormedRows {
  const DecodeNorm& norm;
  const float* x;
  const int32_t* numbers;
  int32_t columns, columns_padded;

  __device__ void operator()(int32_t first_row, int32_t rows, int first, int count) const {
    auto* const to = reinterpret_cast<__nv_bfloat16*>(DynamicShared());
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int end = (count + kRun - 1) / kRun * kRun, stride = StrideOf(columns_padded);
    const auto width = static_cast<float>(columns);
    for (int row = warp; row < kRows; row += kWarps) {
      float mean = 0.0f, scale = 0.0f;
      const float* of = nullptr;
      if (row < rows) {
        of = x + int64_t{numbers == nullptr ? first_row + row : numbers[first_row + row]} * columns;
        if (norm.bias != nullptr) {
          float sum = 0.0f;
          for (int c = lane; c < columns; c += kWarpSize) sum += of[c];
          mean = WarpSum(sum) / width;
        }
        float squares = 0.0f;
        for (int c = lane; c < columns; c += kWarpSize) squares = fmaf(of[c] - mean, of[c] - mean, squares);
        scale = 1.0f / sqrtf(WarpSum(squares) / width + norm.epsilon);
      }
      for (int c = lane; c < end; c += kWarpSize) {
        const int column = first + c;
        float value = 0.0f;
        if (of != nullptr && column < columns) {
          value = (of[column] - mean) * scale * norm.weight[column];
          if (norm.bias != nullptr) value += norm.bias[column];
        }
        to[row * stride + c] = __float2bfloat16_rn(value);
      }
    }
  }
};

}  // namespace edgewise::cuda::decode

#endif  // EDGEWISE_KERNELS_CUDA_DECODE_PRODUCT_CUH_
