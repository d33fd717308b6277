#include "kernels/cpu/linear.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace edgewise {
namespace {

using dnnl::memory;

const dnnl::engine& Engine() {
  static const dnnl::engine* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

constexpr int64_t kPanelColumns = 64;
// Multiply-adds that one thread finishes before a second would be awake.
constexpr int64_t kSerialWork = 60000;

// oneDNN runs each product on the thread that asks for it.
dnnl::stream MakeStream() {
  omp_set_num_threads(1);
  return dnnl::stream(Engine());
}

dnnl::matmul::primitive_desc Describe(int64_t out, int64_t in, bool bias, Epilogue epilogue, bool accumulate) {
  const memory::desc x({kLinearRows, in}, memory::data_type::f32, memory::format_tag::ab);
  const memory::desc w({in, out}, memory::data_type::f32, memory::format_tag::any);
  const memory::desc y({kLinearRows, out}, memory::data_type::f32, memory::format_tag::ab);
  const memory::desc b({1, out}, memory::data_type::f32, memory::format_tag::ab);
  dnnl::post_ops post_ops;
  if (accumulate) post_ops.append_sum(1.0f);
  if (epilogue == Epilogue::kRelu) post_ops.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
  if (epilogue == Epilogue::kGelu) post_ops.append_eltwise(1.0f, dnnl::algorithm::eltwise_gelu_erf, 0.0f, 0.0f);
  if (epilogue == Epilogue::kSigmoid) post_ops.append_eltwise(1.0f, dnnl::algorithm::eltwise_logistic, 0.0f, 0.0f);
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(post_ops);
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::matmul::desc desc = bias ? dnnl::matmul::desc(x, w, b, y) : dnnl::matmul::desc(x, w, y);
  return {desc, attributes, Engine()};
}

// Panels of 64 columns (BA16a64b, for AVX-512), or [in, out] row-major.
LinearBlock::Panels PanelsOf(const memory& weight) {
  const dnnl_memory_desc_t& desc = weight.get_desc().data;
  if (desc.format_kind != dnnl_blocked || desc.offset0 != 0) return {};
  const dnnl_blocking_desc_t& blocking = desc.format_desc.blocking;
  const auto* data = static_cast<const float*>(weight.get_data_handle());
  if (blocking.inner_nblks == 0 && (blocking.strides[1] == 1 || desc.dims[1] == 1)) {
    return {data, kPanelColumns, kPanelColumns, blocking.strides[0], false};
  }
  const bool panels = blocking.inner_nblks == 2 && blocking.inner_idxs[0] == 0 && blocking.inner_idxs[1] == 1 &&
                      blocking.inner_blks[1] == kPanelColumns &&
                      blocking.strides[0] == blocking.inner_blks[0] * kPanelColumns;
  if (!panels) return {};
  return {data, kPanelColumns, blocking.strides[1], kPanelColumns, true};
}

}  // namespace

struct LinearBlock::Primitives {
  // One product, with its weights in the layout that oneDNN prefers.
  struct Product {
    Product(int64_t out, int64_t in, bool has_bias, Epilogue epilogue, bool accumulate)
        : desc(Describe(out, in, has_bias, epilogue, accumulate)), primitive(desc) {}
    dnnl::matmul::primitive_desc desc;
    dnnl::matmul primitive;
  };
  Primitives(int64_t out, int64_t in, bool has_bias, Epilogue epilogue)
      : assign(out, in, has_bias, epilogue, false), add(out, in, has_bias, Epilogue::kNone, true) {}

