#include "kernels/cpu/attention/direction.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace edgewise::cpu_attention {
namespace {

// Heads whose keys get bounds of their own. Short keys are read and multiplied as fast, and a table for few candidates
// costs more than it saves.
constexpr int kSplitRank = 64;
constexpr int64_t kSplitTokens = 1024;     // or, from 256 on,
constexpr double kSplitCandidates = 12.0;  // of a row
// Widest bounds that pay, over p, for each element of a key beyond 32 that is not read.
constexpr float kSplitShare = 0.3f / 96.0f;
// Heads whose keys get lower bounds: the least share of edges, by the bounds, and the widest bounds over p.
constexpr double kLowShare = 0.05;
constexpr float kLowWidth = 0.3f;

// Heads that are taken to be drawn by events before their own bounds are known: the largest share of edges, by the
// bounds that come with the memberships.
constexpr double kCertifiedShare = 1.1 * kEventMostDensity;
// kCertifiedOpen: certificates pay where bounds along the direction leave at least this many events of a query open;
// those bounds are apart by at least the share kSplitRounding of p.
constexpr double kCertifiedOpen = 2.0;
constexpr double kSplitRounding = 0.015;

// How far bounds along the direction are apart, on a sample of pairs.
struct SplitSample {
  float along = 0.0f, width = 0.0f;  // sums
  float query_width = 0.0f;          // the widest query's part across, over the part along
};
SplitSample SampleSplit(const CpuKernels& kernels, const HeadPlan& head, int64_t step) {
  const int rank = head.tables.rank;
  SplitSample sample;
  for (int64_t key = step / 4; key < head.n; key += step) {
    const uint32_t x = kernels.split_key(head.x + key * rank, head.unit, rank);
    const uint32_t y = kernels.split_key(head.tables.y + key * rank, head.unit, rank);
    const float x_along = std::bit_cast<float>(x & 0xFFFF0000u), x_across = std::bit_cast<float>(x << 16);
    sample.along += x_along * std::bit_cast<float>(y & 0xFFFF0000u);
    sample.width += std::min(1.0f, 2.0f * x_across * std::bit_cast<float>(y << 16));
    if (x_across < x_along) sample.query_width = std::max(sample.query_width, x_across / x_along);
  }
  return sample;
}

}  // namespace

bool FindDirection(HeadPlan& head) {
  const int rank = head.tables.rank;
  std::fill(head.unit, head.unit + rank, 0.0f);
  for (int64_t key = 0; key < head.n; key += std::max<int64_t>(1, head.n / 128)) {
    for (int t = 0; t < rank; ++t) head.unit[t] += head.tables.y[key * rank + t];
  }
  double square = 0.0;  // in float32 the norm would be off by more than the bounds allow for
  for (int t = 0; t < rank; ++t) square += static_cast<double>(head.unit[t]) * static_cast<double>(head.unit[t]);
  if (!(square >= 1e-30 && square <= 1e30)) return false;
  const double norm = std::sqrt(square);
  for (int t = 0; t < rank; ++t) head.unit[t] = static_cast<float>(static_cast<double>(head.unit[t]) / norm);
  return true;
}

void MeasureSplit(const CpuKernels& kernels, HeadPlan& head) {
  DrawTables& tables = head.tables;
  const int rank = tables.rank;
  if (kernels.split_key == nullptr || rank > kMaxRank || head.n < 256) return;
  const double candidates = static_cast<double>(head.n) * (1.0 / 256.0 + head.bound_share);
  const bool split = rank >= kSplitRank && (head.n >= kSplitTokens || candidates >= kSplitCandidates);
  const bool low = head.bound_share >= kLowShare && head.drawn->law == Law::kBernoulli;
  if (!split && !low) return;
  if (!FindDirection(head)) return;
  const SplitSample sample = SampleSplit(kernels, head, head.n / 128 * 2);
  tables.unit = head.unit;
  tables.low_width = 1.1f * sample.query_width;
  head.needs.split = split && sample.width < kSplitShare * static_cast<float>(rank - 32) * sample.along;
  head.needs.low = low && sample.width < kLowWidth * sample.along;
}

bool MayCertify(const HeadPlan& head) {
  return head.certified[1].rests != nullptr &&
         (head.bound_share <= kCertifiedShare || head.drawn->way == DrawWay::kEvents);
}

bool PaysToCertify(const CpuKernels& kernels, const HeadPlan& head) {
  const SplitSample sample = SampleSplit(kernels, head, std::max<int64_t>(4, head.n / 16));
  const double events = static_cast<double>(head.n) * head.bound_share;
  return events * (kSplitRounding + static_cast<double>(sample.width / sample.along)) >= kCertifiedOpen;
}

}  // namespace edgewise::cpu_attention
