# Sources of CPU attention and of products of few rows, and the flags of the files that are compiled per instruction set. Included by
# kernels/CMakeLists.txt. Paths are relative to kernels/.
set(EDGEWISE_CPU_ATTENTION_SOURCES
  cpu/attention/attention.cc
  cpu/attention/cap.cc
  cpu/attention/compact.cc
  cpu/attention/draw.cc
  cpu/attention/scratch.cc
  cpu/attention/prepare.cc
  cpu/attention/report.cc
  cpu/attention/rows.cc
  cpu/attention/split.cc
  cpu/attention/edge_estimate.cc
  cpu/simd/attention_generic.cc
  cpu/simd/draw_split_generic.cc
  cpu/simd/gemm_generic.cc)
set_source_files_properties(cpu/simd/attention_generic.cc cpu/simd/draw_split_generic.cc cpu/simd/gemm_generic.cc
  PROPERTIES COMPILE_OPTIONS "-O3")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND EDGEWISE_CPU_ATTENTION_SOURCES
    cpu/simd/attention_avx2.cc
    cpu/simd/attention_avx512.cc
    cpu/simd/draw_split_avx2.cc
    cpu/simd/draw_split_avx512.cc
    cpu/simd/gemm_avx2.cc
    cpu/simd/gemm_avx512.cc)
  set_source_files_properties(cpu/simd/attention_avx2.cc cpu/simd/draw_split_avx2.cc cpu/simd/gemm_avx2.cc
    PROPERTIES COMPILE_OPTIONS "-O3;-mavx2;-mfma;-mbmi;-mbmi2;-mpopcnt")
  set_source_files_properties(cpu/simd/attention_avx512.cc cpu/simd/draw_split_avx512.cc cpu/simd/gemm_avx512.cc
    PROPERTIES COMPILE_OPTIONS
    "-O3;-mavx2;-mfma;-mbmi;-mbmi2;-mpopcnt;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512vbmi;-mavx512vbmi2;-mprefer-vector-width=512;-fno-math-errno;-Wno-maybe-uninitialized;-Wno-uninitialized")
endif()
