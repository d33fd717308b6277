// Rows in the forms that products read (kernels/tensor.h), as kernels write them.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_FORMS_H_
#define EDGEWISE_KERNELS_CUDA_OPS_FORMS_H_

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/tensor.h"

namespace edgewise::cuda {

// Float32 numbers as a product of bf16 reads them: [slices][products][slice].
//   kRounded       one product: the nearest bf16
//   kPartsOfX      six products: x3 x1 x2 x2 x1 x1, where x = x1 + x2 + x3 but for what is below 2^-133
//   kPartsOfW             beside: w1 w3 w2 w1 w2 w1
// A number that is not finite is the last of its six, and the others are zero: products with it are float32's.
enum class Packing { kRounded, kPartsOfX, kPartsOfW };
inline constexpr int64_t kPartProducts = 6;

// Form::kBfloat16 is kRounded in one slice, Form::kParts kPartsOfX in the slices of OrderOf (gemm.h); both with zeros
// beyond the columns.
struct FormRows {
  float* data = nullptr;  // null: nothing is written
  int64_t stride = 0;     // floats
  Form form = Form::kFloat32;
  int32_t slice = 0;   // of kParts: columns, a multiple of 8
  int64_t padded = 0;  // columns, with those of zeros; but for float32 a multiple of 8
};

// The end of a product, element by element: y = activation(product + bias), or with `accumulate`
// y = (product + y) + bias, in float32.
struct Finish {
  FormRows y;
  const float* bias = nullptr;  // [columns] or null
  Activation activation = Activation::kNone;
  bool accumulate = false;
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_FORMS_H_
