// The parts of the table of one instruction set (EDGEWISE_SIMD_NAMESPACE): each is an object, so that cores compile
// them in parallel. Functions behind the table are internal or in this namespace: the linker could take an inline
// function that other files share from here, and run it on a CPU that lacks the instructions.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_PARTS_H_
#define EDGEWISE_KERNELS_CPU_SIMD_PARTS_H_

#include "kernels/cpu/simd/kernels.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// Each sets the members that its file computes.
void AddAttention(CpuKernels& table);     // attention.cc
void AddDraws(CpuKernels& table);         // draw.cc
void AddGemm(CpuKernels& table);          // gemm.cc
void AddBfloat16Gemm(CpuKernels& table);  // gemm_bfloat16.cc
void AddInt8Gemm(CpuKernels& table);      // gemm_int8.cc

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_PARTS_H_
