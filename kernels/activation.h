// The function of each element that follows a matrix product.
#ifndef EDGEWISE_KERNELS_ACTIVATION_H_
#define EDGEWISE_KERNELS_ACTIVATION_H_

namespace edgewise {

enum class Activation {
  kNone,
  kRelu,
  kGelu,      // x (1 + erf(x / sqrt 2)) / 2
  kGeluTanh,  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
  kTanh,
  kSilu,       // x / (1 + exp(-x))
  kQuickGelu,  // x / (1 + exp(-1.702 x))
  kMish,       // x tanh(ln(1 + exp(x)))
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_ACTIVATION_H_
