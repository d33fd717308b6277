# Sources of the CPU kernels, and the flags of the one file per instruction set. Paths are relative to kernels/.
set(EDGEWISE_CPU_SOURCES
  cpu/runtime/buffer_pool.cc
  cpu/cpu_backend.cc
  cpu/ops/linear.cc
  cpu/ops/memberships.cc
  cpu/runtime/memory.cc
  cpu/runtime/thread_pool.cc
  cpu/attention/attention.cc
  cpu/attention/cap.cc
  cpu/attention/cap_block.cc
  cpu/attention/compact.cc
  cpu/attention/direction.cc
  cpu/attention/draw.cc
  cpu/attention/estimate.cc
  cpu/attention/events.cc
  cpu/attention/scratch.cc
  cpu/attention/prepare.cc
  cpu/attention/probable.cc
  cpu/attention/report.cc
  cpu/attention/rows.cc
  cpu/simd/generic.cc
  cpu/simd/isa.cc)
set_source_files_properties(cpu/simd/generic.cc PROPERTIES COMPILE_OPTIONS "-O3")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND EDGEWISE_CPU_SOURCES cpu/simd/amx.cc cpu/simd/avx2.cc cpu/simd/avx512.cc)
  set(avx2_flags -O3 -mavx2 -mfma -mbmi -mbmi2 -mpopcnt)
  if(EDGEWISE_FUZZ)
    list(APPEND avx2_flags -fno-sanitize=all -O0)  # else Clang takes minutes, for code that no fuzz target is about
  endif()
  set(avx512_flags ${avx2_flags} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi -mavx512vbmi2
    -mavx512vnni -mprefer-vector-width=512 -fno-math-errno -Wno-maybe-uninitialized -Wno-uninitialized)
  set(amx_flags ${avx512_flags} -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16)
  set_source_files_properties(cpu/simd/amx.cc PROPERTIES COMPILE_OPTIONS "${amx_flags}")
  set_source_files_properties(cpu/simd/avx2.cc PROPERTIES COMPILE_OPTIONS "${avx2_flags}")
  set_source_files_properties(cpu/simd/avx512.cc PROPERTIES COMPILE_OPTIONS "${avx512_flags}")
endif()