  Product assign, add;
  memory weight_assign, weight_add, bias;
};

LinearBlock::LinearBlock(int64_t out, int64_t in, Epilogue epilogue) : out_(out), in_(in), epilogue_(epilogue) {}
LinearBlock::~LinearBlock() = default;

const float* LinearBlock::bias() const {
  return primitives_->bias ? static_cast<const float*>(primitives_->bias.get_data_handle()) : nullptr;
}

absl::StatusOr<std::unique_ptr<LinearBlock>> LinearBlock::Create(std::span<const float> weight,
                                                                 std::span<const float> bias, int64_t out, int64_t in,
                                                                 Epilogue epilogue) {
  try {
    std::unique_ptr<LinearBlock> block(new LinearBlock(out, in, epilogue));
    block->primitives_ = std::make_unique<Primitives>(out, in, !bias.empty(), epilogue);
    Primitives& p = *block->primitives_;
    // [out, in] row-major is [in, out] with columns contiguous.
    const memory::desc given({in, out}, memory::data_type::f32, memory::format_tag::ba);
    memory source(given, Engine(), const_cast<float*>(weight.data()));
    dnnl::stream stream = MakeStream();
    auto place = [&](const memory::desc& wanted) {
      memory placed(wanted, Engine());
      dnnl::reorder(source, placed).execute(stream, source, placed);
      stream.wait();
      return placed;
    };
    p.weight_assign = place(p.assign.desc.weights_desc());
    p.weight_add =
        p.add.desc.weights_desc() == p.assign.desc.weights_desc() ? p.weight_assign : place(p.add.desc.weights_desc());
    if (!bias.empty()) {
      p.bias = memory({{1, out}, memory::data_type::f32, memory::format_tag::ab}, Engine());
      std::memcpy(p.bias.get_data_handle(), bias.data(), bias.size_bytes());
    }
    block->panels_ = PanelsOf(p.weight_assign);
    return block;
  } catch (const dnnl::error& error) {
    return absl::InternalError(absl::StrCat("oneDNN: product of ", in, " by ", out, ": ", error.what()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat("out of memory for weights of ", in, " by ", out));
  }
}

void LinearBlock::Run(const float* x, float* y, bool accumulate, LinearScratch& scratch) const {
  const Primitives& p = *primitives_;
  const Primitives::Product& product = accumulate ? p.add : p.assign;
  omp_set_num_threads(1);  // of this thread, which may not be the one that made the stream
  if (scratch.stream == nullptr) scratch.stream = std::make_shared<dnnl::stream>(Engine());
  dnnl::stream& stream = *scratch.stream;
  const memory::desc scratchpad_desc = product.desc.scratchpad_desc();
  float* scratchpad =
      LinearScratch::Grow(scratch.onednn, static_cast<int64_t>(scratchpad_desc.get_size() / sizeof(float)) + 1);
  std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC, memory(product.desc.src_desc(), Engine(), const_cast<float*>(x))},
      {DNNL_ARG_WEIGHTS, accumulate ? p.weight_add : p.weight_assign},
      {DNNL_ARG_DST, memory(product.desc.dst_desc(), Engine(), y)},
      {DNNL_ARG_SCRATCHPAD, memory(scratchpad_desc, Engine(), scratchpad)}};
  if (p.bias) arguments.insert({DNNL_ARG_BIAS, p.bias});
  product.primitive.execute(stream, arguments);
  stream.wait();
}

namespace {

// At most 64 rows, padded to 64 in scratch where they are fewer or not contiguous.
void RunRows(const LinearBlock& block, ConstMatrix x, Matrix y, bool accumulate, LinearScratch& scratch) {
  const bool whole = x.rows == kLinearRows;
  const float* source = x.data;
  if (!whole || x.stride != block.in()) {
    scratch.x.assign(kLinearRows * block.in(), 0.0f);
    for (int64_t r = 0; r < x.rows; ++r) std::copy_n(x.row(r), block.in(), scratch.x.data() + r * block.in());
    source = scratch.x.data();
  }
  if (whole && y.stride == block.out()) return block.Run(source, y.data, accumulate, scratch);
  scratch.y.assign(kLinearRows * block.out(), 0.0f);
  for (int64_t r = 0; accumulate && r < x.rows; ++r) {
    std::copy_n(y.row(r), block.out(), scratch.y.data() + r * block.out());
  }
  block.Run(source, scratch.y.data(), accumulate, scratch);
  for (int64_t r = 0; r < x.rows; ++r) std::copy_n(scratch.y.data() + r * block.out(), block.out(), y.row(r));
}

// body(first row, rows, worker) for blocks of 64.
template <typename Body>
void ForRowBlocks(ThreadPool& pool, int64_t rows, const Body& body) {
  pool.For((rows + kLinearRows - 1) / kLinearRows, [&](int64_t item, int worker) {
    const int64_t first = item * kLinearRows;
    body(first, std::min(kLinearRows, rows - first), worker);
  });
}

}  // namespace

