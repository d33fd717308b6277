// Matrix products on the CPU (simd/kernels.h), shared by the threads of a pool. A row's bytes depend on the row and the
// weights alone: not on the other rows, nor on the threads.
#ifndef EDGEWISE_KERNELS_CPU_OPS_LINEAR_H_
#define EDGEWISE_KERNELS_CPU_OPS_LINEAR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/runtime/thread_pool.h"
#include "kernels/cpu/simd/kernels.h"

namespace edgewise {

// How weights are stored, and so multiplied (docs/weights.md).
enum class WeightFormat {
  kFloat32,
  kBfloat16,  // rounded to 8 bits of mantissa (half to even); products are those of float32, or of rounded inputs
  kInt8,      // -127 to 127 times a scale per output; products are of integers (Int8Gemm)
};

// "float32", "bfloat16", "int8". INVALID_ARGUMENT: any other name.
absl::StatusOr<WeightFormat> ParseWeightFormat(const std::string& name);

// Rows of x as Int8Gemm takes them, or Gemm in pairs.
struct PackedRows {
  struct alignas(64) Line {
    uint32_t words[16];
  };
  std::vector<Line> x;       // rows a number of lines apart
  std::vector<float> scale;  // int8, as the next
  std::vector<int32_t> zero;
};

// The scratch of products beside their operands, for one call at a time.
struct LinearScratch {
  explicit LinearScratch(int threads) : workers(static_cast<size_t>(threads)) {}
  std::vector<float> wide;          // rows between the two products of a feed-forward
  PackedRows rows;                  // that all threads read
  std::vector<PackedRows> workers;  // of each thread
};

// y = activation(x W^T + b) with W packed for one table of kernels. Immutable: any number of threads may use it.
class CpuLinear : public LinearWeights {
 public:
  // weight [out, in] row-major, bias [out] or empty. With int8, an output with a weight that is not finite gives NaN.
  // RESOURCE_EXHAUSTED: no memory for the packed copy. UNIMPLEMENTED: more inputs than sums of int8 take.
  static absl::StatusOr<std::unique_ptr<CpuLinear>> Create(const CpuKernels& kernels, WeightFormat format,
                                                           std::span<const float> weight, std::span<const float> bias,
                                                           int64_t out, int64_t in, Activation activation);

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  const CpuKernels& kernels() const { return *kernels_; }
  int64_t ItemRows() const;  // most rows that a thread takes at a time

  // On the calling thread. x [rows, in], y [rows, out]. With `accumulate`, y += x W^T + b and no activation.
  void Run(ConstMatrix x, Matrix y, bool accumulate, PackedRows& scratch) const;
  // Shared by the pool's threads. Backend::Linear on the host.
  void Run(ThreadPool& pool, ConstMatrix x, Matrix y, bool accumulate, LinearScratch& scratch) const;

 private:
  struct Panel {
    int64_t column;  // its first
    int64_t offset;  // in data_, bytes
  };

  CpuLinear() = default;
  // Writes `data_` and `panels_`: pack(column, group, to) writes one group of inputs of one column.
  template <typename Number, typename Pack>
  absl::Status PackPanels(const Pack& pack);
  absl::Status PackInt8(std::span<const float> weight);
  // Whether products read packed rows in place of x.
  bool packs() const { return group_ > 1; }
  // Room for `count` rows, at least: to shrink and grow between two products would write zeros each time.
  void Resize(int64_t count, PackedRows& rows) const;
  // Rows first..first + count - 1 of x into the same of `rows`, which has room for them.
  void PackRows(ConstMatrix x, int64_t first, int64_t count, PackedRows& rows) const;
  // Columns of the panels first_panel..last_panel-1. Where packs(), rows first_row.. of `rows` are read in place of x.
  void RunPanels(ConstMatrix x, const PackedRows& rows, int64_t first_row, Matrix y, bool accumulate,
                 size_t first_panel, size_t last_panel) const;

  WeightFormat format_ = WeightFormat::kFloat32;
  int64_t in_ = 0, out_ = 0;
  int group_ = 1;        // inputs that are taken together
  int64_t groups_ = 0;   // of inputs, up to whole steps
  int64_t x_lines_ = 0;  // cache lines of a packed row
  Activation activation_ = Activation::kNone;
  const CpuKernels* kernels_ = nullptr;
  std::vector<Panel> panels_;  // and one past the last
  Buffer data_;
  std::vector<float> bias_;
  std::vector<float> scale_;   // int8: of each output, up to whole vectors
  std::vector<int32_t> sums_;  // int8: of the weights of each output, likewise
};

// Backend::FeedForward on the host or, with a gate's activation, GatedFeedForward. The wide rows between the two
// products stay in `scratch`, whose size is bounded whatever the number of rows is; it may be used by one call at a
// time.
void CpuFeedForward(ThreadPool& pool, const CpuLinear& up, const CpuLinear& down, std::optional<Activation> gate,
                    ConstMatrix x, Matrix y, LinearScratch& scratch);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_OPS_LINEAR_H_
