// Memberships on tensor cores, at the accuracy of float32. A number is two halves, v = high + low, of about 22 bits; a
// product is high high + high low + low high, and low low, 2^-22 of it, is left out. So that no half overflows, each
// row is multiplied by a power of two before each product, and so are the weights of a layer: the largest element of
// both is at least 2^14, less than 2^15. Elements below 2^-16 of the largest are off by 2^-39 of it; of memberships, by
// 2^-39.
//
// A warp takes 16 rows through all three layers in registers: the sums that a layer leaves are the operand of the next.
// A block has the weights of one side of one head in shared memory. A step of 16 terms starts from zero in the tensor
// core, which may round towards zero, and is added outside, to the nearest. Rows are rows of the matrices: the bytes of
// one depend on nothing else. A row with an element that is not finite has memberships NaN.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/membership_kernel.h"
#include "kernels/draw/draw.h"

namespace edgewise::cuda {
namespace {

// As many as the registers allow.
__host__ __device__ constexpr int WarpsFor(int steps, int rank_tiles) {
  if (rank_tiles > 4) return steps > 4 ? 8 : 12;
  return steps > 8 ? 8 : steps > 4 ? 12 : 16;
}

// A thread's part of two neighbouring tiles: [tile][d of MmaHalf], so columns 4 t to 4 t + 3 of rows g and g + 8, where
// g = lane / 4 and t = lane % 4.
using Pair = float (*)[4];

// An operand of a step.
struct Halves {
  uint32_t high[4], low[4];
};

__device__ inline uint32_t Bits(__half2 pair) {
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

// By rows g and g + 8.
struct Scales {
  float up[2];    // of the row
  float down[2];  // of its products with weights that were multiplied by 2^weight_exponent
};

// `largest`: of this thread's elements of each row.
__device__ inline Scales ScalesFor(const float (&largest)[2], int weight_exponent) {
  Scales scales;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float all = fmaxf(largest[r], __shfl_xor_sync(kWholeWarp, largest[r], 1));
    all = fmaxf(all, __shfl_xor_sync(kWholeWarp, all, 2));
    const int exponent = static_cast<int>(__float_as_uint(all) >> 23) - 127;
    // Both scales are normal numbers.
    const int up = max(min(14 - exponent, min(126, 126 - weight_exponent)), max(-126, -127 - weight_exponent));
    scales.up[r] = __uint_as_float(static_cast<uint32_t>(127 + up) << 23);
    scales.down[r] = __uint_as_float(static_cast<uint32_t>(127 - up - weight_exponent) << 23);
  }
  return scales;
}

__device__ inline void Enlarge(Pair pair, float (&largest)[2]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], fabsf(pair[i / 4][i % 4]));
}

__device__ inline Halves Split(Pair pair, float scale0, float scale1) {
  Halves halves;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float scale = i % 2 == 0 ? scale0 : scale1;
    const float a = pair[i / 2][i % 2 * 2] * scale, b = pair[i / 2][i % 2 * 2 + 1] * scale;
    const __half2 high = __floats2half2_rn(a, b);
    const float2 back = __half22float2(high);
    halves.high[i] = Bits(high);
    halves.low[i] = Bits(__floats2half2_rn(a - back.x, b - back.y));
  }
  return halves;
}

// sum[tile] += operand times the fragments [kSteps][kTiles][32], whose first is this thread's of `weights`; kFirst:
// `sum` has nothing yet.
template <int kTiles, int kSteps, bool kFirst = false>
__device__ inline void AddProducts(float (*sum)[4], const Halves* operand, const uint4* weights) {
  float step[kTiles * kSteps][4] = {};
  uint32_t high[kTiles * kSteps][2];
#pragma unroll
  for (int n = 0; n < kTiles * kSteps; ++n) {
    const uint4 of = weights[n * kWarpSize];
    high[n][0] = of.x, high[n][1] = of.y;
    const uint32_t low[2] = {of.z, of.w};
    MmaHalf(step[n], operand[n / kTiles].high, low);
  }
#pragma unroll
  for (int n = 0; n < kTiles * kSteps; ++n) MmaHalf(step[n], operand[n / kTiles].low, high[n]);
#pragma unroll
  for (int n = 0; n < kTiles * kSteps; ++n) MmaHalf(step[n], operand[n / kTiles].high, high[n]);
#pragma unroll
  for (int n = 0; n < kTiles * kSteps; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& to = sum[n % kTiles][i];
      to = kFirst && n < kTiles ? step[n][i] : to + step[n][i];
    }
  }
}

