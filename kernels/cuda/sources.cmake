# Sources of the CUDA backend; included where they are built for a GPU and where they are built for the emulator. The
# matrix products are not among them: gemm_cublaslt.cc, or the emulator's.
set(EDGEWISE_CUDA_SOURCES
  attention_caps.cu
  attention_dense.cu
  attention_reports.cu
  attention_rows.cu
  attention_tiles.cu
  linear_few.cu
  memberships.cu
  rows.cu)
set(EDGEWISE_CUDA_HOST_SOURCES
  attention.cc
  attention_graph.cc
  attention_items.cc
  blocks.cc
  cuda_backend.cc
  drop_flags.cc
  launch.cc
  linear.cc
  memberships.cc
  memory_cache.cc
  runtime.cc
  staging.cc)
