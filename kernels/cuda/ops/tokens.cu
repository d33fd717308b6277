// Tokens are ordered by places: the larger logit first, of equal ones the lower id. A weight is a multiple of 2^-40 of
// the largest one, so that sums are whole numbers: they are the same in any order.
#include <cmath>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/tokens.h"

namespace edgewise::cuda {
namespace {

using Sum = unsigned long long;

constexpr int kPartThreads = 256;
constexpr int kChoiceThreads = 1024;
constexpr int kLogBins = 10, kBins = 1 << kLogBins;  // of places
static_assert(kBins == kChoiceThreads);
constexpr float kLargestWeight = 0x1p40f;
constexpr Sum kLastPlace = ~Sum{0};

// Keeps the better of two tokens; of equal ones the lower.
__device__ inline void TakeBest(LogitPart& part, float best, int32_t token) {
  if (token < 0 || (part.token >= 0 && (part.best > best || (part.best == best && part.token < token)))) return;
  part.best = best;
  part.token = token;
}

// By a whole warp: all threads get the whole of their parts but its `sum`.
__device__ inline void MergeInWarp(LogitPart& part) {
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    part.largest = fmaxf(part.largest, __shfl_xor_sync(kWholeWarp, part.largest, step));
    part.smallest = fminf(part.smallest, __shfl_xor_sync(kWholeWarp, part.smallest, step));
    part.finite &= __shfl_xor_sync(kWholeWarp, part.finite, step);
    const float best = __shfl_xor_sync(kWholeWarp, part.best, step);
    TakeBest(part, best, __shfl_xor_sync(kWholeWarp, part.token, step));
  }
}

__device__ inline LogitPart NoPart() { return {-INFINITY, INFINITY, 0.0f, 0.0f, 0.0f, -1, 1}; }

__global__ void __launch_bounds__(kPartThreads) SumParts(const float* logits, int64_t stride, int64_t vocabulary,
                                                         const LogitRow* rows, int64_t parts_of_row, LogitPart* parts) {
  __shared__ LogitPart of_warp[kPartThreads / kWarpSize];
  __shared__ float sums[kPartThreads / kWarpSize], moments[kPartThreads / kWarpSize];
  const LogitRow row = rows[blockIdx.x / parts_of_row];
  const int64_t first = blockIdx.x % parts_of_row * kPartTokens;
  const float* const from = logits + row.row * stride;
  const int64_t end = first + kPartTokens < vocabulary ? first + kPartTokens : vocabulary;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  LogitPart part = NoPart();
  for (int64_t token = first + threadIdx.x; token < end; token += kPartThreads) {
    const float logit = from[token];
    part.largest = fmaxf(part.largest, logit);
    part.smallest = fminf(part.smallest, logit);
    part.finite &= isfinite(logit) ? 1 : 0;
    if (token != row.excluded) TakeBest(part, logit, static_cast<int32_t>(token));
  }
  MergeInWarp(part);
  if (lane == 0) of_warp[warp] = part;
  __syncthreads();
  part = of_warp[lane % (kPartThreads / kWarpSize)];
  MergeInWarp(part);
  float sum = 0.0f, moment = 0.0f;
  for (int64_t token = first + threadIdx.x; token < end; token += kPartThreads) {
    const float distance = from[token] - part.largest, weight = expf(distance);
    sum += weight;
    if (weight > 0.0f) moment += weight * distance;
  }
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    sum += __shfl_xor_sync(kWholeWarp, sum, step);
    moment += __shfl_xor_sync(kWholeWarp, moment, step);
  }
  if (lane == 0) {
    sums[warp] = sum;
    moments[warp] = moment;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kPartThreads / kWarpSize; ++w) {
    sum += sums[w];
    moment += moments[w];
  }
  part.sum = sum;
  part.moment = moment;
  parts[blockIdx.x] = part;
}

// A row as a whole.
struct RowSum {
  LogitPart of_all;
  double log_sum;  // ln of the sum of exp(logit)
  double entropy;  // nats
};

// By a whole warp.
__device__ inline RowSum SumOfRow(const LogitPart* parts, int64_t count) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  RowSum row = {NoPart(), 0.0, 0.0};
  for (int64_t p = lane; p < count; p += kWarpSize) {
    row.of_all.largest = fmaxf(row.of_all.largest, parts[p].largest);
    row.of_all.smallest = fminf(row.of_all.smallest, parts[p].smallest);
    row.of_all.finite &= parts[p].finite;
    TakeBest(row.of_all, parts[p].best, parts[p].token);
  }
  MergeInWarp(row.of_all);
  double sum = 0.0, moment = 0.0;
  for (int64_t p = lane; p < count; p += kWarpSize) {
    const auto of_part = static_cast<double>(parts[p].sum);
    const double distance = static_cast<double>(parts[p].largest - row.of_all.largest), weight = exp(distance);
    sum += of_part * weight;
    if (weight > 0.0) moment += (static_cast<double>(parts[p].moment) + of_part * distance) * weight;
  }
  sum = WarpSum(sum);
  row.entropy = fmax(log(sum) - WarpSum(moment) / sum, 0.0);
  row.log_sum = log(sum) + static_cast<double>(row.of_all.largest);
  return row;
}

