// The share of a budget's remaining edges that a layer may use, and which drawn edges stay within it.
//
// Plain C++17, compiled for the host and for the device, so that both give the same number.
#ifndef EDGEWISE_KERNELS_DRAW_BUDGET_H_
#define EDGEWISE_KERNELS_DRAW_BUDGET_H_

#include <cstdint>

#include "kernels/draw/philox.h"

namespace edgewise {

// Which of the edges that were drawn freely an allowance keeps.
enum class CapRule : uint8_t {
  kRandom,   // the youngest (EdgeAge in draw.h): a draw of the same law at a lower rate
  kProbable  // those of the largest rate (EdgeRate in draw.h)
};

inline constexpr uint64_t kWholeShare = uint64_t{1} << 63;

// A layer's part of the remaining edges: floor(remaining * fraction), but at least the edges forced in this layer, and
// few enough to leave those forced in later layers.
struct BudgetShare {
  uint64_t fraction = kWholeShare;  // w_layer / (sum of w from this layer on), rounded up to a multiple of 2^-63
  uint64_t forced_here = 0;         // edges
  uint64_t forced_later = 0;        // edges
};

// floor(a * b / 2^63) for b <= 2^63.
EDGEWISE_HOST_DEVICE inline uint64_t MultiplyShare(uint64_t a, uint64_t b) {
  const uint64_t a0 = a & 0xFFFFFFFFu, a1 = a >> 32, b0 = b & 0xFFFFFFFFu, b1 = b >> 32;
  const uint64_t low = a0 * b0, mid0 = a1 * b0, mid1 = a0 * b1;
  const uint64_t carry = ((low >> 32) + (mid0 & 0xFFFFFFFFu) + (mid1 & 0xFFFFFFFFu));
  const uint64_t high = a1 * b1 + (mid0 >> 32) + (mid1 >> 32) + (carry >> 32);
  return high << 1 | (carry >> 31 & 1u);
}

// The edges that the layer may use of the `remaining` ones; forced_here + forced_later <= remaining.
EDGEWISE_HOST_DEVICE inline uint64_t LayerAllowance(uint64_t remaining, const BudgetShare& share) {
  const uint64_t part = MultiplyShare(remaining, share.fraction);
  const uint64_t wanted = part > share.forced_here ? part : share.forced_here;
  const uint64_t most = remaining - share.forced_later;
  return wanted < most ? wanted : most;
}

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_DRAW_BUDGET_H_
