// Backend::Attend on a GPU: the host cuts a call into items, enqueues the kernels, and fills reports when the stream
// has been waited for.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ATTENTION_H_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/attention.h"
#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/device/device_array.h"
#include "kernels/cuda/device/runtime.h"

namespace edgewise::cuda {

// One number of edges in device memory.
class CudaLedger : public EdgeLedger {
 public:
  explicit CudaLedger(DeviceArray block) : block_(std::move(block)) {}
  uint64_t* edges() const { return static_cast<uint64_t*>(block_.data()); }

 private:
  DeviceArray block_;
};

// One thread at a time, as Backend. `device` must outlive it.
class Attention {
 public:
  Attention(Device& device, bool bf16) : device_(device), staging_(device.staging()), bf16_(bf16) {}

  // As Backend::Attend.
  absl::Status Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                      std::span<EdgeCap> caps, Matrix out);
  // Waits for the stream, makes `copies` to the host, and fills what is owed to reports and caps. INTERNAL: a kernel
  // gave up.
  absl::Status Collect(std::vector<Staging::ToHost> copies);
  // Fills nothing that is owed: the device failed, and the owners of reports may go.
  void Forget() { pending_.clear(); }

 private:
  // What the device writes for one call, and who gets it: caps, counts, then key degrees, in one block.
  struct Results {
    DeviceArray memory;  // null: nothing is written
    int64_t bytes = 0;
    int64_t degrees = 0;  // bytes before the key degrees
    std::span<EdgeCap> caps;
    struct Owed {
      AttentionReport* report;
      int64_t count;    // of its first head among the counts
      int64_t degrees;  // as Lists::first_degrees
      int32_t tokens;
    };
    std::vector<Owed> owed;
    int64_t num_heads = 0;
  };

  // What the kernels of a call read besides the call itself.
  struct Lists {
    const int32_t* expected = nullptr;  // device: problems whose expected edges are wanted
    int32_t num_expected = 0;
    // device: [problems] where its key degrees begin among the call's, -1: not wanted; null: nobody wants any
    const int64_t* first_degrees = nullptr;
  };

  absl::Status Plan(const AttentionInputs& inputs, std::span<const AttentionProblem> problems, std::span<EdgeCap> caps,
                    Matrix out, DeviceCall& call, Lists& lists, Results& results);
  absl::Status PlanResults(std::span<const AttentionProblem> problems, std::span<EdgeCap> caps, DeviceCall& call,
                           Lists& lists, Results& results);
  absl::Status Enqueue(const DeviceCall& call, const Lists& lists, const Results& results);
  // Rounds keys and values where the precision is bf16; they live until the call's kernels are done.
  absl::Status RoundKeysAndValues(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                                  DeviceCall& call, DeviceArray& rounded);

  Device& device_;
  Staging& staging_;
  const bool bf16_;
  std::vector<Results> pending_;
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ATTENTION_H_
