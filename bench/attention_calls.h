// Calls of attention and of memberships that benchmarks repeat.
#ifndef EDGEWISE_BENCH_ATTENTION_CALLS_H_
#define EDGEWISE_BENCH_ATTENTION_CALLS_H_

#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "bench/membership_network.h"
#include "bench/timing.h"
#include "kernels/backend.h"
#include "selfcheck/synthetic.h"

namespace edgewise::bench {

// One sequence of n tokens through Backend::Attend. The operands and memberships outlive it.
struct AttendCall {
  AttendCall(Backend& backend, const selfcheck::Operands& operands, const Memberships& memberships,
             const AttentionPattern& pattern)
      : backend(&backend), inputs(operands.inputs), out(operands.q.size()) {
    inputs.memberships = memberships;
    problem.tokens = static_cast<int32_t>(inputs.q.rows);
    problem.pattern = pattern;
    problem.report = &report;
  }
  AttendCall(const AttendCall&) = delete;
  void Cap(uint64_t edges) {
    caps.assign(1, EdgeCap{edges});
    problem.cap = 0;
  }
  void Run() {
    Check(backend->Attend(inputs, {&problem, 1}, caps, Matrix(out.data(), inputs.q.rows, inputs.q.columns)));
    Check(backend->Synchronize());
  }
  uint64_t edges() const {
    uint64_t sum = 0;
    for (const HeadReport& head : report.heads) sum += head.edges;
    return sum;
  }

  Backend* backend;
  AttentionInputs inputs;
  AttentionReport report;
  AttentionProblem problem;
  std::vector<EdgeCap> caps;
  selfcheck::Floats out;
};

// Memberships of both sides from q and k, as a trained layer computes them.
class MembershipCall {
 public:
  MembershipCall(Backend& backend, const selfcheck::Operands& operands) : backend_(&backend), operands_(&operands) {
    const MembershipNetwork network(operands.inputs.num_heads, operands.inputs.head_dim);
    auto weights = backend.PrepareMemberships(network.parameters());
    Check(weights.status());
    weights_ = std::move(*weights);
    const size_t rows = static_cast<size_t>(operands.inputs.q.rows) * operands.inputs.num_heads;
    x_.resize(rows * weights_->rank());
    y_.resize(rows * weights_->rank());
    query_bound_.resize(rows);
    key_bound_.resize(rows);
  }
  void Run() {
    Check(backend_->ComputeMemberships(
        *weights_, operands_->inputs.q, operands_->inputs.k,
        {x_.data(), y_.data(), query_bound_.data(), key_bound_.data(), operands_->inputs.q.rows, weights_->rank()}));
    Check(backend_->Synchronize());
  }
  // Multiplies the rates that Run left.
  void Scale(float factor) {
    for (selfcheck::Floats* values : {&x_, &query_bound_}) {
      for (float& value : *values) value *= factor;
    }
  }
  // In this object's memory, valid after Run.
  Memberships memberships() const {
    return {x_.data(), y_.data(), query_bound_.data(), key_bound_.data(), operands_->inputs.q.rows, weights_->rank()};
  }

 private:
  Backend* backend_;
  const selfcheck::Operands* operands_;
  std::unique_ptr<MembershipWeights> weights_;
  selfcheck::Floats x_, y_, query_bound_, key_bound_;
};

// The factor of x that makes the mean of min(1, p) `density`.
inline float ScaleToDensity(const Memberships& given, int heads, double density) {
  std::mt19937_64 random(31);
  std::vector<double> products(20000);
  const auto rows = static_cast<uint64_t>(given.rows);
  for (double& product : products) {
    const auto head = random() % static_cast<uint64_t>(heads);
    const float* x_row = given.x + (head * rows + random() % rows) * given.rank;
    const float* y_row = given.y + (head * rows + random() % rows) * given.rank;
    product = std::inner_product(x_row, x_row + given.rank, y_row, 0.0);
  }
  return static_cast<float>(selfcheck::ScaleToDensity(products, density));
}

// Memberships of another call with x scaled to a density.
struct ScaledMemberships {
  ScaledMemberships(const Memberships& given, int heads, double density) : memberships(given) {
    const float scale = ScaleToDensity(given, heads, density);
    const auto scaled = [&](const float* values, int64_t count) {
      selfcheck::Floats result(values, values + count);
      for (float& value : result) value *= scale;
      return result;
    };
    x = scaled(given.x, heads * given.rows * given.rank);
    query_bound = scaled(given.query_bound, heads * given.rows);
    memberships.x = x.data();
    memberships.query_bound = query_bound.data();
  }
  selfcheck::Floats x, query_bound;
  Memberships memberships;
};

}  // namespace edgewise::bench

#endif  // EDGEWISE_BENCH_ATTENTION_CALLS_H_
