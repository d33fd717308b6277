// The machine's float32 multiply-add rate, measured: the bound that dense attention is compared with.
#ifndef EDGEWISE_BENCH_FMA_PEAK_H_
#define EDGEWISE_BENCH_FMA_PEAK_H_

#include "kernels/cpu/simd/isa.h"

namespace edgewise::bench {

// Best of a few short runs of independent multiply-adds in registers on `threads` threads at once, FLOP/s.
double FmaPeak(Isa isa, int threads);

}  // namespace edgewise::bench

#endif  // EDGEWISE_BENCH_FMA_PEAK_H_