// max(0, x); NaN stays.
__device__ inline float Rectified(float x) {
#if defined(EDGEWISE_CUDA_EMULATED)
  return x < 0.0f ? 0.0f : x;
#else
  float result;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(result) : "f"(x));
  return result;
#endif
}

// 2^14 / (1 + 2^x), to 2^-22 of itself.
__device__ inline float Membership(float x) {
#if defined(EDGEWISE_CUDA_EMULATED)
  return 1.0f / fmaf(exp2f(x), 0x1p-14f, 0x1p-14f);
#else
  float power, result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(fmaf(power, 0x1p-14f, 0x1p-14f)));
  return result;
#endif
}

// 16 floats in shared memory, by which a thread's columns of a pair of tiles go.
__device__ inline void AddBias(Pair pair, const float* bias, const Scales& scales) {
  const Floats<4> of = LoadFloats<4>(bias);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float& at = pair[i / 4][i % 4];
    at = fmaf(at, scales.down[i / 2 % 2], of.at[i / 4 * 2 + i % 2]);
  }
}

__device__ inline float Join(float a, float b, MembershipBound kind) {
  return kind == MembershipBound::kLargest ? fmaxf(a, b) : a + b;
}

static_assert(kDotLanes == 16);

// Adds kTiles tiles of x or y, of which the first `columns` count, to the bounds of rows g and g + 8, whose four
// threads get the same; of norms their squares, in the order of MembershipDot. `weights`: of the columns, for other
// bounds.
template <int kTiles>
__device__ inline void AddToBounds(const float (&sum)[kTiles][4], int columns, const float* weights,
                                   MembershipBound kind, float (&bounds)[2]) {
  float parts[2][4] = {};  // lanes 4 t to 4 t + 3
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    if (tile % 2 == 0 && 8 * tile >= columns) break;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = sum[tile][i];
      float& part = parts[i / 2][tile % 2 * 2 + i % 2];
      if (kind == MembershipBound::kNorm) {
        part = fmaf(value, value, part);
      } else {
        const float weight = weights[8 * (tile / 2 * 2) + tile % 2 * 2 + i % 2];
        part = kind == MembershipBound::kSum ? fmaf(value, weight, part) : fmaxf(part, value * weight);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float(&all)[4] = parts[r];
#pragma unroll
    for (int i = 0; i < 4; ++i) all[i] = Join(all[i], __shfl_xor_sync(kWholeWarp, all[i], 2), kind);
#pragma unroll
    for (int i = 0; i < 4; ++i) all[i] = Join(all[i], __shfl_xor_sync(kWholeWarp, all[i], 1), kind);
    bounds[r] = Join(bounds[r], Join(Join(all[0], all[2], kind), Join(all[1], all[3], kind), kind), kind);
  }
}

// The rows of q or k of one head, as a warp reads 16 of them.
class Input {
 public:
  __device__ Input(const float* first, int64_t stride, int32_t columns, int64_t row, int64_t rows)
      : upper_(first + min(row, rows - 1) * stride),
        lower_(first + min(row + 8, rows - 1) * stride),
        columns_(columns),
        aligned_(((reinterpret_cast<uintptr_t>(first) / 4 | static_cast<uintptr_t>(stride | columns)) & 3) == 0) {}
  // This thread's parts of kParts times 16 columns, of which its first is `column`.
  template <int kParts>
  __device__ void Load(int column, float (&to)[kParts][2][4]) const {
    if (aligned_) {
      LoadRows<kParts>(column, to,
                       [this](const float* row, int at) { return LoadFloats<4>(row + min(at, columns_ - 4)); });
    } else {
      LoadRows<kParts>(column, to, [this](const float* row, int at) {
        Floats<4> values;
#pragma unroll
        for (int i = 0; i < 4; ++i) values.at[i] = row[min(at + i, columns_ - 1)];
        return values;
      });
    }
  }

