# Sources of the CPU kernels, and the flags of each instruction set. Paths are relative to kernels/.
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
  cpu/simd/isa.cc)

# edgewise_kernels_for(ISA FLAGS...): the table of one instruction set, in namespace ISA, as objects of a target.
function(edgewise_kernels_for isa)
  add_library(edgewise_kernels_${isa} OBJECT cpu/simd/attention.cc cpu/simd/draw.cc cpu/simd/gemm.cc
    cpu/simd/gemm_bfloat16.cc cpu/simd/gemm_int8.cc cpu/simd/table.cc)
  target_link_libraries(edgewise_kernels_${isa} PRIVATE edgewise_flags)
  target_compile_definitions(edgewise_kernels_${isa} PRIVATE EDGEWISE_SIMD_NAMESPACE=${isa})
  target_compile_options(edgewise_kernels_${isa} PRIVATE -O3 ${ARGN})
  set(EDGEWISE_CPU_SOURCES ${EDGEWISE_CPU_SOURCES} $<TARGET_OBJECTS:edgewise_kernels_${isa}> PARENT_SCOPE)
endfunction()

edgewise_kernels_for(generic)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(avx2_flags -mavx2 -mfma -mbmi -mbmi2 -mpopcnt)
  if(EDGEWISE_FUZZ)
    list(APPEND avx2_flags -fno-sanitize=all -O0)  # else Clang takes minutes, for code that no fuzz target is about
  endif()
  set(avx512_flags ${avx2_flags} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi -mavx512vbmi2
    -mavx512vnni -mprefer-vector-width=512 -fno-math-errno -Wno-maybe-uninitialized -Wno-uninitialized)
  set(amx_flags -O3 ${avx512_flags} -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16)
  edgewise_kernels_for(avx2 ${avx2_flags})
  edgewise_kernels_for(avx512 ${avx512_flags})
  list(APPEND EDGEWISE_CPU_SOURCES cpu/simd/amx.cc)
  set_source_files_properties(cpu/simd/amx.cc PROPERTIES COMPILE_OPTIONS "${amx_flags}")
endif()
