// The norm of a row.
#ifndef EDGEWISE_KERNELS_ROW_NORM_H_
#define EDGEWISE_KERNELS_ROW_NORM_H_

namespace edgewise {

// LayerNorm, or without a bias RmsNorm, of whole rows. [columns], in the backend's memory.
struct RowNorm {
  const float* weight = nullptr;  // null: no norm
  const float* bias = nullptr;
  float epsilon = 0.0f;
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_ROW_NORM_H_
