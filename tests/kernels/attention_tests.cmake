# Tests of CPU attention; included by CMakeLists.txt.
foreach(suite attention attention_cap attention_compact cap_fairness draw_graph)
  edgewise_test(${suite}_test SOURCES ${suite}_test.cc attention_cases.cc LIBRARIES edgewise_kernels)
endforeach()
