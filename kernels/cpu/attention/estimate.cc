#include "kernels/cpu/attention/estimate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/container/inlined_vector.h"

namespace edgewise::cpu_attention {
namespace {

// Pairs that are sampled: rows, and keys of each. Heads of fewer pairs are looked at in full.
constexpr int kRows = 32;
constexpr int kKeys = 16;
constexpr int64_t kShort = 512;  // tokens; half the rows below
constexpr int64_t kFewTokens = 22;
constexpr double kDoubtful = 8.0;    // edges
constexpr int64_t kHeadWork = 3000;  // nanoseconds that a head takes, roughly

bool MayClamp(const HeadPlan& head) {
  const float largest = *std::max_element(head.query_bound, head.query_bound + head.n);
  return !(largest * head.tables.key_scale + head.tables.exploration <= 1.0f);
}

// <x, y> of some pairs, row by row.
class PairSample {
 public:
  PairSample(const CpuKernels& kernels, const HeadPlan& head)
      : kernels_(kernels), head_(head), tables_(head.tables), x_(static_cast<size_t>(tables_.rank)) {
    tables_.exploration = 0.0f;
    all_ = head.n <= kFewTokens;
    rows_ = all_ ? static_cast<int>(head.n) : head.n < kShort ? kRows / 2 : kRows;
    std::iota(keys_, keys_ + kFewTokens, 0);
  }
  bool all() const { return all_; }
  int rows() const { return rows_; }
  int keys() const { return all_ ? static_cast<int>(head_.n) : kKeys; }

  // The chances of the next row, [keys()].
  const float* NextRow() {
    const int64_t row = all_ ? row_++ : Random();
    for (int k = 0; k < kKeys && !all_; ++k) keys_[k] = static_cast<int32_t>(Random());
    // The kernel gives rates, which end at 1: scaled products do not reach it.
    const float bound = head_.query_bound[row] * tables_.key_scale;
    const float down = bound > 1.0f ? 0.99f / bound : 1.0f, up = 1.0f / down;
    const float* const x = head_.x + row * tables_.rank;
    std::transform(x, x + tables_.rank, x_.begin(), [&](float value) { return value * down; });
    kernels_.edge_rates(tables_, x_.data(), keys_, keys(), products_);
    for (int k = 0; k < keys(); ++k) products_[k] *= up;
    return products_;
  }

 private:
  int64_t Random() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((state_ >> 32) * static_cast<uint64_t>(head_.n) >> 32);
  }

  const CpuKernels& kernels_;
  const HeadPlan& head_;
  DrawTables tables_;
  absl::InlinedVector<float, 128> x_;
  bool all_;
  int rows_;
  int64_t row_ = 0;
  uint64_t state_ = 0;
  int32_t keys_[kFewTokens];
  float products_[kFewTokens + 16];
};

}  // namespace

