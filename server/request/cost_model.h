// Predicts the seconds that a request takes on the device, from what has been measured of its model so far.
#ifndef EDGEWISE_SERVER_REQUEST_COST_MODEL_H_
#define EDGEWISE_SERVER_REQUEST_COST_MODEL_H_

#include <array>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "model/forward/result.h"
#include "model/model.h"

namespace edgewise::server {

// The work of a request, or of a batch of requests, summed over inputs and samples.
struct Demand {
  double passes = 0.0;  // inputs times samples
  double tokens = 0.0;  // valid tokens
  double pairs = 0.0;   // over layers and heads
  double edges = 0.0;   // attended pairs
  double summed = 0.0;  // pairs whose chances are added up (OutputSelection::layer_stats)

  Demand& operator+=(const Demand& other) {
    passes += other.passes;
    tokens += other.tokens;
    pairs += other.pairs;
    edges += other.edges;
    summed += other.summed;
    return *this;
  }
  // For the demand of one input: that of one of its samples.
  Demand OfOneSample() const { return {1.0, tokens / passes, pairs / passes, edges / passes, summed / passes}; }
};

// seconds = fixed + passes p + tokens t + pairs q + edges e + summed s, none of the six coefficients below zero. They
// minimise the squares of the relative errors over past observations, the weight of which halves every kHalfLife
// observations: so the model follows a machine that gets slower, and small requests count as much as large ones.
//
// Any thread may call any method.
class CostModel {
 public:
  static constexpr double kHalfLife = 50.0;  // observations

  // `demand` took `seconds` > 0 of the device, in one batch.
  void Observe(const Demand& demand, double seconds);
  // Freezes the observations so far as a prior. Later ones may be collinear (all of one density), and then cannot tell
  // the cost of an edge from that of a pair.
  void Anchor();
  // Seconds of a batch of this demand. 0 before the first observation.
  double Predict(const Demand& demand) const;
  // A high percentile of recent times over their predictions, at least 1.
  double Spread() const;

  // Before an input runs: its samples, or LikelySamples under a tolerance, with the edges of its cap or LikelyEdges,
  // whichever are fewer.
  Demand Expected(const Model& model, const InputRun& run) const;
  // After it ran: `result` of `input` is OK. Observes its edges and, under a tolerance, its samples.
  Demand Observed(const Model& model, const InputRun& run, const InputResult& result);

  // The 90th percentile of the edges of one sample of an input of this length: that of the observed densities, times
  // `pairs`. All pairs before the first observation of the length.
  double LikelyEdges(double tokens, double pairs) const;
  void ObserveEdges(double tokens, double pairs, double edges);

  // The samples that an input is likely not to exceed before its answer is as sure as `tolerance` asks, at most
  // `samples`: nine tenths of the observed inputs of about this tolerance had less variance. All samples before the
  // first. `used`: of an answer.
  double LikelySamples(double tolerance, double samples) const;
  void ObserveSamples(double tolerance, double used);

  // Seconds of a generation: of its prompt, and of the tokens that it is expected to generate.
  double PredictGeneration(double prompt_tokens, double max_new_tokens) const;
  // A token of a generation took so long of the device: the step, shared by those that it decoded.
  void ObserveToken(double seconds);
  // Records the seconds of a prompt and of the token that follows it.
  void ObservePrompt(double tokens, double seconds);
  // Records the time of one prompt layer. LayerRows: the number of rows that fit into `seconds`, judged by recent
  // layers; 0 if none was recorded.
  void ObserveLayer(double rows, double seconds);
  double LayerRows(double seconds) const;
  // Records the time of one layer of a token step. TokenLayers: the number of layers that fit into `seconds`, judged by
  // recent steps; 0 if none was recorded.
  void ObserveTokenLayer(double seconds);
  double TokenLayers(double seconds) const;
  // A generation ended on its own.
  void ObserveLength(double generated, double max_new_tokens);

  // Records a request that came: its demand, its size and the least seconds that are predicted for it. The usual demand
  // is the recent mean. A size or seconds of 0 are not known.
  void ObserveRequest(const Demand& demand, double size, double least_seconds);
  // Requests of the usual demand that the device would answer in a second, one by one. 0 before the first request, or
  // the first observation.
  double Capacity() const;

  // A lower bound on the seconds of a request of this size: the fastest recent request, scaled by size. `size`: bytes
  // of the message times samples. 0 before the first.
  double LeastSeconds(double size) const;

 private:
  static constexpr int kTerms = 6;
  static constexpr int kLengths = 32;     // by the logarithm of tokens to base 2
  static constexpr int kTolerances = 32;  // by that of one over the tolerance
  using Terms = std::array<double, kTerms>;

  static Terms TermsOf(const Demand& demand) {
    return {1.0, demand.passes, demand.tokens, demand.pairs, demand.edges, demand.summed};
  }
  double PredictLocked(const Demand& demand) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  double Slower() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  // Weighted sums over observations, each divided by its seconds: terms times terms, and terms.
  std::array<Terms, kTerms> products_ ABSL_GUARDED_BY(mutex_) = {};
  Terms targets_ ABSL_GUARDED_BY(mutex_) = {};
  std::array<Terms, kTerms> anchor_products_ ABSL_GUARDED_BY(mutex_) = {};
  Terms anchor_targets_ ABSL_GUARDED_BY(mutex_) = {};
  Terms anchor_coefficients_ ABSL_GUARDED_BY(mutex_) = {};
  double spread_ ABSL_GUARDED_BY(mutex_) = 1.0;
  int64_t observed_ ABSL_GUARDED_BY(mutex_) = 0;
  Terms coefficients_ ABSL_GUARDED_BY(mutex_) = {};                    // seconds
  std::array<double, kLengths> density_ ABSL_GUARDED_BY(mutex_) = {};  // nine-tenths quantile by length; 0: none yet
  // Nine-tenths quantile of samples times the square of the tolerance, by tolerance; 0: none yet.
  std::array<double, kTolerances> variance_ ABSL_GUARDED_BY(mutex_) = {};
  double token_seconds_ ABSL_GUARDED_BY(mutex_) = 0.001;      // recent mean
  double layer_row_seconds_ ABSL_GUARDED_BY(mutex_) = 0.0;    // recent maximum; 0: none yet
  double token_layer_seconds_ ABSL_GUARDED_BY(mutex_) = 0.0;  // likewise
  double length_ ABSL_GUARDED_BY(mutex_) = 1.0;               // recent mean of generated over allowed
  Demand usual_ ABSL_GUARDED_BY(mutex_);                      // of a request; no passes: none yet
  double least_ ABSL_GUARDED_BY(mutex_) = 0.0;                // seconds of a byte; 0: none yet
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_REQUEST_COST_MODEL_H_
