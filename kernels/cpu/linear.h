// Matrix products by oneDNN, always in blocks of exactly 64 rows, so that a row's result does not depend on the number
// of rows. Products of few rows read the same copy of the weights with CpuKernels::gemv.
#ifndef EDGEWISE_KERNELS_CPU_LINEAR_H_
#define EDGEWISE_KERNELS_CPU_LINEAR_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/simd/isa.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/thread_pool.h"

namespace dnnl {
struct stream;
}

namespace edgewise {

inline constexpr int64_t kLinearRows = 64;

// The function of each element that follows the product.
enum class Epilogue { kNone, kRelu, kGelu, kSigmoid };

// Memory of one thread's products, which grows and is kept between them. The backend owns one per thread of its pool.
struct LinearScratch {
  std::shared_ptr<dnnl::stream> stream;
  std::vector<float> onednn;       // its scratchpad
  std::vector<float> x, y;         // [64, in], [64, out]: rows padded to a block
  std::vector<float> wide;         // [64, columns] between two products
  std::vector<float> memberships;  // [64, clusters]

  // Pointer to `vector`, grown to at least `floats`.
  static float* Grow(std::vector<float>& vector, int64_t floats) {
    if (vector.size() < static_cast<size_t>(floats)) vector.resize(static_cast<size_t>(floats));
    return vector.data();
  }
};

// y = epilogue(x W^T + b) on 64 rows. Immutable; Run may be called from many threads at once.
class LinearBlock {
 public:
  // weight [out, in], bias [out] or empty.
  static absl::StatusOr<std::unique_ptr<LinearBlock>> Create(std::span<const float> weight, std::span<const float> bias,
                                                             int64_t out, int64_t in, Epilogue epilogue);
  ~LinearBlock();

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  // x [64, in], y [64, out], both contiguous. With `accumulate`, y += x W^T + b, without the epilogue. Uses the stream
  // and scratchpad of `scratch`.
  void Run(const float* x, float* y, bool accumulate, LinearScratch& scratch) const;

  // The weights in oneDNN's memory: panels of columns, panel p [in, panel_columns] at data + p * panel_stride, rows
  // row_stride apart. Null where oneDNN chose another layout.
  struct Panels {
    const float* data = nullptr;
    int64_t panel_columns = 0, panel_stride = 0, row_stride = 0;
    bool padded = false;  // the last panel is as wide as the others
  };
  const Panels& panels() const { return panels_; }
  const float* bias() const;  // [out] or null
  Epilogue epilogue() const { return epilogue_; }

 private:
  struct Primitives;
  LinearBlock(int64_t out, int64_t in, Epilogue epilogue);

  int64_t out_, in_;
  Epilogue epilogue_;
  Panels panels_;
  std::unique_ptr<Primitives> primitives_;
};

class CpuLinearWeights : public LinearWeights {
 public:
  explicit CpuLinearWeights(std::unique_ptr<LinearBlock> block) : block(std::move(block)) {}
  const std::unique_ptr<LinearBlock> block;
};

// Backend::Linear on the host. `scratch`: one per thread of the pool, here and below.
void CpuLinear(ThreadPool& pool, std::span<LinearScratch> scratch, const LinearBlock& block, ConstMatrix x, Matrix y,
               bool accumulate);

// Backend::FeedForward on the host: the 64 wide rows between the products stay in a core's cache.
void CpuFeedForward(ThreadPool& pool, std::span<LinearScratch> scratch, const LinearBlock& up, const LinearBlock& down,
                    ConstMatrix x, Matrix y);

// CpuLinear for few rows: any number of threads shares the columns. A row's bytes depend on the row alone, but may
// differ from those of CpuLinear.
void CpuGemv(const CpuKernels& kernels, ThreadPool& pool, std::span<LinearScratch> scratch, const LinearBlock& block,
             ConstMatrix x, Matrix y, bool accumulate);

// Limits oneDNN to `isa`. Call it before the first product of the process; later calls have no effect.
void LimitLinearIsa(Isa isa);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_LINEAR_H_
