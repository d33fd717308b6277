// Matrix products by oneDNN, always in blocks of exactly 64 rows, so that a row's result does not depend on how many
// rows there are.
#ifndef EDGEWISE_KERNELS_CPU_LINEAR_H_
#define EDGEWISE_KERNELS_CPU_LINEAR_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/thread_pool.h"

namespace edgewise {

inline constexpr int64_t kLinearRows = 64;

// What follows the product.
enum class Epilogue { kNone, kRelu, kGelu, kSigmoid };

// y = epilogue(x W^T + b) on 64 rows. Immutable; Run may be called from many threads at once.
class LinearBlock {
 public:
  // weight [out, in], bias [out] or empty.
  static absl::StatusOr<std::unique_ptr<LinearBlock>> Create(std::span<const float> weight, std::span<const float> bias,
                                                             int64_t out, int64_t in, Epilogue epilogue);
  ~LinearBlock();

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  // x [64, in], y [64, out], both contiguous. With `accumulate`, y += x W^T + b (only without an epilogue).
  void Run(const float* x, float* y, bool accumulate) const;

 private:
  struct Primitives;
  LinearBlock(int64_t out, int64_t in);

  int64_t out_, in_;
  std::unique_ptr<Primitives> primitives_;
};

class CpuLinearWeights : public LinearWeights {
 public:
  explicit CpuLinearWeights(std::unique_ptr<LinearBlock> block) : block(std::move(block)) {}
  const std::unique_ptr<LinearBlock> block;
};

// Backend::Linear on the host.
void CpuLinear(ThreadPool& pool, const LinearBlock& block, ConstMatrix x, Matrix y, bool accumulate);

// Keeps oneDNN to `isa`. Before the first product, once per process; later calls have no effect.
void LimitLinearIsa(Isa isa);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_LINEAR_H_