void CpuLinear(ThreadPool& pool, std::span<LinearScratch> scratch, const LinearBlock& block, ConstMatrix x, Matrix y,
               bool accumulate) {
  ForRowBlocks(pool, x.rows, [&](int64_t first, int64_t rows, int worker) {
    RunRows(block, x.Rows(first, rows), y.Rows(first, rows), accumulate, scratch[worker]);
  });
}

void CpuFeedForward(ThreadPool& pool, std::span<LinearScratch> scratch, const LinearBlock& up, const LinearBlock& down,
                    ConstMatrix x, Matrix y) {
  ForRowBlocks(pool, x.rows, [&](int64_t first, int64_t rows, int worker) {
    const Matrix wide(LinearScratch::Grow(scratch[worker].wide, kLinearRows * up.out()), rows, up.out());
    RunRows(up, x.Rows(first, rows), wide, false, scratch[worker]);
    RunRows(down, wide, y.Rows(first, rows), true, scratch[worker]);
  });
}

void CpuGemv(const CpuKernels& kernels, ThreadPool& pool, std::span<LinearScratch> scratch, const LinearBlock& block,
             ConstMatrix x, Matrix y, bool accumulate) {
  const LinearBlock::Panels& panels = block.panels();
  if (panels.data == nullptr || block.epilogue() == Epilogue::kSigmoid) {
    return CpuLinear(pool, scratch, block, x, y, accumulate);
  }
  // A column's bits do not depend on how the columns are divided, as long as parts begin at multiples of 16.
  int64_t columns = kPanelColumns;
  while (columns > 32 && block.out() < 2 * pool.num_threads() * columns) columns /= 2;
  const auto run = [&](int64_t item, int) {
    const int64_t first = item * columns;
    Gemv few;
    few.rows = x.rows;
    few.in = block.in();
    few.columns = static_cast<int>(std::min(columns, block.out() - first));
    few.x = x.data;
    few.x_stride = x.stride;
    few.weight = panels.data + first / kPanelColumns * panels.panel_stride + first % kPanelColumns;
    few.weight_stride = panels.row_stride;
    few.readable = panels.padded ? static_cast<int>(columns) : few.columns;
    few.bias = block.bias() == nullptr ? nullptr : block.bias() + first;
    few.y = y.data + first;
    few.y_stride = y.stride;
    few.accumulate = accumulate;
    if (!accumulate && block.epilogue() == Epilogue::kRelu) few.activation = Activation::kRelu;
    if (!accumulate && block.epilogue() == Epilogue::kGelu) few.activation = Activation::kGelu;
    kernels.gemv(few);
  };
  const int64_t items = (block.out() + columns - 1) / columns;
  if (x.rows * block.in() * block.out() > kSerialWork) return pool.For(items, run);
  for (int64_t item = 0; item < items; ++item) run(item, 0);
}

void LimitLinearIsa(Isa isa) {
#if defined(__x86_64__)
  const dnnl::cpu_isa limit = isa == Isa::kAvx512 ? dnnl::cpu_isa::avx512_core
                              : isa == Isa::kAvx2 ? dnnl::cpu_isa::avx2
                                                  : dnnl::cpu_isa::sse41;
  dnnl::set_max_cpu_isa(limit);  // oneDNN refuses after its first use: the first limit stays
#else
  (void)isa;
#endif
}

}  // namespace edgewise
