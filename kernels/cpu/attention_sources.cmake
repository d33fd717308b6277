# Sources of CPU attention and of products of few rows, and the flags of the files that are compiled per instruction set. Included by
# kernels/CMakeLists.txt. Paths are relative to kernels/.
set(EDGEWISE_CPU_ATTENTION_SOURCES
  cpu/attention.cc
  cpu/attention_cap.cc
  cpu/attention_compact.cc
  cpu/attention_draw.cc
  cpu/attention_memory.cc
  cpu/attention_prepare.cc
  cpu/attention_report.cc
  cpu/attention_rows.cc
  cpu/attention_split.cc
  cpu/edge_estimate.cc
  cpu/attention_generic.cc
  cpu/draw_split_generic.cc
  cpu/linear_few_generic.cc)
set_source_files_properties(cpu/attention_generic.cc cpu/draw_split_generic.cc cpu/linear_few_generic.cc
  PROPERTIES COMPILE_OPTIONS "-O3")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND EDGEWISE_CPU_ATTENTION_SOURCES
    cpu/attention_avx2.cc
    cpu/attention_avx512.cc
    cpu/draw_split_avx2.cc
    cpu/draw_split_avx512.cc
    cpu/linear_few_avx2.cc
    cpu/linear_few_avx512.cc)
  set_source_files_properties(cpu/attention_avx2.cc cpu/draw_split_avx2.cc cpu/linear_few_avx2.cc
    PROPERTIES COMPILE_OPTIONS "-O3;-mavx2;-mfma;-mbmi;-mbmi2;-mpopcnt")
  set_source_files_properties(cpu/attention_avx512.cc cpu/draw_split_avx512.cc cpu/linear_few_avx512.cc
    PROPERTIES COMPILE_OPTIONS
    "-O3;-mavx2;-mfma;-mbmi;-mbmi2;-mpopcnt;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512vbmi;-mavx512vbmi2;-mprefer-vector-width=512;-fno-math-errno;-Wno-maybe-uninitialized;-Wno-uninitialized")
endif()
