// Backend::Attend on a GPU: the host cuts a call into items and enqueues the kernels. Reports are filled once the
// stream has been waited for.
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
#include "kernels/cuda/attention/items.h"
#include "kernels/cuda/device/device_array.h"
#include "kernels/cuda/device/runtime.h"

namespace edgewise::cuda {

class DrawRounds;

// One number of edges in device memory.
class CudaLedger : public EdgeLedger {
 public:
  explicit CudaLedger(DeviceArray block) : block_(std::move(block)) {}
  uint64_t* edges() const { return static_cast<uint64_t*>(block_.data()); }

 private:
  DeviceArray block_;
};

// Floats of part rows (call.h) that are in memory at once.
inline constexpr int64_t kMostPartFloats = int64_t{4} << 20;
// Bytes of drawn edges that are in memory at once: a layer with more is drawn and attended to in rounds.
inline constexpr int64_t kMostEdgeBytes = int64_t{256} << 20;

// One thread at a time, as Backend. `device` must outlive the object.
class Attention {
 public:
  Attention(Device& device, bool bf16, int64_t most_part_floats = kMostPartFloats,
            int64_t most_edge_bytes = kMostEdgeBytes)
      : device_(device),
        staging_(device.staging()),
        bf16_(bf16),
        most_part_floats_(most_part_floats),
        most_edge_bytes_(most_edge_bytes) {}

  // As Backend::Attend.
  absl::Status Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                      std::span<EdgeCap> caps, Matrix out);
  // Waits for the stream, makes `copies` to the host, and fills the reports and caps of the calls so far. INTERNAL: a
  // kernel gave up.
  absl::Status Collect(std::vector<Staging::ToHost> copies);
  // Frees what calls leave for the next.
  void FreeScratch() { rounded_.Free(); }
  // Leaves those reports and caps unfilled: the device failed, and their owners may go.
  void Forget() { pending_.clear(); }

 private:
  // The results of one call, in one block (caps, counts, `full`, then key degrees), and the reports that they go to.
  struct Results {
    DeviceArray memory;  // null: nothing is written
    int64_t bytes = 0;
    int64_t full = 0;     // bytes before DeviceCall::full
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

  // Arrays that the kernels read besides the call itself.
  struct Lists {
    const int32_t* expected = nullptr;  // device: the problems whose expected edges are wanted
    int32_t num_expected = 0;
    // device: [problems] where a problem's key degrees begin among the call's, -1: not wanted; null: no problem's are
    const int64_t* first_degrees = nullptr;
    std::vector<NarrowRun> narrow_runs;
  };

  absl::Status Plan(const AttentionInputs& inputs, std::span<const AttentionProblem> problems, std::span<EdgeCap> caps,
                    Matrix out, DeviceCall& call, Lists& lists, Results& results, DeviceArray& tables,
                    std::vector<DeviceProblem>& staged);
  absl::Status PlanResults(std::span<const AttentionProblem> problems, std::span<EdgeCap> caps, DeviceCall& call,
                           Lists& lists, Results& results);
  absl::Status Enqueue(const Lists& lists, const Results& results, DrawRounds& rounds);
  absl::Status EnqueueTiles(const DeviceCall& call, std::span<const NarrowRun> runs);
  // Precision bf16: finds keys and values rounded, or rounds them.
  absl::Status RoundKeysAndValues(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                                  DeviceCall& call);

  // Memory for the tables of heads that may be drawn by events, which must live until the call's kernels are done.
  absl::Status PlanEvents(std::span<DeviceProblem> staged, DeviceCall& call, DeviceArray& tables);

  Device& device_;
  Staging& staging_;
  const bool bf16_;
  const int64_t most_part_floats_, most_edge_bytes_;
  Scratch rounded_;
  std::vector<Results> pending_;
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ATTENTION_H_
