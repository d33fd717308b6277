#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/forms.cuh"
#include "kernels/cuda/ops/rows.h"

namespace edgewise::cuda {
namespace {

// One warp has one row.
constexpr int kRowsPerBlock = 8;
constexpr int kThreads = kRowsPerBlock * kWarpSize;

int64_t RowBlocks(int64_t rows) { return (rows + kRowsPerBlock - 1) / kRowsPerBlock; }

// A matrix as kernels read it.
struct Source {
  const float* data;
  int64_t stride;
};
struct Target {
  float* data;
  int64_t stride;
};
Source SourceOf(ConstMatrix m) { return {m.data, m.stride}; }
Target TargetOf(Matrix m) { return {m.data, m.stride}; }
bool Aligned(ConstMatrix m) { return Aligned16(m.data, m.stride * static_cast<int64_t>(sizeof(float))); }

__device__ inline int64_t RowOfWarp() {
  return static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kWarpSize;
}

// The columns of a row that a lane has, kWidth at a time: body(first of them).
template <int kWidth, typename Body>
__device__ inline void ForColumns(int64_t columns, const Body& body) {
#pragma unroll 4
  for (int64_t c = static_cast<int64_t>(threadIdx.x % kWarpSize) * kWidth; c < columns; c += kWarpSize * kWidth) {
    body(c);
  }
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    EmbedKernel(Source word, Source position, const int32_t* token_ids, const int32_t* positions, Target y,
                int64_t rows, int64_t columns) {
  const int64_t r = RowOfWarp();
  if (r >= rows) return;
  const float* token = word.data + token_ids[r] * word.stride;
  const float* place = position.data == nullptr ? nullptr : position.data + positions[r] * position.stride;
  float* out = y.data + r * y.stride;
  ForColumns<kWidth>(columns, [&](int64_t c) {
    Floats<kWidth> value = LoadFloats<kWidth>(token + c);
    if (place != nullptr) {
      const Floats<kWidth> other = LoadFloats<kWidth>(place + c);
      for (int i = 0; i < kWidth; ++i) value.at[i] += other.at[i];
    }
    StoreFloats<kWidth>(out + c, value);
  });
}

// Groups of 4 columns that a lane has, in order: body(number, first column). kHeld > 0: the most that it has.
template <int kHeld, typename Body>
__device__ inline void ForGroups(int64_t columns, const Body& body) {
  const int64_t first = static_cast<int64_t>(threadIdx.x % kWarpSize) * 4;
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (first + i * 4 * kWarpSize < columns) body(i, first + i * 4 * kWarpSize);
    }
  } else {
#pragma unroll 4
    for (int64_t c = first; c < columns; c += 4 * kWarpSize) body(0, c);
  }
}

struct NormCall {
  Source product;  // data null: none is added
  int32_t sums;
  const float* added;  // to x, as the bias of the product; or null
  Target x;
  RowNorm norm;
  FormRows y, operand;
  int64_t rows, runs, columns;
};

// A warp has one run of `columns` columns, of the `runs` of a row: LayerNorm has one, and RmsNorm, without a bias,
// those of its group. Sums in double. A lane has groups of 4 columns however they are read, so that the order of the
// sums depends on the number of columns alone. kHeld > 0: groups of a lane that are held in registers.
template <bool kAligned, int kHeld>
__global__ void __launch_bounds__(kThreads) NormKernel(const __grid_constant__ NormCall call) {
  const int64_t columns = call.columns, run = RowOfWarp(), r = run / call.runs, first = run % call.runs * columns;
  if (r >= call.rows) return;
  const RowNorm& norm = call.norm;
  float* x = call.x.data + r * call.x.stride + first;
  const float* product = call.product.data == nullptr ? nullptr : call.product.data + r * call.product.stride;
  const bool adds = product != nullptr || call.added != nullptr;
  Floats<4> held[kHeld > 0 ? kHeld : 1];
  double sum = 0.0;
  ForGroups<kHeld>(columns, [&](int i, int64_t c) {
    const int count = FloatsHere(columns - c);
    Floats<4> value = LoadUpTo4<kAligned>(x + c, count);
    if (product != nullptr) {
      Floats<4> total = LoadUpTo4<kAligned>(product + c, count);
      for (int32_t s = 1; s < call.sums; ++s) {
        const Floats<4> next = LoadUpTo4<kAligned>(product + s * call.rows * call.product.stride + c, count);
        for (int e = 0; e < 4; ++e) total.at[e] += next.at[e];
      }
      for (int e = 0; e < 4; ++e) value.at[e] = total.at[e] + value.at[e];
    }
    if (call.added != nullptr) {
      const Floats<4> bias = LoadUpTo4<kAligned>(call.added + c, count);
      for (int e = 0; e < 4; ++e) value.at[e] += bias.at[e];
    }
    // A norm that takes the place of x needs no x, unless it is to be read again.
    if (adds && (kHeld == 0 || call.y.data != call.x.data)) StoreUpTo4<kAligned>(x + c, count, value);
    if (kHeld > 0) held[i] = value;
    for (int e = 0; e < 4; ++e) sum += static_cast<double>(value.at[e]);
  });
  const auto at = [&](int i, int64_t c, int count) {
    if constexpr (kHeld > 0) return held[i];
    return LoadUpTo4<kAligned>(x + c, count);
  };
  double mean = 0.0;
  if (norm.bias != nullptr) mean = WarpSum(sum) / static_cast<double>(columns);
  double squares = 0.0;
  ForGroups<kHeld>(columns, [&](int i, int64_t c) {
    const int count = FloatsHere(columns - c);
    const Floats<4> value = at(i, c, count);
    for (int e = 0; e < 4; ++e) {
      const double distance = e < count ? static_cast<double>(value.at[e]) - mean : 0.0;
      squares += distance * distance;
    }
  });
  const double variance = WarpSum(squares) / static_cast<double>(columns);
  const float scale = static_cast<float>(1.0 / sqrt(variance + static_cast<double>(norm.epsilon)));
  const float center = static_cast<float>(mean);
  ForGroups<kHeld>(columns, [&](int i, int64_t c) {
    const int count = FloatsHere(columns - c);
    Floats<4> value = at(i, c, count);
    const Floats<4> w = LoadUpTo4<kAligned>(norm.weight + c, count);
    Floats<4> b = {};
    if (norm.bias != nullptr) b = LoadUpTo4<kAligned>(norm.bias + c, count);
    for (int e = 0; e < 4; ++e) value.at[e] = (value.at[e] - center) * scale * w.at[e] + b.at[e];
    if (call.y.data != nullptr) StoreUpTo4<kAligned>(call.y.data + r * call.y.stride + first + c, count, value);
    if (call.operand.data == nullptr) return;
    for (int e = count; e < 4; ++e) value.at[e] = 0.0f;
    Store<4>(call.operand, r, c, value.at);
  });
  const float zeros[4] = {};
  for (int64_t c = (columns + 3) / 4 * 4 + threadIdx.x % kWarpSize * 4; c < call.operand.padded; c += 4 * kWarpSize) {
    Store<4>(call.operand, r, c, zeros);
  }
}

// One warp has one run of 2 * half columns, of the `runs` of a row.
__global__ void __launch_bounds__(kThreads)
    RotateKernel(Target x, Source table, const int32_t* positions, int64_t rows, int64_t runs, int64_t half) {
  const int64_t run = RowOfWarp(), r = run / runs;
  if (r >= rows) return;
  float* first = x.data + r * x.stride + run % runs * 2 * half;
  const float* cosines = table.data + positions[r] * table.stride;
  ForColumns<1>(half, [&](int64_t c) {
    const float a = first[c], b = first[half + c], cosine = cosines[c], sine = cosines[half + c];
    first[c] = a * cosine - b * sine;
    first[half + c] = b * cosine + a * sine;
  });
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    GatherKernel(Source x, const int64_t* from, Target y, int64_t rows, int64_t columns) {
  const int64_t r = RowOfWarp();
  if (r >= rows) return;
  const float* in = x.data + from[r] * x.stride;
  float* out = y.data + r * y.stride;
  ForColumns<kWidth>(columns, [&](int64_t c) { StoreFloats<kWidth>(out + c, LoadFloats<kWidth>(in + c)); });
}

// A block has 32 columns of one sequence; its warps share the rows, and their sums are added in the warps' order.
constexpr int kPoolWarps = 16;

__global__ void __launch_bounds__(kPoolWarps* kWarpSize)
    PoolKernel(Source x, const int64_t* offsets, const float* divisors, Target y, int64_t columns, int64_t tiles) {
  __shared__ double partial[kPoolWarps][kWarpSize];
  const int64_t sequence = blockIdx.x / tiles;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t c = blockIdx.x % tiles * kWarpSize + lane;
  double sum = 0.0;
  if (c < columns) {
    const int64_t end = offsets[sequence + 1];
#pragma unroll 4
    for (int64_t r = offsets[sequence] + warp; r < end; r += kPoolWarps) {
      sum += static_cast<double>(x.data[r * x.stride + c]);
    }
  }
  partial[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || c >= columns) return;
  for (int w = 1; w < kPoolWarps; ++w) sum += partial[w][lane];
  y.data[sequence * y.stride + c] = static_cast<float>(sum / static_cast<double>(divisors[sequence]));
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads) PairKernel(Source x0, Source x1, Target y, int64_t rows, int64_t columns) {
  const int64_t r = RowOfWarp();
  if (r >= rows) return;
  const float* first = x0.data + r * x0.stride;
  const float* second = x1.data + r * x1.stride;
  float* out = y.data + r * y.stride;
  ForColumns<kWidth>(columns, [&](int64_t c) {
    const Floats<kWidth> a = LoadFloats<kWidth>(first + c), b = LoadFloats<kWidth>(second + c);
    Floats<kWidth> product, difference;
    for (int i = 0; i < kWidth; ++i) {
      product.at[i] = a.at[i] * b.at[i];
      difference.at[i] = a.at[i] - b.at[i];
    }
    StoreFloats<kWidth>(out + c, a);
    StoreFloats<kWidth>(out + columns + c, b);
    StoreFloats<kWidth>(out + 2 * columns + c, product);
    StoreFloats<kWidth>(out + 3 * columns + c, difference);
  });
}

// A thread has kWidth columns, so that few rows, too, are many threads.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) FinishKernel(Source product, int32_t sums, Finish finish, int64_t gated,
                                                         int64_t rows, int64_t columns, unsigned row_runs) {
  const unsigned run = blockIdx.x * kThreads + threadIdx.x;
  const int64_t r = run / row_runs, c = run % row_runs * kWidth;
  if (r >= rows) return;
  Floats<kWidth> value = {};
  if (c < columns) {
    const float* in = product.data + r * product.stride + c;
    const auto sum_at = [&](const float* from) {
      Floats<kWidth> sum = LoadFloats<kWidth>(from);
#pragma unroll 4
      for (int32_t s = 1; s < sums; ++s) {
        const Floats<kWidth> next = LoadFloats<kWidth>(from + s * rows * product.stride);
        for (int i = 0; i < kWidth; ++i) sum.at[i] += next.at[i];
      }
      return sum;
    };
    value = sum_at(in);
    Apply<kWidth>(finish, r, c, value);
    if (gated > 0) {
      Floats<kWidth> other = sum_at(in + gated);
      if (finish.bias != nullptr) {
        const Floats<kWidth> bias = LoadFloats<kWidth>(finish.bias + gated + c);
        for (int i = 0; i < kWidth; ++i) other.at[i] += bias.at[i];
      }
      for (int i = 0; i < kWidth; ++i) value.at[i] *= other.at[i];
    }
  }
  Store<kWidth>(finish.y, r, c, value.at);
}

// A column at a time: for shapes without 16-byte rows.
__global__ void __launch_bounds__(kThreads)
    PadKernel(Source x, float* to, int64_t rows, int64_t columns, int64_t padded) {
  const int64_t r = RowOfWarp();
  if (r >= rows) return;
  ForColumns<1>(padded, [&](int64_t c) { to[r * padded + c] = c < columns ? x.data[r * x.stride + c] : 0.0f; });
}

// Rows of whole groups of 4 columns.
__global__ void __launch_bounds__(kThreads) RoundKernel(Source x, int32_t head_columns, __nv_bfloat16* to,
                                                        int64_t to_stride, int64_t gap, int64_t rows, int64_t columns) {
  const int64_t r = RowOfWarp();
  if (r >= rows) return;
  ForColumns<4>(columns, [&](int64_t c) {
    const int64_t head = static_cast<uint32_t>(c) / static_cast<uint32_t>(head_columns);
    StoreFour(to + r * to_stride + c + head * gap, LoadFloats<4>(x.data + r * x.stride + c));
  });
}

}  // namespace

