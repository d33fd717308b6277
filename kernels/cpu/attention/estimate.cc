#include "kernels/cpu/attention/estimate.h"

#include <algorithm>
#include <cmath>

namespace edgewise::cpu_attention {
namespace {

constexpr int kSamples = 512;

// <x, y>, summed in a fast order: no exact rate is needed.
float Product(const float* x, const float* y, int rank) {
  float lane[kDotLanes] = {};
  for (int t = 0; t < rank; t += kDotLanes) {
    for (int l = 0; l < kDotLanes; ++l) lane[l] += x[t + l] * y[t + l];
  }
  float sum = 0.0f;
  for (float part : lane) sum += part;
  return sum;
}

bool MayClamp(const Head& head) {
  const float largest = *std::max_element(head.query_bound, head.query_bound + head.n);
  return !(largest * head.tables.key_scale + head.tables.exploration <= 1.0f);
}

}  // namespace

EdgeEstimate::EdgeEstimate(const Head& head) {
  const bool poisson = head.drawn->law != Law::kBernoulli;
  const double pairs = static_cast<double>(head.n) * static_cast<double>(head.n);
  // Where no rate is clamped.
  terms_[0] = head.rate_sum + static_cast<double>(head.tables.exploration) * pairs;
  if (!poisson && !MayClamp(head)) return;

  const int rank = head.tables.rank;
  bool clamped = false;
  double powers[kTerms] = {};          // sums of p, p^2, ... over the sample
  double sum[2] = {}, square[2] = {};  // of chances, and of chances - p
  uint64_t state = 0;
  for (int s = 0; s < kSamples; ++s) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto row = static_cast<int64_t>((state >> 32) % static_cast<uint64_t>(head.n));
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto key = static_cast<int64_t>((state >> 32) % static_cast<uint64_t>(head.n));
    const float dot = Product(head.x + row * rank, head.tables.y + key * rank, rank);
    const float rate = EdgeRate(dot, head.tables.exploration);
    clamped |= rate != dot + head.tables.exploration;
    const double p = rate;
    double power = p, chance = p;
    for (int term = 0; term < kTerms; ++term, power *= p) powers[term] += power;
    if (poisson) chance = -std::expm1(-p);
    const double value[2] = {chance, chance - p};
    for (int i = 0; i < 2; ++i) sum[i] += value[i], square[i] += value[i] * value[i];
  }
  if (clamped) terms_[0] = pairs * powers[0] / kSamples;
  for (int term = 1; poisson && term < kTerms; ++term) {
    double factorial = 1.0;
    for (int i = 2; i <= term + 1; ++i) factorial *= i;
    terms_[term] = (term % 2 == 1 ? -1.0 : 1.0) * pairs * powers[term] / kSamples / factorial;
  }
  const int sampled = clamped ? 0 : 1;  // without clamps the mean of p is exact
  const double mean = sum[sampled] / kSamples;
  variance_ = pairs * pairs * std::max(0.0, square[sampled] / kSamples - mean * mean) / kSamples;
}

void EdgeEstimate::Add(const EdgeEstimate& other) {
  for (int term = 0; term < kTerms; ++term) terms_[term] += other.terms_[term];
  variance_ += other.variance_;
}

double EdgeEstimate::Edges(double tau) const {
  double sum = 0.0;
  for (int term = kTerms - 1; term >= 0; --term) sum = (sum + terms_[term]) * tau;
  return sum;
}

double EdgeEstimate::TauOf(double edges) const {
  if (edges <= 0.0) return 0.0;
  if (Edges(1.0) <= edges) return 1.0;
  double low = 0.0, high = 1.0;
  for (int step = 0; step < 48; ++step) {
    const double middle = (low + high) / 2;
    (Edges(middle) < edges ? low : high) = middle;
  }
  return high;
}

}  // namespace edgewise::cpu_attention
