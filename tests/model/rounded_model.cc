#include "tests/model/rounded_model.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <span>
#include <utility>

#include "kernels/reference/reference.h"
#include "tests/model/deferred_backend.h"

namespace edgewise::testing {
namespace {

struct Weights : LinearWeights {
  std::vector<float> weight, bias;
  int64_t out = 0;
  Activation activation = Activation::kNone;
};

std::unique_ptr<Backend> Cpu() {
  auto cpu = CreateBackend({.num_threads = 1});
  if (cpu.ok()) return *std::move(cpu);
  std::fprintf(stderr, "%s\n", cpu.status().ToString().c_str());
  std::abort();
}

// The nearest bfloat16, the even one of two: 8 digits. Numbers below 2^-126 are left alone: none matters.
double ToBfloat16(double x) {
  int exponent = 0;
  std::frexp(x, &exponent);
  return exponent < -125 ? x : std::ldexp(std::nearbyint(std::ldexp(x, 8 - exponent)), exponent - 8);
}

// A matrix whose numbers have been rounded, or as they are.
class Operand {
 public:
  Operand(ConstMatrix of, bool round) : matrix_(of) {
    if (!round) return;
    for (int64_t r = 0; r < of.rows; ++r) {
      std::transform(of.row(r), of.row(r) + of.columns, std::back_inserter(rounded_), ToBfloat16);
    }
    matrix_ = ConstMatrix(rounded_.data(), of.rows, of.columns, of.columns);
  }
  Operand(const Operand&) = delete;
  const ConstMatrix& matrix() const { return matrix_; }

 private:
  std::vector<float> rounded_;
  ConstMatrix matrix_;
};

// The operations of kernels/reference/reference.h on a CPU.
class ReferenceBackend final : public DeferredBackend {
 public:
  explicit ReferenceBackend(bool bf16) : DeferredBackend(Cpu()), bf16_(bf16) {}

  absl::StatusOr<std::unique_ptr<LinearWeights>> PrepareLinear(std::span<const float> weight,
                                                               std::span<const float> bias, int64_t out, int64_t /*in*/,
                                                               Activation activation) override {
    auto weights = std::make_unique<Weights>();
    weights->weight.assign(weight.begin(), weight.end());
    if (bf16_) std::transform(weight.begin(), weight.end(), weights->weight.begin(), ToBfloat16);
    weights->bias.assign(bias.begin(), bias.end());
    weights->out = out;
    weights->activation = activation;
    return weights;
  }

  absl::Status Linear(const LinearWeights& weights, ConstMatrix x, Matrix y, bool accumulate,
                      Phase /*phase*/) override {
    const auto& w = static_cast<const Weights&>(weights);
    const Operand rows(x, bf16_);
    reference::Linear(rows.matrix(), w.weight, w.bias, accumulate ? Activation::kNone : w.activation, accumulate, y);
    return absl::OkStatus();
  }

  absl::Status FeedForward(const LinearWeights& up, const LinearWeights& down, ConstMatrix x, Matrix y,
                           Phase phase) override {
    const int64_t columns = static_cast<const Weights&>(up).out;
    std::vector<float> wide(static_cast<size_t>(x.rows * columns));
    const Matrix between(wide.data(), x.rows, columns);
    const absl::Status status = Linear(up, x, between, false, phase);
    return status.ok() ? Linear(down, between, y, true, phase) : status;
  }

  absl::Status GatedFeedForward(const LinearWeights& gate_up, const LinearWeights& down, Activation activation,
                                ConstMatrix x, Matrix y, Phase phase) override {
    const int64_t columns = static_cast<const Weights&>(gate_up).out;
    std::vector<float> both(static_cast<size_t>(x.rows * columns)), gated(both.size() / 2);
    const Matrix wide(both.data(), x.rows, columns), between(gated.data(), x.rows, columns / 2);
    const absl::Status status = Linear(gate_up, x, wide, false, phase);
    if (!status.ok()) return status;
    reference::Gate(wide, activation, between);
    return Linear(down, between, y, true, phase);
  }

  absl::Status RmsNorm(ConstMatrix x, const float* weight, float epsilon, int64_t group, Matrix y) override {
    reference::RmsNorm(x, weight, epsilon, group, y);
    return absl::OkStatus();
  }

  absl::Status Rotate(Matrix x, ConstMatrix table, std::span<const int32_t> positions) override {
    reference::Rotate(x, table, positions);
    return absl::OkStatus();
  }

  absl::Status LayerNorm(ConstMatrix x, const float* weight, const float* bias, float epsilon, Matrix y) override {
    reference::LayerNorm(x, weight, bias, epsilon, y);
    return absl::OkStatus();
  }

  absl::Status Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                      std::span<EdgeCap> caps, Matrix out) override {
    const Operand q(inputs.q, bf16_), k(inputs.k, bf16_), v(inputs.v, bf16_);
    AttentionInputs rounded = inputs;
    rounded.q = q.matrix();
    rounded.k = k.matrix();
    rounded.v = v.matrix();
    reference::Attend(rounded, problems, caps, out, bf16_ ? ToBfloat16 : nullptr);
    return absl::OkStatus();
  }

 private:
  const bool bf16_;
};

}  // namespace

std::vector<double> NextProbabilities(const InputResult& result) {
  std::vector<double> mean(result.sample_results[0].logits.size());
  for (const SampleResult& sample : result.sample_results) {
    double total = 0.0;
    for (float logit : sample.logits) total += std::exp(static_cast<double>(logit));
    for (size_t c = 0; c < mean.size(); ++c) {
      mean[c] += std::exp(static_cast<double>(sample.logits[c])) / total / static_cast<double>(result.samples);
    }
  }
  return mean;
}

double Distance(const std::vector<double>& found, const std::vector<double>& expected) {
  double largest = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) largest = std::max(largest, std::abs(found[i] / expected[i] - 1.0));
  return largest;
}

RoundedModel::RoundedModel(const std::string& folder)
    : exact_(LoadModel(folder, std::make_unique<ReferenceBackend>(false))),
      rounded_(LoadModel(folder, std::make_unique<ReferenceBackend>(true))) {}

}  // namespace edgewise::testing