cudaError_t Embed(cudaStream_t stream, ConstMatrix word, ConstMatrix position, const int32_t* token_ids,
                  const int32_t* positions, Matrix y) {
  const bool wide =
      y.columns % 4 == 0 && Aligned(word) && Aligned(y) && (position.data == nullptr || Aligned(position));
  return Launch(stream, RowBlocks(y.rows), kThreads, 0, wide ? kLoaded<EmbedKernel<4>> : kLoaded<EmbedKernel<1>>,
                SourceOf(word), SourceOf(position), token_ids, positions, TargetOf(y), y.rows, y.columns);
}

cudaError_t Norm(cudaStream_t stream, const Added& added, Matrix x, const RowNorm& norm, int64_t columns,
                 const FormRows& y, const FormRows& operand) {
  const auto whole = [](const float* data, int64_t stride) {
    return Aligned16(data, stride * static_cast<int64_t>(sizeof(float)));
  };
  const bool aligned = columns % 4 == 0 && Aligned(x) && whole(y.data, y.stride) && Aligned(added.product) &&
                       whole(added.bias, 0) && whole(norm.weight, 0) && whole(norm.bias, 0);
  const int64_t runs = x.columns / columns;
  const NormCall call = {
      SourceOf(added.product), added.sums, added.bias, TargetOf(x), norm, y, operand, x.rows, runs, columns};
  constexpr int kHeld = 8;
  auto kernel = kLoaded<NormKernel<false, 0>>;
  if (aligned)
    kernel = columns <= kHeld * 4 * kWarpSize ? kLoaded<NormKernel<true, kHeld>> : kLoaded<NormKernel<true, 0>>;
  return Launch(stream, RowBlocks(x.rows * runs), kThreads, 0, kernel, call);
}

