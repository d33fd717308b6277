// The edge budget of one sample, and how its layers share it (docs/model-format.md, budget_shares).
#ifndef EDGEWISE_MODEL_FORWARD_EDGE_BUDGET_H_
#define EDGEWISE_MODEL_FORWARD_EDGE_BUDGET_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/draw/budget.h"
#include "model/kinds/patterns.h"

namespace edgewise {

// floor(density * pairs) with the density as it was written: the most edges whose share of the pairs, as a double, is
// at most `density`. (0.29 of 100 is 29, though 0.29 * 100 is 28.999... in doubles.)
uint64_t EdgesOfDensity(double density, uint64_t pairs);

// The part that a layer may use of the edges that are left: w_layer / (sum of w from this layer on) of them, within the
// forced edges.
BudgetShare ShareOf(const std::vector<double>& shares, int32_t layer, uint64_t forced_here, uint64_t forced_later);

// The parts of all layers: `choices` [layers].
std::vector<BudgetShare> SharesOf(const std::vector<double>& shares, std::span<const AttentionSpec> choices,
                                  std::span<const QueryRange> ranges);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_EDGE_BUDGET_H_
