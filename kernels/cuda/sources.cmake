# Sources of the CUDA backend; included where they are built for a GPU and where they are built for the emulator. Not
# among them: the library of matrix products and maps of the copying engine, ops/gemm_cublaslt.cc and
# device/tensor_map.cc, or the emulator's.
set(EDGEWISE_CUDA_SOURCES
  attention/caps.cu
  attention/draw_events.cu
  attention/draw_pairs.cu
  attention/event_heads.cu
  attention/reports.cu
  attention/rounds.cu
  attention/rows.cu
  attention/tiles.cu
  attention/tiles_wide.cu
  decode/step.cu
  ops/gemm.cu
  ops/gemv.cu
  ops/memberships.cu
  ops/memberships_split.cu
  ops/pages.cu
  ops/rows.cu
  ops/tokens.cu)
set(EDGEWISE_CUDA_HOST_SOURCES
  attention/attention.cc
  attention/edge_graph.cc
  attention/items.cc
  attention/rounds.cc
  cuda_backend.cc
  decode/decoder.cc
  device/cancel_flags.cc
  device/kernel_list.cc
  device/launch.cc
  ops/gemm.cc
  ops/linear.cc
  ops/membership_halves.cc
  ops/memberships.cc
  ops/token_chooser.cc
  device/runtime.cc
  device/staging.cc)
