// Backend::PrepareDecoder and Decode on a GPU: the kernels of a step (kernels.h), on a card as one CUDA graph for each
// class of row counts.
#ifndef EDGEWISE_KERNELS_CUDA_DECODE_DECODER_H_
#define EDGEWISE_KERNELS_CUDA_DECODE_DECODER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/decode/kernels.h"
#include "kernels/cuda/device/device_array.h"
#include "kernels/decoder.h"
#include "kernels/tensor.h"

namespace edgewise::cuda {

// One thread at a time, as Backend.
class CudaDecoder : public PreparedDecoder {
 public:
  // Null: a shape that the kernels do not take.
  static absl::StatusOr<std::unique_ptr<PreparedDecoder>> Create(std::shared_ptr<Device> device,
                                                                 const Decoder& decoder);
  ~CudaDecoder() override;
  // As Backend::Decode.
  absl::Status Run(std::span<const DecodedRow> rows, Matrix logits);

 private:
  CudaDecoder(std::shared_ptr<Device> device, const Decoder& decoder) : device_(std::move(device)), of_(decoder) {}
  absl::Status TakeMemory();
  absl::Status MakeGraphs();
  // Enqueues all layers of up to `rows` rows.
  cudaError_t RunLayers(cudaStream_t stream, int32_t rows) const;

  // Row counts 1, 2, 4, .. kMostDecodedRows.
  static constexpr size_t kClasses = 7;
  static_assert(1 << (kClasses - 1) == kMostDecodedRows);

  const std::shared_ptr<Device> device_;
  const Decoder of_;
  DecodeState state_ = {};
  int32_t most_pages_ = 0;      // of a text
  DeviceArray memory_;          // of rows on their way
  DeviceArray inputs_;          // what Run uploads: counts, rows, wanted rows, pages
#ifndef EDGEWISE_CUDA_EMULATED  // the emulator runs the kernels one by one
  std::array<cudaGraphExec_t, kClasses> graphs_ = {};
#endif
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_DECODE_DECODER_H_
