// The two phases of a text.
#ifndef EDGEWISE_KERNELS_PHASE_H_
#define EDGEWISE_KERNELS_PHASE_H_

namespace edgewise {

// The phase that a matrix product or an attention call belongs to. A row's result is the same for any number of rows of
// the same phase. The two phases may round differently on a GPU, a product by at most 1e-6 of the largest sum of
// products, also where GELU is nearly zero; on the CPU they are one.
enum class Phase {
  kPrefill,  // rows of whole sequences
  kDecode    // one new token per sequence: bound by reading the weights, and keys and values
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_PHASE_H_
