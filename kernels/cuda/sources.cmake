# Sources of the CUDA backend; included where they are built for a GPU and where they are built for the emulator. The
# matrix products are not among them: ops/gemm_cublaslt.cc, or the emulator's.
set(EDGEWISE_CUDA_SOURCES
  attention/caps.cu
  attention/draw_events.cu
  attention/draw_pairs.cu
  attention/event_heads.cu
  attention/reports.cu
  attention/rows.cu
  attention/tiles.cu
  ops/gemv.cu
  ops/memberships.cu
  ops/memberships_split.cu
  ops/rows.cu)
set(EDGEWISE_CUDA_HOST_SOURCES
  attention/attention.cc
  attention/drawn_parts.cc
  attention/edge_graph.cc
  attention/items.cc
  cuda_backend.cc
  device/cancel_flags.cc
  device/kernel_list.cc
  device/launch.cc
  ops/linear.cc
  ops/membership_halves.cc
  ops/memberships.cc
  device/runtime.cc
  device/staging.cc)