 private:
  // Where no column is left, `load` gives elements of the row again: their weights are zero, and the row's largest
  // element stays.
  template <int kParts, typename LoadFour>
  __device__ void LoadRows(int column, float (&to)[kParts][2][4], const LoadFour& load) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Floats<4> upper = load(upper_, column + 16 * part), lower = load(lower_, column + 16 * part);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[part][i / 2][i % 2] = upper.at[i];
        to[part][i / 2][i % 2 + 2] = lower.at[i];
      }
    }
  }

  const float* const upper_;
  const float* const lower_;
  const int32_t columns_;
  const bool aligned_;  // and a multiple of 4 columns
};

// Derived from the thread, the tile and the side of a head. Hidden from the compiler, and made anew for each part of
// the kernel: it would otherwise stay in registers from the first to the last.
struct Place {
  __device__ Place(const SplitMembershipCall& call, unsigned own_side, int tile)
      : lane(__shfl_sync(kWholeWarp, static_cast<int>(threadIdx.x), static_cast<int>(threadIdx.x) % kWarpSize) %
             kWarpSize),
        column(lane % 4 * 4),
        side(__shfl_sync(kWholeWarp, own_side, lane)),
        row(int64_t{tile} * 16 + lane / 4),
        weights(reinterpret_cast<const uint4*>(DynamicShared()) + lane),
        floats(reinterpret_cast<const float*>(weights - lane + call.layout.floats)) {}
  __device__ bool IsQuery() const { return side % 2 == 0; }

  const int lane;
  const int column;     // of 16 columns the first that this thread has
  const unsigned side;  // 2 head, or 2 head + 1
  const int64_t row;
  const uint4* const weights;  // this thread's first of the block's
  const float* const floats;   // the block's
};

// The hidden layer of a tile, as the next operand. Returns the scales of its products. `steps` is kSteps where that is
// at most 4.
template <int kSteps>
__device__ inline Scales ComputeHidden(const SplitMembershipCall& call, unsigned side, int tile, int steps,
                                       Halves (&hidden)[kSteps]) {
  constexpr bool kAll = kSteps <= 4;
  constexpr int kHeld = kAll ? kSteps : 1;  // steps of the row that stay in registers between both passes over it
  const Place at(call, side, tile);
  const Input input((at.IsQuery() ? call.q : call.k) + static_cast<int64_t>(at.side / 2) * call.head_dim,
                    at.IsQuery() ? call.q_stride : call.k_stride, call.head_dim, at.row, call.rows);
  float held[kHeld][2][4];
  float row_largest[2] = {};
#pragma unroll 1
  for (int s = 0; s < (kAll ? kSteps : steps); s += kHeld) {
    input.Load(16 * s + at.column, held);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) Enlarge(held[i], row_largest);
  }
  const Scales row_scales = ScalesFor(row_largest, call.hidden_exponent);
  float sum[2 * kSteps][4] = {};
#pragma unroll kHeld
  for (int s = 0; s < (kAll ? kSteps : steps); ++s) {
    if (!kAll) input.Load(16 * s + at.column, held);
    const Halves operand = Split(held[s % kHeld], row_scales.up[0], row_scales.up[1]);
    const uint4* weights = at.weights + 2 * s * steps * kWarpSize;
#pragma unroll
    for (int quad = 0; quad < kSteps / 2; ++quad) {
      if (kAll && s == 0) {
        AddProducts<4, 1, true>(sum + 4 * quad, &operand, weights + 4 * quad * kWarpSize);
      } else if (kAll || 2 * quad < steps) {
        AddProducts<4, 1>(sum + 4 * quad, &operand, weights + 4 * quad * kWarpSize);
      }
    }
  }
  const Place here(call, side, tile);
  float largest[2] = {};
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    if (!kAll && s >= steps) break;
    AddBias(sum + 2 * s, here.floats + 16 * s + here.column, row_scales);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[2 * s + i / 4][i % 4] = Rectified(sum[2 * s + i / 4][i % 4]);
    Enlarge(sum + 2 * s, largest);
  }
  const Scales scales = ScalesFor(largest, call.heads[here.side].cluster_exponent);
