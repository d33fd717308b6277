#include "kernels/cpu/linear.h"

#include <algorithm>
#include <utility>

#include "kernels/cpu/memory.h"

namespace edgewise {
namespace {

// Rows of one item. Their wide rows in a feed-forward stay in the second-level cache or near it.
constexpr int64_t kItemRows = 96;
// Multiply-adds of an item that is worth a second thread: some 20 microseconds.
constexpr int64_t kItemWork = int64_t{1} << 21;
// Fewer rows take as long where the weights come from memory.
constexpr int64_t kReadRows = 8;

// Blocks of at most kItemRows rows, as many for each thread.
int64_t RowBlocks(int64_t rows, int64_t threads) {
  const int64_t blocks = (rows + kItemRows - 1) / kItemRows;
  return (blocks + threads - 1) / threads * threads;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuLinear>> CpuLinear::Create(const CpuKernels& kernels, std::span<const float> weight,
                                                             std::span<const float> bias, int64_t out, int64_t in,
                                                             Activation activation) {
  std::unique_ptr<CpuLinear> linear(new CpuLinear);
  linear->in_ = in;
  linear->out_ = out;
  linear->activation_ = activation;
  linear->kernels_ = &kernels;
  linear->bias_.assign(bias.begin(), bias.end());
  const int lanes = kernels.lanes;
  const int64_t vectors = (out + lanes - 1) / lanes;
  auto memory = AllocateOnHost(vectors * lanes * in);
  if (!memory.ok()) return memory.status();
  linear->data_ = *std::move(memory);
  float* to = linear->data_.data();
  for (int64_t vector = 0; vector < vectors;) {
    const int wide = GemmPanelVectors(vectors - vector) * lanes;
    const int64_t column = vector * lanes;
    linear->panels_.push_back({column, to - linear->data_.data()});
    for (int64_t i = 0; i < in; ++i) {
      for (int c = 0; c < wide; ++c) *to++ = column + c < out ? weight[(column + c) * in + i] : 0.0f;
    }
    vector += wide / lanes;
  }
  linear->panels_.push_back({out, to - linear->data_.data()});
  return linear;
}

void CpuLinear::RunPanels(ConstMatrix x, Matrix y, bool accumulate, size_t first_panel, size_t last_panel) const {
  const int64_t column = panels_[first_panel].column;
  Gemm gemm;
  gemm.rows = x.rows;
  gemm.in = in_;
  gemm.columns = panels_[last_panel].column - column;
  gemm.x = x.data;
  gemm.x_stride = x.stride;
  gemm.panels = data_.data() + panels_[first_panel].offset;
  gemm.bias = bias_.empty() ? nullptr : bias_.data() + column;
  gemm.y = y.data + column;
  gemm.y_stride = y.stride;
  gemm.accumulate = accumulate;
  gemm.activation = accumulate ? Activation::kNone : activation_;
  kernels_->gemm(gemm);
}

void CpuLinear::Run(ConstMatrix x, Matrix y, bool accumulate) const {
  RunPanels(x, y, accumulate, 0, panels_.size() - 1);
}

void CpuLinear::Run(ThreadPool& pool, ConstMatrix x, Matrix y, bool accumulate) const {
  const int64_t panels = static_cast<int64_t>(panels_.size()) - 1;
  const int64_t work = std::max(x.rows, kReadRows) * in_ * out_;
  if (pool.num_threads() == 1 || work < 2 * kItemWork) return Run(x, y, accumulate);
  // Columns are shared first, since a thread then reads only its part of the weights; rows where there are many.
  const int64_t threads = pool.num_threads();
  const int64_t blocks = x.rows <= kItemRows ? 1 : RowBlocks(x.rows, threads);
  const int64_t wanted = std::min(work / kItemWork, 4 * threads);
  const int64_t parts = std::clamp<int64_t>((wanted + blocks - 1) / blocks, 1, panels);
  pool.For(blocks * parts, [&](int64_t item, int) {
    const int64_t row = x.rows * (item / parts) / blocks, end = x.rows * (item / parts + 1) / blocks;
    const int64_t part = item % parts;
    RunPanels(x.Rows(row, end - row), y.Rows(row, end - row), accumulate, panels * part / parts,
              panels * (part + 1) / parts);
  });
}

void CpuFeedForward(ThreadPool& pool, const CpuLinear& up, const CpuLinear& down, std::optional<Activation> gate,
                    ConstMatrix x, Matrix y, std::vector<float>& scratch) {
  const auto gate_row = [&](float* row) {
    if (gate.has_value()) up.kernels().gate(*gate, down.in(), row);
  };
  const int64_t threads = pool.num_threads();
  scratch.resize(static_cast<size_t>(std::min(x.rows, 2 * threads * kItemRows) * up.out()));
  if (threads == 1 || x.rows < 2 * threads * kItemRows) {
    for (int64_t row = 0; row < x.rows; row += kItemRows * threads) {
      const int64_t rows = std::min(kItemRows * threads, x.rows - row);
      const Matrix wide(scratch.data(), rows, up.out());
      up.Run(pool, x.Rows(row, rows), wide, false);
      if (gate.has_value()) {
        pool.For(rows, rows * down.in(), [&](int64_t r, int) { gate_row(wide.row(r)); });
      }
      down.Run(pool, wide.Columns(0, down.in()), y.Rows(row, rows), true);
    }
    return;
  }
  // Each thread takes blocks of rows through both products.
  const int64_t blocks = RowBlocks(x.rows, threads);
  pool.For(blocks, [&](int64_t item, int worker) {
    const int64_t row = x.rows * item / blocks, rows = x.rows * (item + 1) / blocks - row;
    const Matrix wide(scratch.data() + worker * kItemRows * up.out(), rows, up.out());
    up.Run(x.Rows(row, rows), wide, false);
    for (int64_t r = 0; r < rows; ++r) gate_row(wide.row(r));
    down.Run(wide.Columns(0, down.in()), y.Rows(row, rows), true);
  });
}

}  // namespace edgewise
