// The kernels of a decoder's step: all rows of plain generations at once (kernels/decoder.h), precision bf16. A layer
// is five kernels. Each function enqueues on `stream` and returns the launch's error. On a card a kernel is launched
// while the one before ends (programmatic dependent launch): until Wait it reads weights alone.
//
// A row's numbers never meet another row's, and the order of its sums is fixed by shapes and by its own keys: its bytes
// are the same among any rows.
#ifndef EDGEWISE_KERNELS_CUDA_DECODE_KERNELS_H_
#define EDGEWISE_KERNELS_CUDA_DECODE_KERNELS_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/kv_page.h"

namespace edgewise::cuda {

struct DecodeProduct {
  const __nv_bfloat16* weight;  // [out, in_padded]
  const float* bias;            // [out] or null
  int32_t out, in, in_padded;
};

struct DecodeNorm {
  const float* weight;
  const float* bias;  // null: RMS norm
  float epsilon;
};

// A row that runs, in device memory.
struct DecodeRow {
  int32_t token, position, keys;
  int32_t first_page;  // of its pages, in DecodeState::pages
};

// Shared by all kernels of a step. Arrays in device memory, of kMostDecodedRows rows.
struct DecodeState {
  const int32_t* count;  // [2] rows that run; rows whose logits are wanted
  const DecodeRow* rows;
  const int32_t* wanted;  // rows, ascending
  const float* const* pages;
  float* x;                 // [.., hidden]
  float* q;                 // [.., heads * head_dim]
  __nv_bfloat16* attended;  // likewise
  __nv_bfloat16* wide;      // [.., in of down]
  float* logits;            // [.., vocabulary]
  int32_t hidden, heads;
  KvPage page;
  float score_scale;
  int32_t blocks;  // of a kernel of products: at most
  bool overlaps;   // a kernel may start before the one before has ended
};

// Bytes of shared memory that a block of a product takes, static memory included.
int64_t DecodeSharedBytes(int64_t in_padded);

// x = word + position; position null: none.
cudaError_t DecodeEmbed(cudaStream_t stream, const DecodeState& state, int32_t rows, const float* word,
                        const float* position);
// q, and the layer's keys and values in pages from `layer` floats on, of norm(x). rotary null: none.
cudaError_t DecodeQueries(cudaStream_t stream, const DecodeState& state, const DecodeNorm& norm,
                          const DecodeProduct& product, const float* rotary, int64_t layer);
// attended. `rows`: a number of rows that is not below those that run.
cudaError_t DecodeAttention(cudaStream_t stream, const DecodeState& state, int32_t rows, int32_t reach, int64_t layer);
// x += product(attended), or of `wide`.
cudaError_t DecodeResidual(cudaStream_t stream, const DecodeState& state, const __nv_bfloat16* from,
                           const DecodeProduct& product);
// wide = activation(product(norm(x))); gated: activation(a) * b of the halves.
cudaError_t DecodeUp(cudaStream_t stream, const DecodeState& state, const DecodeNorm& norm,
                     const DecodeProduct& product, bool gated, Activation activation);
// logits, of the rows that are wanted: product(norm(x)).
cudaError_t DecodeLogits(cudaStream_t stream, const DecodeState& state, const DecodeNorm& norm,
                         const DecodeProduct& product);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_DECODE_KERNELS_H_
