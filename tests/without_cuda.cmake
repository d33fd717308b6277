# The build and the tests of a machine without nvcc, run on every machine.
#
# Only what differs is configured and built a second time; nothing else may.
add_test(NAME without_cuda/build COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/support/without_cuda.py
  ${CMAKE_COMMAND} ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
set_tests_properties(without_cuda/build PROPERTIES TIMEOUT 900 LABELS check)

# Tests that meet what nvcc makes run once more with the module hidden.
set(hidden "EDGEWISE_CUDA_MODULE=")
edgewise_run(without_cuda/server_binary server_binary_test ENVIRONMENT ${hidden} LABEL check)
foreach(suite process newcomer)
  add_test(NAME without_cuda/e2e_${suite} COMMAND ${SYSTEM_PYTHON} -m unittest -v test_${suite}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}/tests/e2e)
  set_tests_properties(without_cuda/e2e_${suite} PROPERTIES LABELS check
    ENVIRONMENT "EDGEWISE_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};EDGEWISE_ROOT=${PROJECT_SOURCE_DIR};${hidden}")
endforeach()
# A suite that is told to use a GPU says why it cannot, and is skipped.
add_test(NAME without_cuda/gpu_suite COMMAND golden_test --gtest_filter=*/dense)
set_tests_properties(without_cuda/gpu_suite PROPERTIES ENVIRONMENT "EDGEWISE_TEST_DEVICE=cuda:0;${hidden}"
  PASS_REGULAR_EXPRESSION "this build has no CUDA backend")
