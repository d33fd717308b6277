#include "kernels/cpu/ops/linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/runtime/memory.h"

namespace edgewise {
namespace {

// Rows of one item. Their wide rows in a feed-forward stay in the second-level cache or near it. Products on tiles wait
// for the weights, and so take more rows.
constexpr int64_t kItemRows = 96, kTiledItemRows = 128;
// Multiply-adds of an item that is worth a second thread: some 20 microseconds.
constexpr int64_t kItemWork = int64_t{1} << 21;
// Fewer rows take as long where the weights come from memory.
constexpr int64_t kReadRows = 8;
constexpr int64_t kLineWords = 16;  // of 32 bits, in a cache line

// Blocks of at most `most` rows, as many for each thread.
int64_t RowBlocks(int64_t rows, int64_t most, int64_t threads) {
  const int64_t blocks = (rows + most - 1) / most;
  return (blocks + threads - 1) / threads * threads;
}

// The upper half of a float, rounded half to even. NaN stays NaN.
uint16_t UpperHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace

absl::StatusOr<WeightFormat> ParseWeightFormat(const std::string& name) {
  if (name == "float32") return WeightFormat::kFloat32;
  if (name == "bfloat16") return WeightFormat::kBfloat16;
  if (name == "int8") return WeightFormat::kInt8;
  return absl::InvalidArgumentError(absl::StrCat("weights is \"", name, "\"; allowed: float32, bfloat16, int8"));
}

absl::StatusOr<std::unique_ptr<CpuLinear>> CpuLinear::Create(const CpuKernels& kernels, WeightFormat format,
                                                             std::span<const float> weight, std::span<const float> bias,
                                                             int64_t out, int64_t in, Activation activation) {
  std::unique_ptr<CpuLinear> linear(new CpuLinear);
  linear->format_ = format;
  linear->in_ = in;
  linear->out_ = out;
  linear->activation_ = activation;
  linear->kernels_ = &kernels;
  if (format == WeightFormat::kInt8) linear->group_ = kernels.int8_group;
  if (format == WeightFormat::kBfloat16) linear->group_ = kernels.bfloat16_group;
  const int64_t step = linear->packs() ? kernels.group_step : 1;
  linear->groups_ = ((in + linear->group_ - 1) / linear->group_ + step - 1) / step * step;
  linear->x_lines_ = (linear->groups_ + kLineWords - 1) / kLineWords | 1;
  linear->bias_.assign(bias.begin(), bias.end());
  const auto at = [&](int64_t column, int64_t input) {
    return column < out && input < in ? weight[column * in + input] : 0.0f;
  };
  absl::Status status;
  switch (format) {
    case WeightFormat::kFloat32:
      status = linear->PackPanels<float>([&](int64_t column, int64_t i, float* to) { *to = at(column, i); });
      break;
    case WeightFormat::kBfloat16:
      status = linear->PackPanels<uint16_t>([&](int64_t column, int64_t g, uint16_t* to) {
        for (int i = 0; i < linear->group_; ++i) to[i] = UpperHalf(at(column, g * linear->group_ + i));
      });
      break;
    case WeightFormat::kInt8:
      status = linear->PackInt8(weight);
      break;
  }
  if (!status.ok()) return status;
  return linear;
}

template <typename Number, typename Pack>
absl::Status CpuLinear::PackPanels(const Pack& pack) {
  const int lanes = kernels_->lanes;
  const int64_t vectors = (out_ + lanes - 1) / lanes;
  const auto bytes = static_cast<int64_t>(sizeof(Number)) * vectors * lanes * groups_ * group_;
  auto memory = AllocateOnHost((bytes + 3) / 4);
  if (!memory.ok()) return memory.status();
  data_ = *std::move(memory);
  auto* const begin = reinterpret_cast<Number*>(data_.data());
  Number* to = begin;
  const auto offset = [&] { return (to - begin) * static_cast<int64_t>(sizeof(Number)); };
  for (int64_t vector = 0; vector < vectors;) {
    const int wide = GemmPanelVectors(vectors - vector);
    panels_.push_back({vector * lanes, offset()});
    for (int64_t g = 0; g < groups_; ++g) {
      for (int c = 0; c < wide * lanes; ++c, to += group_) pack(vector * lanes + c, g, to);
    }
    vector += wide;
  }
  panels_.push_back({out_, offset()});
  return absl::OkStatus();
}

absl::Status CpuLinear::PackInt8(std::span<const float> weight) {
  if (in_ > kMaxInt8Inputs) {
    return absl::UnimplementedError(absl::StrCat("a matrix has ", in_, " inputs; --weights=int8 takes at most ",
                                                 kMaxInt8Inputs, ": use float32 or bfloat16"));
  }
  const int64_t vectors = (out_ + kernels_->lanes - 1) / kernels_->lanes;
  scale_.assign(static_cast<size_t>(vectors * kernels_->lanes), 0.0f);
  sums_.assign(scale_.size(), 0);
  std::vector<bool> usable(scale_.size(), false);
  for (int64_t column = 0; column < out_; ++column) {
    float most = 0.0f;
    bool finite = true;
    for (const float value : weight.subspan(static_cast<size_t>(column * in_), static_cast<size_t>(in_))) {
      finite = finite && std::isfinite(value);
      most = std::max(most, std::abs(value));
    }
    scale_[column] = finite ? most / 127.0f : std::numeric_limits<float>::quiet_NaN();
    usable[column] = finite && scale_[column] > 0.0f;
  }
  return PackPanels<int8_t>([&](int64_t column, int64_t g, int8_t* to) {
    for (int i = 0; i < group_; ++i) {
      const int64_t input = g * group_ + i;
      to[i] = 0;
      if (!usable[column] || input >= in_) continue;
      // In float64 a small scale, of few bits, does no harm.
      const double level = std::nearbyint(static_cast<double>(weight[column * in_ + input]) / scale_[column]);
      to[i] = static_cast<int8_t>(std::clamp(level, -127.0, 127.0));
      sums_[column] += to[i];
    }
  });
}

int64_t CpuLinear::ItemRows() const { return packs() && kernels_->group_step > 1 ? kTiledItemRows : kItemRows; }

void CpuLinear::Resize(int64_t count, PackedRows& rows) const {
  rows.x.resize(std::max(rows.x.size(), static_cast<size_t>(count * x_lines_)));
  rows.scale.resize(std::max(rows.scale.size(), static_cast<size_t>(count)));
  rows.zero.resize(std::max(rows.zero.size(), static_cast<size_t>(count)));
}

void CpuLinear::PackRows(ConstMatrix x, int64_t first, int64_t count, PackedRows& rows) const {
  for (int64_t r = first; r < first + count; ++r) {
    uint32_t* const to = (rows.x.data() + r * x_lines_)->words;
    if (format_ == WeightFormat::kInt8) {
      kernels_->quantize_row(x.row(r), in_, to, &rows.scale[r], &rows.zero[r]);
    } else {
      kernels_->round_row(x.row(r), in_, to);
    }
  }
}

void CpuLinear::RunPanels(ConstMatrix x, const PackedRows& rows, int64_t first_row, Matrix y, bool accumulate,
                          size_t first_panel, size_t last_panel) const {
  const int64_t column = panels_[first_panel].column, columns = panels_[last_panel].column - column;
  const char* const panels = reinterpret_cast<const char*>(data_.data()) + panels_[first_panel].offset;
  const float* const bias = bias_.empty() ? nullptr : bias_.data() + column;
  const Activation activation = accumulate ? Activation::kNone : activation_;
  const uint32_t* const packed = packs() ? (rows.x.data() + first_row * x_lines_)->words : nullptr;
  const int64_t packed_stride = x_lines_ * kLineWords;
  if (format_ == WeightFormat::kInt8) {
    Int8Gemm gemm;
    gemm.rows = y.rows;
    gemm.groups = groups_;
    gemm.columns = columns;
    gemm.x = packed;
    gemm.x_stride = packed_stride;
    gemm.row_scale = rows.scale.data() + first_row;
    gemm.zero = rows.zero.data() + first_row;
    gemm.panels = reinterpret_cast<const int8_t*>(panels);
    gemm.sums = sums_.data() + column;
    gemm.scale = scale_.data() + column;
    gemm.bias = bias;
    gemm.y = y.data + column;
    gemm.y_stride = y.stride;
    gemm.accumulate = accumulate;
    gemm.activation = activation;
    return kernels_->gemm_int8(gemm);
  }
  Gemm gemm;
  gemm.rows = y.rows;
  gemm.in = in_;
  gemm.columns = columns;
  gemm.x = x.data;
  gemm.x_stride = packs() ? packed_stride : x.stride;
  gemm.pairs = packed;
  gemm.panels = panels;
  gemm.bias = bias;
  gemm.y = y.data + column;
  gemm.y_stride = y.stride;
  gemm.accumulate = accumulate;
  gemm.activation = activation;
  (format_ == WeightFormat::kBfloat16 ? kernels_->gemm_bfloat16 : kernels_->gemm)(gemm);
}

void CpuLinear::Run(ConstMatrix x, Matrix y, bool accumulate, PackedRows& scratch) const {
  const size_t panels = panels_.size() - 1;
  if (!packs()) return RunPanels(x, scratch, 0, y, accumulate, 0, panels);
  const int64_t most = ItemRows();
  for (int64_t row = 0; row < x.rows; row += most) {
    const int64_t rows = std::min(most, x.rows - row);
    Resize(rows, scratch);
    PackRows(x.Rows(row, rows), 0, rows, scratch);
    RunPanels(x, scratch, 0, y.Rows(row, rows), accumulate, 0, panels);
  }
}

void CpuLinear::Run(ThreadPool& pool, ConstMatrix x, Matrix y, bool accumulate, LinearScratch& scratch) const {
  const int64_t panels = static_cast<int64_t>(panels_.size()) - 1;
  const int64_t work = std::max(x.rows, kReadRows) * in_ * out_;
  if (pool.num_threads() == 1 || work < 2 * kItemWork) return Run(x, y, accumulate, scratch.rows);
  // Columns are shared first, since a thread then reads only its part of the weights; rows where there are many.
  const int64_t threads = pool.num_threads();
  const int64_t blocks = x.rows <= ItemRows() ? 1 : RowBlocks(x.rows, ItemRows(), threads);
  const int64_t wanted = std::min(work / kItemWork, 4 * threads);
  const int64_t parts = std::clamp<int64_t>((wanted + blocks - 1) / blocks, 1, panels);
  if (parts > 1 && packs()) {  // at most 4 blocks of rows for each thread
    Resize(x.rows, scratch.rows);
    const int64_t items = x.rows < threads * kReadRows ? 1 : threads;
    pool.For(items, x.rows * in_ / 4, [&](int64_t item, int) {
      const int64_t row = x.rows * item / items, end = x.rows * (item + 1) / items;
      PackRows(x, row, end - row, scratch.rows);
    });
  }
  pool.For(blocks * parts, [&](int64_t item, int worker) {
    const int64_t row = x.rows * (item / parts) / blocks, end = x.rows * (item / parts + 1) / blocks;
    const int64_t part = item % parts;
    const ConstMatrix from = x.Rows(row, end - row);
    const Matrix to = y.Rows(row, end - row);
    if (parts == 1) return Run(from, to, accumulate, scratch.workers[worker]);
    RunPanels(from, scratch.rows, row, to, accumulate, panels * part / parts, panels * (part + 1) / parts);
  });
}

void CpuFeedForward(ThreadPool& pool, const CpuLinear& up, const CpuLinear& down, std::optional<Activation> gate,
                    ConstMatrix x, Matrix y, LinearScratch& scratch) {
  const auto gate_row = [&](float* row) {
    if (gate.has_value()) up.kernels().gate(*gate, down.in(), row);
  };
  const int64_t threads = pool.num_threads(), most = up.ItemRows();
  scratch.wide.resize(static_cast<size_t>(std::min(x.rows, 2 * threads * most) * up.out()));
  if (threads == 1 || x.rows < 2 * threads * most) {
    for (int64_t row = 0; row < x.rows; row += most * threads) {
      const int64_t rows = std::min(most * threads, x.rows - row);
      const Matrix wide(scratch.wide.data(), rows, up.out());
      up.Run(pool, x.Rows(row, rows), wide, false, scratch);
      if (gate.has_value()) {
        pool.For(rows, rows * down.in(), [&](int64_t r, int) { gate_row(wide.row(r)); });
      }
      down.Run(pool, wide.Columns(0, down.in()), y.Rows(row, rows), true, scratch);
    }
    return;
  }
  // Each thread takes blocks of rows through both products.
  const int64_t blocks = RowBlocks(x.rows, most, threads);
  pool.For(blocks, [&](int64_t item, int worker) {
    const int64_t row = x.rows * item / blocks, rows = x.rows * (item + 1) / blocks - row;
    const Matrix wide(scratch.wide.data() + worker * most * up.out(), rows, up.out());
    up.Run(x.Rows(row, rows), wide, false, scratch.workers[worker]);
    for (int64_t r = 0; r < rows; ++r) gate_row(wide.row(r));
    down.Run(wide.Columns(0, down.in()), y.Rows(row, rows), true, scratch.workers[worker]);
  });
}

}  // namespace edgewise
