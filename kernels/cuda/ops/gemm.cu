#include <cuda_bf16.h>
#include <cuda_pipeline_primitives.h>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/forms.cuh"
#include "kernels/cuda/ops/gemm_kernels.h"

namespace edgewise::cuda {
namespace {

// A block has kTile rows of x and of W, and takes 128 bytes of each at a time.
constexpr int kTile = 64, kThreads = 128;
constexpr int kSums = kTile * kTile / kThreads;  // of a thread
template <typename T>
inline constexpr int kStep = 128 / sizeof(T);
template <typename T>
inline constexpr int kPitch = kStep<T> + 16 / sizeof(T);
template <typename T>
using Rows = T[kTile][kPitch<T>];

struct Product {
  const void* weight;
  const void* x;
  int64_t x_stride, rows, row_tiles;
  int out, in, slices;
  Finish finish;
};

// Starts to copy `columns` columns of up to kTile of the rows that are left; beyond them are zeros.
template <typename T>
__device__ inline void Stage(const T* from, int64_t stride, int64_t rows, int columns, Rows<T>& to) {
  const int column = threadIdx.x % 8 * (16 / sizeof(T));
#pragma unroll
  for (int r = threadIdx.x / 8; r < kTile; r += kThreads / 8) {
    const bool there = r < rows && column < columns;
    __pipeline_memcpy_async(&to[r][column], there ? from + r * stride + column : from, 16, there ? 0 : 16);
  }
}

// Where a thread's sum i lies in the tile: row, then column.
template <typename T>
__device__ inline int2 PlaceOf(int i) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  if constexpr (sizeof(T) == 2) {  // a warp has 2 by 4 products of 16 by 8
    return make_int2(warp % 2 * 32 + i / 16 * 16 + lane / 4 + i / 2 % 2 * 8,
                     warp / 2 * 32 + i / 4 % 4 * 8 + lane % 4 * 2 + i % 2);
  } else {
    return make_int2(threadIdx.x % 16 + 16 * (i / 8), threadIdx.x / 16 + 8 * (i % 8));
  }
}

// sum += the products of a step of `in` columns, in their order. Sums beyond `rows` and `out` may stay as they are.
__device__ inline void AddStep(const Rows<__nv_bfloat16>& x, const Rows<__nv_bfloat16>& w, int in, int64_t rows,
                               int out, float (&sum)[kSums]) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int row = warp % 2 * 32, column = warp / 2 * 32;
  if (row >= rows || column >= out) return;  // the whole warp, here and below
  for (int k = 0; k < in; k += 16) {
    uint32_t a[2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (row + 16 * m < rows) LoadMatrices<false>(&x[row + 16 * m + lane % 16][k + lane / 16 * 8], a[m]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (column + 16 * n >= out) continue;
      uint32_t b[4];
      LoadMatrices<false>(&w[column + 16 * n + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8], b);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        if (row + 16 * m >= rows) continue;
        MmaBf16(sum + 16 * m + 8 * n, a[m], b);
        MmaBf16(sum + 16 * m + 8 * n + 4, a[m], b + 2);
      }
    }
  }
}

__device__ inline void AddStep(const Rows<float>& x, const Rows<float>& w, int in, int64_t /*rows*/, int /*out*/,
                               float (&sum)[kSums]) {
  for (int k = 0; k < in; k += 4) {
    Floats<4> a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = LoadFloats<4>(&x[threadIdx.x % 16 + 16 * i][k]);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const Floats<4> b = LoadFloats<4>(&w[threadIdx.x / 16 + 8 * j][k]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[8 * i + j] = fmaf(a[i].at[e], b.at[e], sum[8 * i + j]);
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) ChainKernel(Product p) {
  __shared__ __align__(16) Rows<T> x[2], w[2];
  const int64_t row = blockIdx.x % p.row_tiles * kTile, rows = p.rows - row;
  const int column = static_cast<int>(blockIdx.x / p.row_tiles) * kTile;
  const int64_t in = p.in, w_stride = p.slices * in;
  const T* x_rows = static_cast<const T*>(p.x) + row * p.x_stride;
  const T* w_rows = static_cast<const T*>(p.weight) + column * w_stride;
  const int steps = (p.in + kStep<T> - 1) / kStep<T>;  // of a slice
  const auto stage = [&](int slice, int step, int to) {
    const int64_t k = step * kStep<T>;
    Stage<T>(x_rows + slice * in + k, p.x_stride, rows, p.in - static_cast<int>(k), x[to]);
    Stage<T>(w_rows + slice * in + k, w_stride, p.out - column, p.in - static_cast<int>(k), w[to]);
  };
  float total[kSums], sum[kSums] = {};
  stage(0, 0, 0);
  __pipeline_commit();
  int from = 0;
  for (int slice = 0; slice < p.slices; ++slice) {
    for (int step = 0; step < steps; ++step, from ^= 1) {
      if (step + 1 < steps) {
        stage(slice, step + 1, from ^ 1);
      } else if (slice + 1 < p.slices) {
        stage(slice + 1, 0, from ^ 1);
      }
      __pipeline_commit();
      __pipeline_wait_prior(1);
      __syncthreads();
      AddStep(x[from], w[from], min(kStep<T>, p.in - step * kStep<T>), rows, p.out - column, sum);
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      total[i] = slice == 0 ? sum[i] : total[i] + sum[i];
      sum[i] = 0.0f;
    }
  }
  // Through shared memory, so that a thread has four neighbours.
  constexpr int kTilePitch = kTile + 4;
  static_assert(kTile * kTilePitch * sizeof(float) <= sizeof(x));
  auto* const tile = reinterpret_cast<float*>(&x[0][0][0]);
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int2 place = PlaceOf<T>(i);
    tile[place.x * kTilePitch + place.y] = total[i];
  }
  __syncthreads();
#pragma unroll 1
  for (int i = 4 * static_cast<int>(threadIdx.x); i < kTile * kTile; i += 4 * kThreads) {
    const int r = i / kTile, c = i % kTile;
    if (r >= rows || column + c >= p.out) continue;
    Floats<4> value = LoadFloats<4>(tile + r * kTilePitch + c);
    Apply<4>(p.finish, row + r, column + c, value);
    Store<4>(p.finish.y, row + r, column + c, value.at);
  }
}

// A thread has eight columns of the `eights` of all rows, of which a row has row_eights.
template <Packing kPacking, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    PackKernel(ConstMatrix x, unsigned eights, unsigned row_eights, int slice, __nv_bfloat16* to) {
  constexpr int kProducts = kPacking == Packing::kRounded ? 1 : kPartProducts;
  const unsigned eight = blockIdx.x * kThreads + threadIdx.x;
  if (eight >= eights) return;
  const unsigned row = eight / row_eights, column = eight % row_eights * 8;
  const float* from = x.data + row * x.stride + column;
  const int64_t left = x.columns - column;
  float eight_of[8] = {};
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    if (left <= i) continue;
    const Floats<4> four = LoadUpTo4<kAligned>(from + i, FloatsHere(left - i));
    for (int e = 0; e < 4; ++e) eight_of[i + e] = four.at[e];
  }
  const unsigned before = column / slice * slice;  // columns of the slices before this one
  Pack<kPacking>(eight_of, to + kProducts * (static_cast<int64_t>(row) * row_eights * 8 + before) + (column - before),
                 slice);
}

