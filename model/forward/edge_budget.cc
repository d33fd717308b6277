#include "model/forward/edge_budget.h"

#include <algorithm>

namespace edgewise {

uint64_t EdgesOfDensity(double density, uint64_t pairs) {
  constexpr uint64_t kExact = uint64_t{1} << 53;  // whole numbers up to here are doubles
  uint64_t edges = std::min(pairs, static_cast<uint64_t>(density * static_cast<double>(pairs)));
  if (pairs > kExact) return edges;
  const double all = static_cast<double>(pairs);
  while (edges < pairs && static_cast<double>(edges + 1) / all <= density) ++edges;
  while (edges > 0 && static_cast<double>(edges) / all > density) --edges;
  return edges;
}

// Long division, every step of it exact: the rest stays below the sum, and twice the rest minus the sum has no
// rounding. Rounded up, an exact share of a whole number stays one.
BudgetShare ShareOf(const std::vector<double>& shares, int32_t layer, uint64_t forced_here, uint64_t forced_later) {
  long double sum = 0.0L;
  for (size_t l = layer; l < shares.size(); ++l) sum += shares[l];
  BudgetShare share{kWholeShare, forced_here, forced_later};
  long double rest = shares[layer];
  if (rest >= sum) return share;
  share.fraction = 0;
  for (uint64_t bit = kWholeShare >> 1; bit > 0; bit >>= 1) {
    rest *= 2.0L;
    if (rest < sum) continue;
    rest -= sum;
    share.fraction |= bit;
  }
  if (rest > 0.0L) ++share.fraction;
  return share;
}

std::vector<BudgetShare> SharesOf(const std::vector<double>& shares, std::span<const AttentionSpec> choices,
                                  std::span<const QueryRange> ranges) {
  std::vector<BudgetShare> made(choices.size());
  uint64_t later = 0;
  for (size_t l = choices.size(); l-- > 0;) {
    const uint64_t here = LeastEdges(choices[l], ranges);
    made[l] = ShareOf(shares, static_cast<int32_t>(l), here, later);
    later += here;
  }
  return made;
}

}  // namespace edgewise
