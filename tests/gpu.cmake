# Tests on a GPU, one of ctest for each suite: gpu/<suite>. Where there is no GPU they are skipped and say why; where there
# is one that cannot be used they fail.
# `./dev gpu-test` runs the same suites and more (tools/gpu/steps.sh).
file(STRINGS ${PROJECT_SOURCE_DIR}/tools/gpu/suites.txt gpu_suites)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/gpu/suites.txt)

# Where the programs of build/tests look for the module (kernels/cuda_module.h).
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/lib/edgewise)
file(CREATE_LINK ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/libedgewise_cuda.so
  ${PROJECT_BINARY_DIR}/lib/edgewise/libedgewise_cuda.so SYMBOLIC)

foreach(line ${gpu_suites})
  string(REGEX MATCH "^[a-z_]+" suite ${line})
  add_test(NAME gpu/${suite} COMMAND ${suite}_test --gtest_brief=1)
  set_tests_properties(gpu/${suite} PROPERTIES LABELS gpu RESOURCE_LOCK gpu TIMEOUT 600
    ENVIRONMENT "EDGEWISE_TEST_DEVICE=cuda:0"
    SKIP_REGULAR_EXPRESSION "there is no NVIDIA driver;the NVIDIA driver found no device;this build has no CUDA backend")
endforeach()

# The benchmark's C interface and its Python wrapper, and the benchmark of whole models, over emulated kernels.
set(bench_sources gpu/attention_check.cc gpu/attention_gpu.cc gpu/attention_runs.cc membership_network.cc row_errors.cc)
list(TRANSFORM bench_sources PREPEND ${PROJECT_SOURCE_DIR}/bench/)
list(APPEND bench_sources ${PROJECT_SOURCE_DIR}/kernels/host/event_tables.cc
  ${PROJECT_SOURCE_DIR}/kernels/reference/reference_attention.cc ${PROJECT_SOURCE_DIR}/kernels/reference/reference_events.cc)
add_library(edgewise_gpu_bench_emulated MODULE ${bench_sources})
target_link_libraries(edgewise_gpu_bench_emulated PRIVATE edgewise_cuda_kernels_emulated edgewise_flags)
target_link_options(edgewise_gpu_bench_emulated PRIVATE -Wl,-z,defs)  # a symbol that is missing fails here
if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")  # Python cannot load a library with sanitizers
  add_test(NAME gpu_bench_wrapper COMMAND ${SYSTEM_PYTHON} -m unittest discover -s tests/gpu_bench
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(gpu_bench_wrapper PROPERTIES TIMEOUT 300
    ENVIRONMENT "EDGEWISE_GPU_BENCH=$<TARGET_FILE:edgewise_gpu_bench_emulated>;EDGEWISE_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};EDGEWISE_CUDA_MODULE=${EDGEWISE_EMULATED_MODULE}")
endif()
