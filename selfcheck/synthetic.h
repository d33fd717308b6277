// Made-up inputs of attention: what the self-check checks with, and the benchmarks time with.
#ifndef EDGEWISE_SELFCHECK_SYNTHETIC_H_
#define EDGEWISE_SELFCHECK_SYNTHETIC_H_

#include <cstdint>
#include <new>
#include <span>
#include <vector>

#include "kernels/attention.h"

namespace edgewise::selfcheck {

// Floats aligned as the buffers of a backend are.
template <typename T>
struct CacheLineAllocator {
  using value_type = T;
  T* allocate(size_t count) { return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{64})); }
  void deallocate(T* memory, size_t) { ::operator delete (memory, std::align_val_t{64}); }
  bool operator==(const CacheLineAllocator&) const { return true; }
};
using Floats = std::vector<float, CacheLineAllocator<float>>;

inline constexpr int kRank = 32;
inline constexpr double kMeanCosine = 0.9;

// Normal q, k, v of one sequence, one matrix each, [n, heads * head_dim].
struct Operands {
  Operands(int64_t n, int heads, int head_dim);
  Floats q, k, v;
  AttentionInputs inputs;
};

// The scale, at most 100, at which the mean of min(1, scale * product) is `density`; by bisection.
double ScaleToDensity(std::span<const double> products, double density);

// Memberships around one common direction with the mean cosine above, scaled so that the mean of min(1, p) is
// `density`.
struct SyntheticMemberships {
  SyntheticMemberships(int64_t n, int heads, double density, int rank = kRank);
  Floats x, y, query_bound, key_bound;
  Memberships memberships;
};

}  // namespace edgewise::selfcheck

#endif  // EDGEWISE_SELFCHECK_SYNTHETIC_H_
