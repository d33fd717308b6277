// Matrix products on the CPU (simd/kernels.h), shared by the threads of a pool. A row's bytes depend on the row and the
// weights alone: not on the other rows, nor on the threads.
#ifndef EDGEWISE_KERNELS_CPU_LINEAR_H_
#define EDGEWISE_KERNELS_CPU_LINEAR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/thread_pool.h"

namespace edgewise {

// y = activation(x W^T + b) with W packed for one table of kernels. Immutable: any number of threads may use it.
class CpuLinear : public LinearWeights {
 public:
  // weight [out, in] row-major, bias [out] or empty. RESOURCE_EXHAUSTED: no memory for the packed copy.
  static absl::StatusOr<std::unique_ptr<CpuLinear>> Create(const CpuKernels& kernels, std::span<const float> weight,
                                                           std::span<const float> bias, int64_t out, int64_t in,
                                                           Activation activation);

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  const CpuKernels& kernels() const { return *kernels_; }

  // On the calling thread. x [rows, in], y [rows, out]. With `accumulate`, y += x W^T + b and no activation.
  void Run(ConstMatrix x, Matrix y, bool accumulate) const;
  // Shared by the pool's threads. Backend::Linear on the host.
  void Run(ThreadPool& pool, ConstMatrix x, Matrix y, bool accumulate) const;

 private:
  CpuLinear() = default;
  // Columns of the panels first_panel..last_panel-1.
  void RunPanels(ConstMatrix x, Matrix y, bool accumulate, size_t first_panel, size_t last_panel) const;

  struct Panel {
    int64_t column;  // its first
    int64_t offset;  // in data_, floats
  };

  int64_t in_ = 0, out_ = 0;
  Activation activation_ = Activation::kNone;
  const CpuKernels* kernels_ = nullptr;
  std::vector<Panel> panels_;  // and one past the last
  Buffer data_;
  std::vector<float> bias_;
};

// Backend::FeedForward on the host or, with a gate's activation, GatedFeedForward. The wide rows between the two
// products stay in `scratch`, whose size is bounded whatever the number of rows is; it may be used by one call at a
// time.
void CpuFeedForward(ThreadPool& pool, const CpuLinear& up, const CpuLinear& down, std::optional<Activation> gate,
                    ConstMatrix x, Matrix y, std::vector<float>& scratch);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_LINEAR_H_