cudaError_t Rotate(cudaStream_t stream, Matrix x, ConstMatrix table, const int32_t* positions) {
  const int64_t runs = x.columns / table.columns;
  return Launch(stream, RowBlocks(x.rows * runs), kThreads, 0, kLoaded<RotateKernel>, TargetOf(x), SourceOf(table),
                positions, x.rows, runs, table.columns / 2);
}

cudaError_t GatherRows(cudaStream_t stream, ConstMatrix x, const int64_t* rows, Matrix y) {
  const bool wide = y.columns % 4 == 0 && Aligned(x) && Aligned(y);
  return Launch(stream, RowBlocks(y.rows), kThreads, 0, wide ? kLoaded<GatherKernel<4>> : kLoaded<GatherKernel<1>>,
                SourceOf(x), rows, TargetOf(y), y.rows, y.columns);
}

cudaError_t PoolMean(cudaStream_t stream, ConstMatrix x, const int64_t* offsets, const float* divisors, Matrix y) {
  const int64_t tiles = (y.columns + kWarpSize - 1) / kWarpSize;
  return Launch(stream, y.rows * tiles, kPoolWarps * kWarpSize, 0, kLoaded<PoolKernel>, SourceOf(x), offsets, divisors,
                TargetOf(y), y.columns, tiles);
}