#pragma unroll
  for (int s = 0; s < kSteps; ++s) hidden[s] = Split(sum + 2 * s, scales.up[0], scales.up[1]);
  return scales;
}

// Adds the products of a tile's memberships and kTiles tiles of the factor, of which each cluster step names those that
// are not zero. `factor`: where they are; moves on behind them.
template <int kSteps, int kTiles>
__device__ inline void MultiplyByFactor(const SplitMembershipCall& call, const Place& at, int steps,
                                        const Halves (&hidden)[kSteps], const Scales& scales, const uint32_t* used,
                                        int& factor, float (&sum)[kTiles][4]) {
  constexpr bool kAll = kSteps <= 4;
  const uint4* weights = at.weights + 2 * steps * steps * kWarpSize;
  const float* bias = at.floats + 16 * steps + at.column;
#pragma unroll 1
  for (int p = 0; p < call.layout.cluster_steps; ++p) {
    const uint32_t quads = used[p];
    if (quads == 0) continue;
    float members[2][4];
    AddProducts<2, 2, true>(members, hidden, weights + p * steps * 2 * kWarpSize);
#pragma unroll
    for (int s = 2; s < kSteps; s += 2) {
      if (kAll || s < steps) AddProducts<2, 2>(members, hidden + s, weights + (p * steps + s) * 2 * kWarpSize);
    }
    AddBias(members, bias + 16 * p, scales);
#pragma unroll
    for (int i = 0; i < 8; ++i) members[i / 4][i % 4] = Membership(members[i / 4][i % 4]);
    const Halves operand = Split(members, 1.0f, 1.0f);
#pragma unroll
    for (int quad = 0; quad < kTiles / 4; ++quad) {
      if ((quads >> quad & 1u) == 0) continue;
      AddProducts<4, 1>(sum + 4 * quad, &operand, at.weights + factor);
      factor += 4 * kWarpSize;
    }
  }
}

