// Matrix products of many rows, y = x W^T.
//
// The order in which an element of y is summed is a fixed function of the weight's shape, the precision and the kind of
// GPU (OrderOf): never of a clock, of the number of rows or of free memory. Our own kernels (gemm_kernels.h) say what
// each order is. Which kernel computes it is free: an algorithm of a library (gemm_library.h) runs in their place where
// its rows had the same bytes when the weight was prepared, and among those the fastest for the number of rows.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_GEMM_H_
#define EDGEWISE_KERNELS_CUDA_OPS_GEMM_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/runtime.h"
#include "kernels/cuda/ops/forms.h"
#include "kernels/cuda/ops/gemm_library.h"

namespace edgewise::cuda {

// Slices of k in order, each a chain over its k: of float32 multiply-adds one by one, of bf16 by 16 products at a time
// (mma m16n8k16), all added up in float32. The sums of the slices are added in turn: ((s0 + s1) + s2) + ...
// Parts: a float32 number is the sum of three bf16 numbers, and a slice is one chain over six products of parts, the
// small ones first.
struct SumOrder {
  bool parts = false;
  int32_t slices = 1;
};

// `in` columns; `sm`: 10 * major + minor of the compute capability. The number of outputs changes nothing.
//
// A tensor core's sum loses a little at each step, always towards zero, so that a long chain errs more than one of
// float32: no slice has more than 512 columns. Parts cost six products of bf16: they are for GPUs whose tensor cores
// are more than six times as fast in bf16 as the others are in float32.
inline SumOrder OrderOf(int64_t in, bool bf16, int sm) {
  if (bf16) return {false, 1};
  const bool parts = in >= 64 && (sm == 80 || sm == 90 || sm == 100 || sm == 103);
  return {parts, in < 256 ? 1 : static_cast<int32_t>(std::max<int64_t>(2, (in + 511) / 512))};
}

// Columns of a row in a form (forms.h), with those of zeros; floats that the row takes (Backend::RowFloats); rows that
// kernels write. `sm` as OrderOf.
inline int64_t SliceOf(Form form, int64_t columns, int sm) {
  const int64_t slices = form == Form::kParts ? OrderOf(columns, false, sm).slices : 1;
  return (columns + kGemmIn * slices - 1) / (kGemmIn * slices) * kGemmIn;
}
inline int64_t PaddedColumns(Form form, int64_t columns, int sm) {
  if (form == Form::kFloat32) return columns;
  return SliceOf(form, columns, sm) * (form == Form::kParts ? OrderOf(columns, false, sm).slices : 1);
}
inline int64_t RowFloats(Form form, int64_t columns, int sm) {
  const int64_t padded = PaddedColumns(form, columns, sm);
  return form == Form::kFloat32 ? padded : padded / 2 * (form == Form::kParts ? kPartProducts : 1);
}
inline FormRows RowsOf(Matrix y, int sm) {
  return {y.data, y.stride, y.form, static_cast<int32_t>(SliceOf(y.form, y.columns, sm)),
          PaddedColumns(y.form, y.columns, sm)};
}

// Rows of x in one product at most.
inline constexpr int64_t kGemmRows = 16384;
// The most rows of each class of numbers of rows. One algorithm computes a class.
inline constexpr std::array<int64_t, 9> kRowClasses = {16, 64, 128, 256, 512, 1024, 2048, 4096, kGemmRows};

// The algorithm of each class; none: our own kernel. Immutable.
struct GemmPlan {
  GemmShape shape;
  std::array<std::optional<GemmLibrary::Algorithm>, kRowClasses.size()> algorithms;
  std::array<bool, kRowClasses.size()> own_finishes = {};  // our own kernel is faster than the algorithm and a Finish
};

// The number of matrices that Run may write for a product of `rows` rows: one, or the sums of each slice apart.
int32_t SumsApart(const GemmShape& shape, int64_t rows);
// Floats of y that a product of up to `most_rows` rows takes, at most.
int64_t MostSums(const GemmShape& shape, int64_t most_rows);

// Calls come from one thread at a time.
class Gemm {
 public:
  // Without a library, where the environment says EDGEWISE_CUDA_OWN_PRODUCTS=1.
  static absl::StatusOr<std::unique_ptr<Gemm>> Create(std::shared_ptr<Device> device);

  // Whether our own kernel, which finishes what it sums, is to make a product that is finished. `apart`: by a kernel of
  // its own otherwise.
  static bool FinishesItself(const GemmPlan& plan, int64_t rows, bool apart);
  // Such a product, as Run; finish.y as ChainProduct takes it. Any number of slices.
  absl::Status RunFinished(const GemmPlan& plan, const void* weight, const void* x, int64_t x_stride, int64_t rows,
                           const Finish& finish);

  // Tries what the library offers on `weight`, and in this process not again for another of its shape. Waits.
  absl::StatusOr<std::shared_ptr<const GemmPlan>> Plan(const GemmShape& shape, const void* weight);

  // y [rows, out] = x [rows, slices * in] W [out, slices * in]^T, or y += with `accumulate`, which only a shape of one
  // slice takes. W is packed; the strides are in elements. All three begin at 16-byte addresses and their rows are
  // multiples of 16 bytes apart; 1 <= rows <= shape.most_rows; with several slices y_stride is `out`. Returns how many
  // matrices lie at y, one behind the other, whose sum in this order is the product: 1 or SumsApart. A row of the
  // product depends on its row of x, on W and on the order alone, bit for bit.
  absl::StatusOr<int32_t> Run(const GemmPlan& plan, const void* weight, const void* x, int64_t x_stride, int64_t rows,
                              float* y, int64_t y_stride, bool accumulate);

  static void ForgetPlans();  // for tests

 private:
  struct Trial;

  Gemm(std::shared_ptr<Device> device, std::unique_ptr<GemmLibrary> library)
      : device_(std::move(device)), library_(std::move(library)) {}
  absl::StatusOr<int32_t> RunBy(cudaStream_t stream, const GemmLibrary::Algorithm& algorithm, const GemmCall& call,
                                const void* weight, const void* x, float* y, bool accumulate);
  absl::StatusOr<Trial> MakeTrial(const GemmShape& shape, int64_t most_rows, const void* weight);
  absl::StatusOr<bool> Differs(const Trial& trial);
  absl::StatusOr<bool> HasOurBytes(const GemmLibrary::Algorithm& algorithm, const GemmShape& shape, size_t row_class,
                                   const Trial& trial);
  absl::Status Choose(const std::vector<GemmLibrary::Algorithm>& offered, size_t row_class, const Trial& trial,
                      GemmPlan& plan);

  const std::shared_ptr<Device> device_;
  const std::unique_ptr<GemmLibrary> library_;  // null: none
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_GEMM_H_