cudaError_t PairFeatures(cudaStream_t stream, ConstMatrix x0, ConstMatrix x1, Matrix y) {
  const bool wide = x0.columns % 4 == 0 && Aligned(x0) && Aligned(x1) && Aligned(y);
  return Launch(stream, RowBlocks(y.rows), kThreads, 0, wide ? kLoaded<PairKernel<4>> : kLoaded<PairKernel<1>>,
                SourceOf(x0), SourceOf(x1), TargetOf(y), y.rows, x0.columns);
}

cudaError_t FinishProduct(cudaStream_t stream, ConstMatrix product, int32_t sums, const Finish& finish, int64_t columns,
                          int64_t gated) {
  const FormRows& y = finish.y;
  const bool wide = (columns | gated) % 4 == 0 && Aligned(product) &&
                    Aligned16(y.data, y.stride * static_cast<int64_t>(sizeof(float))) && Aligned16(finish.bias, 0);
  const int64_t row_runs = wide ? y.padded / 4 : y.padded;
  return Launch(stream, (product.rows * row_runs + kThreads - 1) / kThreads, kThreads, 0,
                wide ? kLoaded<FinishKernel<4>> : kLoaded<FinishKernel<1>>, SourceOf(product), sums, finish, gated,
                product.rows, columns, static_cast<unsigned>(row_runs));
}

cudaError_t PadRows(cudaStream_t stream, ConstMatrix x, float* to, int64_t columns) {
  return Launch(stream, RowBlocks(x.rows), kThreads, 0, kLoaded<PadKernel>, SourceOf(x), to, x.rows, x.columns,
                columns);
}

cudaError_t RoundHeads(cudaStream_t stream, ConstMatrix x, int32_t head_columns, __nv_bfloat16* to, int64_t to_stride,
                       int64_t head_stride) {
  return Launch(stream, RowBlocks(x.rows), kThreads, 0, kLoaded<RoundKernel>, SourceOf(x), head_columns, to, to_stride,
                head_stride - head_columns, x.rows, x.columns);
}

}  // namespace edgewise::cuda
