// Kernels that go row by row: the operations of a model that are neither products nor attention. Each function enqueues
// on `stream` and returns the launch's error. Matrices and index arrays are in device memory. Backend's function of the
// same name (kernels/backend.h) says what an operation computes.
//
// A row's result depends neither on where the row lies nor on the number of rows.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_ROWS_H_
#define EDGEWISE_KERNELS_CUDA_OPS_ROWS_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ops/forms.h"
#include "kernels/row_norm.h"
#include "kernels/tensor.h"

namespace edgewise::cuda {

// position.data null: no positions are added, and `positions` is not read. y [rows, hidden].
cudaError_t Embed(cudaStream_t stream, ConstMatrix word, ConstMatrix position, const int32_t* token_ids,
                  const int32_t* positions, Matrix y);

// A product that is added to a residual stream, in the order (product + x) + bias; as FinishProduct takes it. data
// null: it is in x already.
struct Added {
  ConstMatrix product;
  int32_t sums = 1;
  const float* bias = nullptr;
};
// x += added; then the norm of each run of `columns` columns of a row, to y (float32; may be x) and to `operand`, which
// takes whole rows. Without anything added x is not written.
cudaError_t Norm(cudaStream_t stream, const Added& added, Matrix x, const RowNorm& norm, int64_t columns,
                 const FormRows& y, const FormRows& operand);

cudaError_t Rotate(cudaStream_t stream, Matrix x, ConstMatrix table, const int32_t* positions);

// y[i] = x[rows[i]], rows [y.rows].
cudaError_t GatherRows(cudaStream_t stream, ConstMatrix x, const int64_t* rows, Matrix y);

// offsets [y.rows + 1], divisors [y.rows].
cudaError_t PoolMean(cudaStream_t stream, ConstMatrix x, const int64_t* offsets, const float* divisors, Matrix y);

cudaError_t PairFeatures(cudaStream_t stream, ConstMatrix x0, ConstMatrix x1, Matrix y);

// Finishes `columns` columns of a product; finish.y may be `product`. The product is the sum of `sums` matrices in
// order, each of product.rows rows and behind the one before. gated > 0: y is then multiplied by the columns of the
// product from `gated` on.
cudaError_t FinishProduct(cudaStream_t stream, ConstMatrix product, int32_t sums, const Finish& finish, int64_t columns,
                          int64_t gated = 0);

// to [rows, columns]: x and, beyond its columns, zeros.
cudaError_t PadRows(cudaStream_t stream, ConstMatrix x, float* to, int64_t columns);

// Heads of keys or values, rounded to the nearest bf16: column c of head h to to[r * to_stride + h * head_stride + c].
// x and `to` begin at 16-byte addresses; columns and strides are multiples of 8.
cudaError_t RoundHeads(cudaStream_t stream, ConstMatrix x, int32_t head_columns, __nv_bfloat16* to, int64_t to_stride,
                       int64_t head_stride);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_ROWS_H_