__global__ void __launch_bounds__(kPartThreads)
    MixRows(float* logits, int64_t stride, int64_t vocabulary, const LogitPart* parts, int64_t parts_of_row,
            const SampleRows* mixes, double* sums, ChosenToken* chosen) {
  const SampleRows mix = mixes[blockIdx.x / parts_of_row];
  const int64_t first = blockIdx.x % parts_of_row * kPartTokens;
  constexpr int kTokens = kPartTokens / kPartThreads;  // of a thread
  double mean[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const int64_t token = first + threadIdx.x + i * kPartThreads;
    mean[i] = mix.begins != 0 || token >= vocabulary ? 0.0 : sums[token];
  }
  const bool writes = first == 0 && threadIdx.x == 0;  // the sum of the samples' entropies
  double entropies = mix.begins != 0 || !writes ? 0.0 : chosen[mix.choice].mutual_information;
  for (int64_t r = mix.first; r < mix.first + mix.rows; ++r) {
    const RowSum row = SumOfRow(parts + r * parts_of_row, parts_of_row);
    entropies += row.entropy;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int64_t token = first + threadIdx.x + i * kPartThreads;
      if (token >= vocabulary) continue;
      const double logit = static_cast<double>(logits[r * stride + token]);
      mean[i] += row.of_all.finite != 0 ? exp(logit - row.log_sum) : static_cast<double>(NAN);
    }
  }
  if (writes) chosen[mix.choice].mutual_information = entropies;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const int64_t token = first + threadIdx.x + i * kPartThreads;
    if (token >= vocabulary) continue;
    if (mix.ends == 0) {
      sums[token] = mean[i];
    } else {
      // Not -inf, which would not be finite, where all samples say 0.
      logits[mix.first * stride + token] = static_cast<float>(log(fmax(mean[i] / mix.samples, 1e-300)));
      if (isnan(mean[i])) logits[mix.first * stride + token] = NAN;
    }
  }
}

// Ascending places are descending logits, of equal ones ascending ids.
__device__ inline Sum PlaceOf(float logit, int32_t token) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // of both zeros the same
  const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<Sum>(~ascending) << 32 | static_cast<uint32_t>(token);
}

// Shared by the threads of a block.
struct ChoiceShared {
  Sum bins[kBins];
  Sum of_warp[kWarpSize];
  Sum low, high, before, own;
};

// One block that chooses.
class Chooser {
 public:
  __device__ Chooser(const float* logits, int32_t vocabulary, const TokenChoice& choice, const LogitPart& row,
                     ChoiceShared& shared)
      : logits_(logits),
        vocabulary_(vocabulary),
        excluded_(choice.excluded),
        best_(row.best),
        temperature_(choice.temperature),
        first_(PlaceOf(row.best, 0)),
        last_(PlaceOf(row.smallest, -1)),
        shared_(shared) {}

  __device__ Sum Weight(float logit) const {
    const double distance = static_cast<double>(logit) - static_cast<double>(best_);
    return static_cast<Sum>(expf(static_cast<float>(distance / temperature_)) * kLargestWeight);
  }

  // Calls body(place, logit) for the thread's tokens up to place `last`.
  template <typename Body>
  __device__ void ForTokens(Sum last, const Body& body) const {
    for (int32_t token = static_cast<int32_t>(threadIdx.x); token < vocabulary_; token += kChoiceThreads) {
      if (token == excluded_) continue;
      const Sum place = PlaceOf(logits_[token], token);
      if (place <= last) body(place, logits_[token]);
    }
  }

  // The weights of the tokens up to place `last`.
  __device__ Sum WeightUpTo(Sum last) {
    Sum sum = 0;
    ForTokens(last, [&](Sum, float logit) { sum += Weight(logit); });
    Sum before;
    return AddInBlock(sum, before);
  }

  // The place of the first token up to `last` where the sum, its own weight included, is above `limit`; a weight is 1
  // with `count`. There is one. `sum`: that sum.
  __device__ Sum FirstAbove(Sum limit, Sum last, bool count, Sum& sum) {
    Sum low = first_, high = last < last_ ? last : last_, before = 0;
    for (;;) {
      const int shift = max(64 - __clzll(static_cast<long long>(high - low)) - kLogBins, 0);
      shared_.bins[threadIdx.x] = 0;
      __syncthreads();
      ForTokens(high, [&](Sum place, float logit) {
        if (place >= low) atomicAdd(&shared_.bins[(place - low) >> shift], count ? Sum{1} : Weight(logit));
      });
      __syncthreads();
      const Sum own = shared_.bins[threadIdx.x];
      Sum here;
      AddInBlock(own, here);
      here += before;
      if (here <= limit && here + own > limit) {
        shared_.low = low + (Sum{threadIdx.x} << shift);
        shared_.high = min(high, shared_.low + ((Sum{1} << shift) - 1));
        shared_.before = here;
        shared_.own = own;
      }
      __syncthreads();
      low = shared_.low, high = shared_.high, before = shared_.before, sum = shared_.before + shared_.own;
      if (shift == 0) return low;
    }
  }

