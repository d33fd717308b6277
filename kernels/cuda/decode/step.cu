#include <algorithm>

#include "kernels/cuda/decode/attention.cuh"
#include "kernels/cuda/decode/kernels.h"
#include "kernels/cuda/decode/product.cuh"
#include "kernels/cuda/ops/activate.cuh"

namespace edgewise::cuda {
namespace {

using decode::Halves;
using decode::kThreads;
using decode::Neighbours;

constexpr int kBlocksAtOnce = 2;  // of products, on a multiprocessor: one that multiplies, one that asks for weights

// Rows of x, normed.
__device__ inline decode::NormedRows Normed(const DecodeState& state, const DecodeNorm& norm,
                                            const DecodeProduct& product) {
  return {norm, state.x, nullptr, state.hidden, product.in_padded};
}

__global__ void __launch_bounds__(kThreads)
    EmbedKernel(const __grid_constant__ DecodeState state, const float* words, const float* positions) {
  decode::StartNext();
  decode::Wait();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  if (r >= state.count[0]) return;
  const DecodeRow row = state.rows[r];
  for (int32_t c = static_cast<int32_t>(threadIdx.x); c < state.hidden; c += kThreads) {
    float value = words[int64_t{row.token} * state.hidden + c];
    if (positions != nullptr) value += positions[int64_t{row.position} * state.hidden + c];
    state.x[int64_t{r} * state.hidden + c] = value;
  }
}

template <typename RowsOfTile>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    QueriesKernel(const __grid_constant__ DecodeState state, const __grid_constant__ DecodeNorm norm,
                  const __grid_constant__ DecodeProduct product, RowsOfTile rows_of_tile, const float* rotary,
                  int64_t layer) {
  const int32_t dim = state.page.head_dim, width = state.heads * dim;
  decode::Multiply(product, rows_of_tile, state.count, Normed(state, norm, product),
                   [&](int32_t r, int32_t tile, int g, float own, float partner) {
                     const int32_t column = rows_of_tile(tile, g);
                     if (column >= product.out) return;
                     const DecodeRow row = state.rows[r];
                     if (product.bias != nullptr) own += product.bias[column];
                     const bool turns = rotary != nullptr && column < width + state.page.heads * dim;
                     if (turns) {
                       if (product.bias != nullptr) partner += product.bias[rows_of_tile(tile, g ^ 4)];
                       const int32_t half = dim / 2, place = column % dim % half;
                       const float* const table = rotary + int64_t{row.position} * dim;
                       const float cosine = table[place], sine = table[half + place];
                       own = g < 4 ? own * cosine - partner * sine : own * cosine + partner * sine;
                     }
                     if (column < width) {
                       state.q[int64_t{r} * width + column] = own;
                       return;
                     }
                     const int32_t of_keys = column - width, part = of_keys / dim, token = row.keys - 1;
                     auto* const page = reinterpret_cast<__nv_bfloat16*>(
                         const_cast<float*>(state.pages[row.first_page + token / KvPage::kTokens]) + layer);
                     page[state.page.Keys(part) + int64_t{token % KvPage::kTokens} * dim + of_keys - part * dim] =
                         __float2bfloat16_rn(own);
                   });
}

__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    ResidualKernel(const __grid_constant__ DecodeState state, const __nv_bfloat16* from,
                   const __grid_constant__ DecodeProduct product) {
  const Neighbours rows_of_tile{product.out};
  decode::Multiply(product, rows_of_tile, state.count, decode::StoredRows{from, product.in_padded},
                   [&](int32_t r, int32_t tile, int g, float own, float) {
                     const int32_t column = rows_of_tile(tile, g);
                     if (column >= product.out) return;
                     if (product.bias != nullptr) own += product.bias[column];
                     state.x[int64_t{r} * state.hidden + column] += own;
                   });
}

template <bool kGated, typename RowsOfTile>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    UpKernel(const __grid_constant__ DecodeState state, const __grid_constant__ DecodeNorm norm,
             const __grid_constant__ DecodeProduct product, RowsOfTile rows_of_tile, Activation activation) {
  const int32_t width = kGated ? product.out / 2 : product.out;
  decode::Multiply(product, rows_of_tile, state.count, Normed(state, norm, product),
                   [&](int32_t r, int32_t tile, int g, float own, float partner) {
                     const int32_t column = rows_of_tile(tile, g);
                     if (column >= width) return;  // gated: of the second half, which its partner takes
                     if (product.bias != nullptr) own += product.bias[column];
                     float value = Activate(activation, own);
                     if constexpr (kGated) {
                       if (product.bias != nullptr) partner += product.bias[width + column];
                       value *= partner;
                     }
                     state.wide[int64_t{r} * width + column] = __float2bfloat16_rn(value);
                   });
}

__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    LogitsKernel(const __grid_constant__ DecodeState state, const __grid_constant__ DecodeNorm norm,
                 const __grid_constant__ DecodeProduct product) {
  const Neighbours rows_of_tile{product.out};
  decode::Multiply(product, rows_of_tile, state.count + 1,
                   decode::NormedRows{norm, state.x, state.wanted, state.hidden, product.in_padded},
                   [&](int32_t r, int32_t tile, int g, float own, float) {
                     const int32_t column = rows_of_tile(tile, g);
                     if (column >= product.out) return;
                     if (product.bias != nullptr) own += product.bias[column];
                     state.logits[int64_t{r} * product.out + column] = own;
                   });
}

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchNext(cudaStream_t stream, const DecodeState& state, int64_t blocks, size_t shared_bytes,
                       void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (!state.overlaps) {
    return Launch(stream, blocks, kThreads, shared_bytes, kernel, std::forward<Arguments>(arguments)...);
  }
  return LaunchBehind(stream, blocks, kThreads, shared_bytes, kernel, std::forward<Arguments>(arguments)...);
}

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchProduct(cudaStream_t stream, const DecodeState& state, int32_t tiles, int32_t in,
                          void (*kernel)(Parameters...), Arguments&&... arguments) {
  return LaunchNext(stream, state, std::min(tiles, state.blocks), decode::SharedBytes(in), kernel,
                    std::forward<Arguments>(arguments)...);
}

}  // namespace

int64_t DecodeSharedBytes(int64_t in_padded) {
  const size_t sums = sizeof(float) * decode::kWarps * decode::kRows * decode::kTile;
  return static_cast<int64_t>(decode::SharedBytes(static_cast<int>(in_padded)) + sums);
}

cudaError_t DecodeEmbed(cudaStream_t stream, const DecodeState& state, int32_t rows, const float* words,
                        const float* positions) {
  // Behind what is no part of the step: a plain launch.
  return Launch(stream, rows, kThreads, 0, kLoaded<EmbedKernel>, state, words, positions);
}

cudaError_t DecodeQueries(cudaStream_t stream, const DecodeState& state, const DecodeNorm& norm,
                          const DecodeProduct& product, const float* rotary, int64_t layer) {
  if (rotary == nullptr) {
    const Neighbours rows{product.out};
    return LaunchProduct(stream, state, rows.tiles(), product.in_padded, kLoaded<QueriesKernel<Neighbours>>, state,
                         norm, product, rows, rotary, layer);
  }
  const Halves rows{product.out, state.page.head_dim / 2};
  return LaunchProduct(stream, state, rows.tiles(), product.in_padded, kLoaded<QueriesKernel<Halves>>, state, norm,
                       product, rows, rotary, layer);
}

cudaError_t DecodeResidual(cudaStream_t stream, const DecodeState& state, const __nv_bfloat16* from,
                           const DecodeProduct& product) {
  return LaunchProduct(stream, state, Neighbours{product.out}.tiles(), product.in_padded, kLoaded<ResidualKernel>,
                       state, from, product);
}

cudaError_t DecodeUp(cudaStream_t stream, const DecodeState& state, const DecodeNorm& norm,
                     const DecodeProduct& product, bool gated, Activation activation) {
  if (gated) {
    const Halves rows{product.out, product.out / 2};
    return LaunchProduct(stream, state, rows.tiles(), product.in_padded, kLoaded<UpKernel<true, Halves>>, state, norm,
                         product, rows, activation);
  }
  const Neighbours rows{product.out};
  return LaunchProduct(stream, state, rows.tiles(), product.in_padded, kLoaded<UpKernel<false, Neighbours>>, state,
                       norm, product, rows, activation);
}

cudaError_t DecodeLogits(cudaStream_t stream, const DecodeState& state, const DecodeNorm& norm,
                         const DecodeProduct& product) {
  // Behind a graph: a plain launch.
  return Launch(stream, std::min(Neighbours{product.out}.tiles(), state.blocks), kThreads,
                decode::SharedBytes(product.in_padded), kLoaded<LogitsKernel>, state, norm, product);
}

cudaError_t DecodeAttention(cudaStream_t stream, const DecodeState& state, int32_t rows, int32_t reach, int64_t layer) {
  const auto launch = [&](auto kernel) {
    return LaunchNext(stream, state, int64_t{rows} * state.heads, 0, kernel, state, reach, layer);
  };
  const int32_t dim = state.page.head_dim;
  if (dim <= 16) return launch(kLoaded<decode::AttentionKernel<2>>);
  if (dim <= 32) return launch(kLoaded<decode::AttentionKernel<4>>);
  if (dim <= 64) return launch(kLoaded<decode::AttentionKernel<8>>);
  if (dim <= 128) return launch(kLoaded<decode::AttentionKernel<16>>);
  return launch(kLoaded<decode::AttentionKernel<32>>);
}

}  // namespace edgewise::cuda