EdgeEstimate::EdgeEstimate(const CpuKernels& kernels, const HeadPlan& head) {
  const bool poisson = head.drawn->law != Law::kBernoulli;
  const double pairs = static_cast<double>(head.n) * static_cast<double>(head.n);
  const double exploration = head.drawn->exploration;
  // Where no rate is clamped.
  terms_[0] = head.rate_sum + exploration * pairs;
  squares_ = terms_[0] * terms_[0] / pairs;
  if (!poisson && !MayClamp(head)) return;

  PairSample sample(kernels, head);
  const int rows = sample.rows(), keys = sample.keys();
  double powers[kTerms] = {};            // sums of p, p^2, ...; Poisson laws
  double chances[kRows], linear[kRows];  // means of a row: of chances, and of <x, y> + exploration, whose mean is known
  double squares = 0.0;                  // sum of squared chances
  for (int r = 0; r < rows; ++r) {
    const float* const products = sample.NextRow();
    float sum = 0.0f, sum_linear = 0.0f, sum_squares = 0.0f;
    for (int k = 0; k < keys; ++k) {
      const float p = EdgeRate(products[k], head.drawn->exploration);
      float chance = p;
      if (poisson) {
        double power = p;
        for (int term = 0; term < kTerms; ++term, power *= p) powers[term] += power;
        chance = -std::expm1(-p);
      }
      sum += chance;
      sum_linear += products[k];
      sum_squares += chance * chance;
    }
    chances[r] = static_cast<double>(sum) / keys;
    linear[r] = static_cast<double>(sum_linear) / keys + exploration;
    squares += static_cast<double>(sum_squares);
  }
  // Control variate: corrects the sampled mean by the error in the mean that is known exactly, times their regression
  // slope.
  const double mean = std::accumulate(chances, chances + rows, 0.0) / rows;
  const double linear_mean = std::accumulate(linear, linear + rows, 0.0) / rows;
  double square = 0.0, product = 0.0, rest = 0.0;
  for (int r = 0; r < rows; ++r) {
    square += (linear[r] - linear_mean) * (linear[r] - linear_mean);
    product += (linear[r] - linear_mean) * (chances[r] - mean);
  }
  const double slope = square > 0.0 && !sample.all() ? product / square : 0.0;
  for (int r = 0; r < rows; ++r) {
    const double off = chances[r] - mean - slope * (linear[r] - linear_mean);
    rest += off * off;
  }
  terms_[0] = pairs * (poisson ? powers[0] / (rows * keys) : mean) + slope * (terms_[0] - pairs * linear_mean);
  for (int term = 1; poisson && term < kTerms; ++term) {
    double factorial = 1.0;
    for (int i = 2; i <= term + 1; ++i) factorial *= i;
    terms_[term] = (term % 2 == 1 ? -1.0 : 1.0) * pairs * powers[term] / (rows * keys) / factorial;
  }
  // A sample of few edges says little: beside them stand some that exist by chance.
  const double seen = mean * rows * keys;
  squares_ = Edges(1.0) * squares / (seen + kDoubtful);
  if (!sample.all()) variance_ = pairs * pairs * rest / (rows - 2) / rows;
}

void EdgeEstimate::Add(const EdgeEstimate& other) {
  for (int term = 0; term < kTerms; ++term) terms_[term] += other.terms_[term];
  squares_ += other.squares_;
  variance_ += other.variance_;
}

double EdgeEstimate::Edges(double tau) const {
  double sum = 0.0;
  for (int term = kTerms - 1; term >= 0; --term) sum = (sum + terms_[term]) * tau;
  return sum;
}

double EdgeEstimate::TauOf(double edges) const {
  if (edges <= 0.0) return 0.0;
  const double all = Edges(1.0);
  if (all <= edges) return 1.0;
  if (all == terms_[0]) return edges / all;
  double low = 0.0, high = 1.0;
  for (int step = 0; step < 32; ++step) {
    const double middle = (low + high) / 2;
    (Edges(middle) < edges ? low : high) = middle;
  }
  return high;
}

double EdgeEstimate::DeviationAt(double edges) const {
  const double all = Edges(1.0);
  const double share = all > edges ? edges / all : 1.0;
  return std::sqrt(std::max(0.0, share * all - share * share * squares_) + share * share * variance_);
}

bool EdgeEstimate::IsSlack(double edges) const {
  const double all = Edges(1.0);
  // A sample may miss rare pairs, so its part is counted more.
  return all + 5.0 * DeviationAt(all) + 4.0 * std::sqrt(variance_) + 8.0 <= edges;
}

EdgeEstimate EstimateHeads(ThreadPool& pool, const CpuKernels& kernels, std::span<HeadPlan* const> heads) {
  const auto count = static_cast<int64_t>(heads.size());
  absl::InlinedVector<EdgeEstimate, 8> estimates(heads.size());
  pool.For(count, count * kHeadWork, [&](int64_t h, int) { estimates[h] = EdgeEstimate(kernels, *heads[h]); });
  for (size_t h = 1; h < heads.size(); ++h) estimates[0].Add(estimates[h]);
  return estimates[0];
}

}  // namespace edgewise::cpu_attention