__device__ inline uint32_t Mixed(uint32_t x) {
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}
// Words that are float32 numbers, and pairs of bf16 ones, from 0.5 to 1 and of either sign.
__global__ void __launch_bounds__(kThreads) FillKernel(uint32_t* x, int64_t row_words, int64_t words, int64_t period) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= words) return;
  const auto number = static_cast<uint32_t>(i / row_words % period * row_words + i % row_words);
  x[i] = (Mixed(number) & 0x807F807Fu) | 0x3F003F00u;
}

__global__ void __launch_bounds__(kThreads)
    CompareKernel(const float* y, int sums, int64_t elements, const float* expected, int64_t repeats, float times,
                  int32_t* differs) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements) return;
  float sum = y[i];
  for (int s = 1; s < sums; ++s) sum += y[s * elements + i];
  if (__float_as_uint(sum) != __float_as_uint(times * expected[i % repeats])) *differs = 1;
}

int64_t Blocks(int64_t threads) { return (threads + kThreads - 1) / kThreads; }

template <Packing kPacking>
cudaError_t LaunchPack(cudaStream_t stream, ConstMatrix x, int64_t slice, int64_t slices, __nv_bfloat16* to) {
  const int64_t row_eights = slice * slices / 8, eights = x.rows * row_eights;
  if (eights > 0xFFFFFFFF - kThreads) return cudaErrorInvalidValue;
  auto kernel = kLoaded<PackKernel<kPacking, true>>;
  if constexpr (kPacking != Packing::kPartsOfW) {
    const bool aligned = x.columns % 4 == 0 && Aligned16(x.data, x.stride * static_cast<int64_t>(sizeof(float)));
    if (!aligned) kernel = kLoaded<PackKernel<kPacking, false>>;
  }
  return Launch(stream, Blocks(eights), kThreads, 0, kernel, x, static_cast<unsigned>(eights),
                static_cast<unsigned>(row_eights), static_cast<int>(slice), to);
}

}  // namespace

cudaError_t ChainProduct(cudaStream_t stream, const GemmShape& shape, const void* weight, const void* x,
                         int64_t x_stride, int64_t rows, const Finish& finish) {
  const int64_t row_tiles = (rows + kTile - 1) / kTile, column_tiles = (shape.out + kTile - 1) / kTile;
  const Product product = {
      weight,       x,     x_stride, rows, row_tiles, static_cast<int>(shape.out), static_cast<int>(shape.in),
      shape.slices, finish};
  return Launch(stream, row_tiles * column_tiles, kThreads, 0,
                shape.bf16 ? kLoaded<ChainKernel<__nv_bfloat16>> : kLoaded<ChainKernel<float>>, product);
}

cudaError_t PackRows(cudaStream_t stream, ConstMatrix x, Packing packing, int64_t slice, int64_t slices,
                     __nv_bfloat16* to) {
  switch (packing) {
    case Packing::kRounded:
      return LaunchPack<Packing::kRounded>(stream, x, slice, slices, to);
    case Packing::kPartsOfX:
      return LaunchPack<Packing::kPartsOfX>(stream, x, slice, slices, to);
    default:
      return LaunchPack<Packing::kPartsOfW>(stream, x, slice, slices, to);
  }
}

cudaError_t FillTrial(cudaStream_t stream, int64_t rows, int64_t row_bytes, int64_t period, void* x) {
  const int64_t row_words = row_bytes / 4, words = rows * row_words;
  return Launch(stream, Blocks(words), kThreads, 0, kLoaded<FillKernel>, static_cast<uint32_t*>(x), row_words, words,
                period);
}

cudaError_t CompareTrial(cudaStream_t stream, const float* y, int32_t sums, int64_t rows, int64_t out,
                         const float* expected, int64_t period, float times, int32_t* differs) {
  return Launch(stream, Blocks(rows * out), kThreads, 0, kLoaded<CompareKernel>, y, sums, rows * out, expected,
                period * out, times, differs);
}

}  // namespace edgewise::cuda
