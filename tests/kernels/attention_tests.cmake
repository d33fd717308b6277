# Tests of CPU attention; included by CMakeLists.txt.
foreach(suite attention attention_cap cap_fairness draw_graph)
  edgewise_test(${suite}_test SOURCES ${suite}_test.cc attention_cases.cc LIBRARIES edgewise_kernels)
endforeach()
foreach(suite attention_bias attention_compact drop_flag)
  edgewise_test(${suite}_test SOURCES ${suite}_test.cc attention_cases.cc attention_patterns.cc
    LIBRARIES edgewise_kernels)
endforeach()
