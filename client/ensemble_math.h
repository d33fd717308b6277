// The arithmetic of a self-ensemble, as edgewise/client/ensemble.h states it. Internal to the library.
#ifndef EDGEWISE_CLIENT_ENSEMBLE_MATH_H_
#define EDGEWISE_CLIENT_ENSEMBLE_MATH_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace edgewise::internal {

// Mean and unbiased standard deviation over samples, for each of `mean.size()` numbers.
struct Moments {
  std::vector<double> mean;   // before rounding
  std::vector<float> stddev;  // 0 for one sample
};

// samples[s] is the row of sample s, `width` floats. At least one sample.
Moments ComputeMoments(std::span<const float* const> samples, size_t width);

// -sum of q log q over the positive q, nats. multi_label: -sum of q log q + (1 - q) log1p(-q) over the q between 0
// and 1.
double Entropy(std::span<const double> probabilities, bool multi_label);

// max(0, predictive_entropy - mean entropy of the samples), nats.
double MutualInformation(double predictive_entropy, std::span<const float* const> samples, size_t width,
                         bool multi_label);

// Sum over tokens of ln(mean over samples of their probability). samples[s] is the row of sample s, `tokens` doubles.
double LogLikelihood(std::span<const double* const> samples, size_t tokens);
// exp of minus its mean; 1 for no tokens.
double Perplexity(double log_likelihood, size_t tokens);

// The first index of the largest value; 0 for none.
int ArgMax(std::span<const double> values);

// The first `count` indexes by falling value, ties by rising index.
std::vector<int> LargestFirst(std::span<const float> values, size_t count);

// A sum that is a multiple of `unit`, recovered from its mean over `samples` values: rounding undoes the division
// exactly while the sum is below 2^51 units.
double SumFromMean(double mean, uint32_t samples, double unit);

}  // namespace edgewise::internal

#endif  // EDGEWISE_CLIENT_ENSEMBLE_MATH_H_