template <int kSteps, int kTiles>
__global__ void __launch_bounds__(WarpsFor(kSteps, kTiles) * kWarpSize)
    SplitMembershipKernel(const __grid_constant__ SplitMembershipCall call, const int tiles, const int tile_step) {
  constexpr int kWarps = WarpsFor(kSteps, kTiles), kThreads = kWarps * kWarpSize;
  const unsigned sides = 2 * static_cast<unsigned>(call.num_heads), own_side = blockIdx.x % sides;
  uint4* shared = reinterpret_cast<uint4*>(DynamicShared());
  const uint4* weights = call.weights + call.heads[own_side].first;
  const int size = call.heads[own_side].size;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) shared[i] = weights[i];
  __syncthreads();

  const int steps = kSteps <= 4 ? kSteps : call.layout.steps;
  const auto first_tile = static_cast<int>(blockIdx.x / sides * kWarps + threadIdx.x / kWarpSize);
  for (int tile = first_tile; tile < tiles; tile += tile_step) {
    Halves hidden[kSteps];
    const Scales scales = ComputeHidden(call, own_side, tile, steps, hidden);
    float bounds[2] = {};
    for (int first = 0, factor = call.layout.factor; first < call.rank; first += 8 * kTiles) {
      float sum[kTiles][4] = {};
      {
        const Place at(call, own_side, tile);
        const int floats = 16 * (steps + call.layout.cluster_steps) + call.rank;
        const uint32_t* used = reinterpret_cast<const uint32_t*>(at.floats + floats);
        MultiplyByFactor(call, at, steps, hidden, scales, used + first / (8 * kTiles) * call.layout.cluster_steps,
                         factor, sum);
      }
      const Place at(call, own_side, tile);
      const float factor_scale = call.heads[at.side].factor_scale;
      const MembershipBound kind = call.heads[at.side].bound;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[t][i] *= factor_scale;
      }
      const int64_t begin = (at.side / 2 * call.out_rows + at.row) * call.rank + at.column;
      float4* out = reinterpret_cast<float4*>(at.IsQuery() ? call.x : call.y) + begin / 4;
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        if (first + 8 * t >= call.rank) break;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (at.row + 8 * r >= call.rows) continue;
          out[2 * r * call.rank + first / 4 + 2 * t] =
              make_float4(sum[t][2 * r], sum[t][2 * r + 1], sum[t + 1][2 * r], sum[t + 1][2 * r + 1]);
        }
      }
      if (kind == MembershipBound::kNorm) {
        AddToBounds(sum, call.rank - first, nullptr, MembershipBound::kNorm, bounds);
      } else {
        const float* bound_weights = at.floats + 16 * (steps + call.layout.cluster_steps) + at.column;
        AddToBounds(sum, call.rank - first, bound_weights + first, kind, bounds);
      }
    }
    const Place at(call, own_side, tile);
    float* out = (at.IsQuery() ? call.query_bound : call.key_bound) + at.side / 2 * call.out_rows + at.row;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float bound = call.heads[at.side].bound == MembershipBound::kNorm ? sqrtf(bounds[r]) : bounds[r];
      if (at.lane % 4 == 0 && at.row + 8 * r < call.rows) {
        out[8 * r] = static_cast<float>(static_cast<double>(bound) * call.margin);
      }
    }
  }
}

// Into how many blocks a side of a head is cut: where the last of them ends first. Loading weights takes about as long
// as a tenth of a tile.
int64_t Parts(const SplitMembershipCall& call, int64_t tiles, int64_t warps) {
  const int64_t sides = int64_t{2} * call.num_heads, blocks = call.multiprocessors;
  int64_t best = 1, least = 0;
  for (int64_t parts = 1; parts <= std::min((tiles + warps - 1) / warps, 4 * blocks); ++parts) {
    const int64_t rounds = (tiles + parts * warps - 1) / (parts * warps);
    const int64_t time = (sides * parts + blocks - 1) / blocks * (10 * rounds + 1);
    if (least == 0 || time < least) best = parts, least = time;
  }
  return best;
}

template <int kSteps, int kTiles>
cudaError_t LaunchSplit(cudaStream_t stream, const SplitMembershipCall& call) {
  if (call.rows == 0) return cudaSuccess;
  constexpr int kWarps = WarpsFor(kSteps, kTiles);
  const int64_t tiles = (call.rows + 15) / 16, parts = Parts(call, tiles, kWarps);
  return Launch(stream, parts * call.num_heads * 2, kWarps * kWarpSize,
                sizeof(uint4) * static_cast<size_t>(call.most_weights), kLoaded<SplitMembershipKernel<kSteps, kTiles>>,
                call, static_cast<int>(tiles), static_cast<int>(parts * kWarps));
}

}  // namespace

cudaError_t ComputeSplitMembershipRows(cudaStream_t stream, const SplitMembershipCall& call) {
  const bool narrow = call.layout.rank_tiles == 4;
  switch (call.layout.most_steps) {
    case 2:
      return narrow ? LaunchSplit<2, 4>(stream, call) : LaunchSplit<2, 16>(stream, call);
    case 4:
      return narrow ? LaunchSplit<4, 4>(stream, call) : LaunchSplit<4, 16>(stream, call);
    case 8:
      return narrow ? LaunchSplit<8, 4>(stream, call) : LaunchSplit<8, 16>(stream, call);
    default:
      return LaunchSplit<14, 4>(stream, call);
  }
}

}  // namespace edgewise::cuda
