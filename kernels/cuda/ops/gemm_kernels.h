// Our own products: what the orders of sums (gemm.h) are. And what compares others with them. Each function enqueues on
// `stream` and returns the launch's error.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_GEMM_KERNELS_H_
#define EDGEWISE_KERNELS_CUDA_OPS_GEMM_KERNELS_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ops/forms.h"
#include "kernels/cuda/ops/gemm_library.h"
#include "kernels/tensor.h"

namespace edgewise::cuda {

// As Gemm::Run, for all slices, and `finish` behind it. The columns of finish.y are those of the shape, without zeros;
// its rows and the bias are whole 16-byte words, 16-byte aligned.
cudaError_t ChainProduct(cudaStream_t stream, const GemmShape& shape, const void* weight, const void* x,
                         int64_t x_stride, int64_t rows, const Finish& finish);

// Packs rows, with zeros beyond x.columns. x may be anywhere, but its rows are whole 16-byte words, 16-byte aligned,
// for kPartsOfW. `to` begins at a 16-byte address, and `slice` is a multiple of kGemmIn.
cudaError_t PackRows(cudaStream_t stream, ConstMatrix x, Packing packing, int64_t slice, int64_t slices,
                     __nv_bfloat16* to);

// Random numbers of either type, of which row r depends on r % period.
cudaError_t FillTrial(cudaStream_t stream, int64_t rows, int64_t row_bytes, int64_t period, void* x);
// Sets *differs where the sum of the matrices at y [sums][rows][out], in order, is not `times` the row r % period of
// `expected`, bit for bit.
cudaError_t CompareTrial(cudaStream_t stream, const float* y, int32_t sums, int64_t rows, int64_t out,
                         const float* expected, int64_t period, float times, int32_t* differs);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_GEMM_KERNELS_H_
