// The function of each element that follows a matrix product.
#ifndef EDGEWISE_KERNELS_ACTIVATION_H_
#define EDGEWISE_KERNELS_ACTIVATION_H_

namespace edgewise {

enum class Activation { kNone, kRelu, kGelu };  // GELU is the exact one: x * (1 + erf(x / sqrt 2)) / 2

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_ACTIVATION_H_