 private:
  // The sum over the block; `before`: over the threads before this one. A block barrier lies between two calls.
  __device__ Sum AddInBlock(Sum value, Sum& before) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
    Sum up_to = value;
    for (int step = 1; step < kWarpSize; step *= 2) {
      const Sum other = __shfl_up_sync(kWholeWarp, up_to, step);
      if (lane >= step) up_to += other;
    }
    if (lane == kWarpSize - 1) shared_.of_warp[warp] = up_to;
    __syncthreads();
    Sum sum = 0;
    before = up_to - value;
    for (int w = 0; w < kChoiceThreads / kWarpSize; ++w) {
      if (w < warp) before += shared_.of_warp[w];
      sum += shared_.of_warp[w];
    }
    return sum;
  }

  const float* const logits_;
  const int32_t vocabulary_, excluded_;
  const float best_;
  const double temperature_;
  const Sum first_, last_;  // places of tokens lie between
  ChoiceShared& shared_;
};

// As ChooseToken.
__device__ inline int32_t Draw(Chooser& chooser, const TokenChoice& choice, int32_t vocabulary) {
  Sum last = kLastPlace, sum;
  const auto candidates =
      static_cast<uint32_t>(vocabulary - (choice.excluded >= 0 && choice.excluded < vocabulary ? 1 : 0));
  if (choice.top_k > 0 && choice.top_k < candidates) last = chooser.FirstAbove(choice.top_k - 1, last, true, sum);
  Sum total = chooser.WeightUpTo(last);
  if (choice.top_p > 0.0) {
    const auto share = static_cast<Sum>(ceil(choice.top_p * static_cast<double>(total)));
    last = chooser.FirstAbove(min(max(share, Sum{1}), total) - 1, last, false, total);
  }
  const auto limit = static_cast<Sum>(choice.uniform * static_cast<double>(total));
  return static_cast<int32_t>(chooser.FirstAbove(min(limit, total - 1), last, false, sum));
}

__global__ void __launch_bounds__(kChoiceThreads)
    ChooseTokens(const float* logits, int64_t stride, int32_t vocabulary, const TokenRow* rows, const LogitPart* parts,
                 int64_t parts_of_row, ChosenToken* chosen) {
  __shared__ ChoiceShared shared;
  const TokenRow& of = rows[blockIdx.x];
  const RowSum row = SumOfRow(parts + blockIdx.x * parts_of_row, parts_of_row);
  ChosenToken token = {.id = row.of_all.token, .finite = row.of_all.finite != 0 && row.of_all.token >= 0};
  const float* const from = logits + of.row * stride;
  if (token.finite && of.choice.temperature > 0.0) {
    Chooser chooser(from, vocabulary, of.choice, row.of_all, shared);
    token.id = Draw(chooser, of.choice, vocabulary);
  }
  if (threadIdx.x != 0) return;
  if (token.finite) {
    token.log_probability = static_cast<double>(from[token.id]) - row.log_sum;
    token.predictive_entropy = row.entropy;
    if (of.choice.samples > 1) {
      const double mean = chosen[blockIdx.x].mutual_information / of.choice.samples;  // of the samples' entropies
      token.mutual_information = fmax(row.entropy - mean, 0.0);
    }
    // Where a probability is 0 in float64, all of it is the excluded token's.
    token.finite = token.log_probability > -745.0;
  }
  chosen[blockIdx.x] = token;
}

}  // namespace

cudaError_t SumLogits(cudaStream_t stream, ConstMatrix logits, const LogitRow* rows, int64_t count, LogitPart* parts) {
  const int64_t of_row = PartsOfRow(logits.columns);
  return Launch(stream, count * of_row, kPartThreads, 0, kLoaded<SumParts>, logits.data, logits.stride, logits.columns,
                rows, of_row, parts);
}

cudaError_t MixSamples(cudaStream_t stream, Matrix logits, const LogitPart* parts, const SampleRows* mixes,
                       int64_t count, double* sums, ChosenToken* chosen) {
  const int64_t of_row = PartsOfRow(logits.columns);
  return Launch(stream, count * of_row, kPartThreads, 0, kLoaded<MixRows>, logits.data, logits.stride, logits.columns,
                parts, of_row, mixes, sums, chosen);
}

cudaError_t ChooseFromLogits(cudaStream_t stream, ConstMatrix logits, const TokenRow* rows, int64_t count,
                             const LogitPart* parts, ChosenToken* chosen) {
  return Launch(stream, count, kChoiceThreads, 0, kLoaded<ChooseTokens>, logits.data, logits.stride,
                static_cast<int32_t>(logits.columns), rows, parts, PartsOfRow(logits.columns), chosen);
}

}  // namespace edgewise::cuda
