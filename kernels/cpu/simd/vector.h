// Vector operations of the instruction set that the including file is compiled for.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_VECTOR_H_
#define EDGEWISE_KERNELS_CPU_SIMD_VECTOR_H_

#if defined(__AVX512VBMI2__)
#include "kernels/cpu/simd/vector_avx512.h"
#else
#include "kernels/cpu/simd/vector_portable.h"
#endif

#endif  // EDGEWISE_KERNELS_CPU_SIMD_VECTOR_H_
