#include "server/request/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/forward/pass.h"

namespace edgewise::server {
namespace {

constexpr double kRidge = 1e-9;       // of a term's own weight: keeps terms apart that were always in proportion
constexpr double kAnchor = 0.02;      // of an observation: the weight of an anchored one
constexpr double kStep = 0.01;        // of a quantile, in its logarithm
constexpr double kShareAbove = 0.1;   // of the densities, above the quantile
constexpr double kShareLate = 0.015;  // of the observations, beyond the spread
constexpr double kLateStep = 0.0005;  // of the spread, in its logarithm
constexpr int64_t kFitEvery = 8;      // observations, once there are many: a fit costs as much as a small request
constexpr double kRecent = 0.05;      // of a recent mean: the part of the latest observation
constexpr double kPromptToken = 0.1;  // of a generated token: about what a token of a prompt costs
constexpr double kForget = 1.001;     // the least seconds of a size rise so much with every request
constexpr double kForgetLayer = 0.9;  // the most seconds of a row fall so much with every layer

size_t LengthOf(double tokens) { return static_cast<size_t>(std::clamp(std::ilogb(std::max(tokens, 1.0)), 0, 31)); }

size_t PlaceOf(double tolerance) { return static_cast<size_t>(std::clamp(-std::ilogb(tolerance), 0, 31)); }

// Under a tolerance samples run in waves, each as large as all before, of which the answer has the first `used`.
double InWaves(double used, double samples) {
  double ran = Pass::kFirstToleranceWave;
  while (ran < used) ran *= 2.0;
  return std::min(ran, samples);
}

double TokensOf(const ModelInput& input) {
  double tokens = 0.0;
  for (const ModelSequence& sequence : input.sequences) tokens += sequence.valid();
  return tokens;
}

// The pairs of one sample that lie in layers which draw from memberships. The expected edges of other layers are their
// edges.
double SummedPairs(const Model& model, const ModelInput& input, double pairs) {
  if (!input.wanted.expected || input.graph.has_value()) return 0.0;
  const int32_t layers = model.config().num_hidden_layers;
  int32_t summed = 0;
  for (int32_t l = 0; l < layers; ++l) summed += NeedsMemberships(model.Choose(input, nullptr, l)) ? 1 : 0;
  return pairs * summed / layers;
}

// Solves a x = b for the terms in `subset`, the others zero; a is symmetric and positive definite. False: it is not.
template <typename Matrix, typename Vector>
bool Solve(Matrix a, Vector b, unsigned subset, Vector& x) {
  constexpr size_t n = std::tuple_size_v<Vector>;
  for (size_t i = 0; i < n; ++i) {
    if ((subset >> i & 1) != 0) continue;
    for (size_t j = 0; j < n; ++j) a[i][j] = a[j][i] = i == j ? 1.0 : 0.0;
    b[i] = 0.0;
  }
  for (size_t i = 0; i < n; ++i) {  // elimination without pivots
    if (!(a[i][i] > 0.0)) return false;
    for (size_t r = i + 1; r < n; ++r) {
      const double factor = a[r][i] / a[i][i];
      for (size_t c = i; c < n; ++c) a[r][c] -= factor * a[i][c];
      b[r] -= factor * b[i];
    }
  }
  for (size_t i = n; i-- > 0;) {
    x[i] = b[i];
    for (size_t c = i + 1; c < n; ++c) x[i] -= a[i][c] * x[c];
    x[i] /= a[i][i];
  }
  return true;
}

// One step of a running quantile, which the share `above` of what is seen exceeds.
void Follow(double& quantile, double seen, double step, double above) {
  quantile *= std::exp(seen > quantile ? step * (1.0 - above) / above : -step);
}

// Has a cap that keeps random edges. One that keeps the most probable is paid for with all edges.
bool PaysForCapOnly(const InputRun& run) { return run.max_edges != kNoCap && run.input->keep == CapRule::kRandom; }

}  // namespace

void CostModel::Observe(const Demand& demand, double seconds) {
  if (!(seconds > 0.0)) return;
  Terms terms = TermsOf(demand);
  for (double& term : terms) term /= seconds;
  const absl::MutexLock lock(&mutex_);
  const double predicted = PredictLocked(demand);
  if (predicted > 0.0) Follow(spread_, seconds / predicted, kLateStep, kShareLate);
  static const double kKept = std::exp2(-1.0 / kHalfLife);
  for (int i = 0; i < kTerms; ++i) {
    targets_[i] = targets_[i] * kKept + terms[i];
    for (int j = 0; j < kTerms; ++j) products_[i][j] = products_[i][j] * kKept + terms[i] * terms[j];
  }
  if (++observed_ <= kHalfLife || observed_ % kFitEvery == 0) Fit();
}

void CostModel::Anchor() {
  const absl::MutexLock lock(&mutex_);
  anchor_products_ = products_;
  anchor_targets_ = targets_;
  anchor_coefficients_ = coefficients_;
  spread_ = 1.0;  // of first observations it says nothing
}

// The ratio of recent times to those that the anchor predicts, fitted by least squares.
double CostModel::Slower() const {
  double once = 0.0, twice = 0.0;
  for (int i = 0; i < kTerms; ++i) {
    once += anchor_coefficients_[i] * targets_[i];
    for (int j = 0; j < kTerms; ++j) twice += anchor_coefficients_[i] * products_[i][j] * anchor_coefficients_[j];
  }
  return twice > 0.0 ? once / twice : 1.0;
}

// Least squares with coefficients of at least zero: of all subsets of terms, the best whose solution has none below.
void CostModel::Fit() {
  Terms scale;
  for (int i = 0; i < kTerms; ++i) scale[i] = products_[i][i] > 0.0 ? std::sqrt(products_[i][i]) : 1.0;
  std::array<Terms, kTerms> scaled;
  Terms targets;
  const double slower = Slower();
  for (int i = 0; i < kTerms; ++i) {
    targets[i] = (targets_[i] + kAnchor * anchor_targets_[i] / slower) / scale[i];
    for (int j = 0; j < kTerms; ++j) {
      const double anchor = kAnchor * anchor_products_[i][j] / (slower * slower);
      scaled[i][j] = (products_[i][j] + anchor) / (scale[i] * scale[j]);
    }
    scaled[i][i] += kRidge;
  }
  double best = std::numeric_limits<double>::infinity();
  unsigned seen = 0;  // terms that some request had
  for (int i = 0; i < kTerms; ++i) seen |= products_[i][i] > 0.0 || anchor_products_[i][i] > 0.0 ? 1u << i : 0;
  for (unsigned subset = 1; subset < 1u << kTerms; ++subset) {
    Terms found;
    if ((subset & ~seen) != 0 || !Solve(scaled, targets, subset, found)) continue;
    if (std::any_of(found.begin(), found.end(), [](double value) { return value < 0.0; })) continue;
    double gain = 0.0;  // of a least-squares solution: half of what it takes from the sum of squares
    for (int i = 0; i < kTerms; ++i) gain += found[i] * targets[i];
    if (-gain >= best) continue;
    best = -gain;
    for (int i = 0; i < kTerms; ++i) coefficients_[i] = found[i] / scale[i];
  }
}

double CostModel::Predict(const Demand& demand) const {
  const absl::MutexLock lock(&mutex_);
  return PredictLocked(demand);
}

double CostModel::Spread() const {
  const absl::MutexLock lock(&mutex_);
  return std::max(1.0, spread_);
}

double CostModel::PredictLocked(const Demand& demand) const {
  const Terms terms = TermsOf(demand);
  double seconds = 0.0;
  for (int i = 0; i < kTerms; ++i) seconds += coefficients_[i] * terms[i];
  return seconds;
}

Demand CostModel::Expected(const Model& model, const InputRun& run) const {
  const ModelInput& input = *run.input;
  const double tokens = TokensOf(input), pairs = static_cast<double>(model.Pairs(input));
  double samples = model.Samples(input) ? run.samples : 1.0;
  if (input.tolerance > 0.0) samples = LikelySamples(input.tolerance, samples);
  double edges = input.dense ? pairs : LikelyEdges(tokens, pairs);
  if (PaysForCapOnly(run)) edges = std::min(edges, static_cast<double>(run.max_edges));
  return {samples, samples * tokens, samples * pairs, samples * edges, samples * SummedPairs(model, input, pairs)};
}

Demand CostModel::Observed(const Model& model, const InputRun& run, const InputResult& result) {
  const ModelInput& input = *run.input;
  const double tokens = TokensOf(input), pairs = static_cast<double>(result.pairs);
  const bool own = !input.dense && input.attention == nullptr && !input.graph.has_value() && run.max_edges == kNoCap;
  if (own) ObserveEdges(tokens, pairs, result.edges);
  const bool all_drawn = run.max_edges != kNoCap && !PaysForCapOnly(run);
  const double edges = all_drawn ? LikelyEdges(tokens, pairs) : result.edges;
  double samples = model.Samples(input) ? result.samples : 1.0;
  if (model.Samples(input) && input.tolerance > 0.0) {
    ObserveSamples(input.tolerance, samples);
    samples = InWaves(samples, run.samples);
  }
  return {samples, samples * tokens, samples * pairs, samples * edges, samples * SummedPairs(model, input, pairs)};
}

double CostModel::LikelyEdges(double tokens, double pairs) const {
  const absl::MutexLock lock(&mutex_);
  const double density = density_[LengthOf(tokens)];
  return density > 0.0 ? std::min(density, 1.0) * pairs : pairs;
}

double CostModel::LikelySamples(double tolerance, double samples) const {
  const absl::MutexLock lock(&mutex_);
  const double variance = variance_[PlaceOf(tolerance)];
  if (variance == 0.0) return samples;
  const double step = std::exp(kStep * (1.0 - kShareAbove) / kShareAbove);  // that the quantile may lie above
  return InWaves(std::min(samples, variance / (tolerance * tolerance * step)), samples);
}

void CostModel::ObserveSamples(double tolerance, double used) {
  const double seen = used * tolerance * tolerance;
  const absl::MutexLock lock(&mutex_);
  double& variance = variance_[PlaceOf(tolerance)];
  if (variance == 0.0) {
    variance = seen;
  } else {
    Follow(variance, seen, kStep, kShareAbove);
  }
}

double CostModel::PredictGeneration(double prompt_tokens, double max_new_tokens) const {
  const absl::MutexLock lock(&mutex_);
  return token_seconds_ * (kPromptToken * prompt_tokens + length_ * max_new_tokens);
}

void CostModel::ObserveToken(double seconds) {
  const absl::MutexLock lock(&mutex_);
  token_seconds_ += kRecent * (seconds - token_seconds_);
}

void CostModel::ObservePrompt(double tokens, double seconds) { ObserveToken(seconds / (kPromptToken * tokens + 1.0)); }

void CostModel::ObserveLayer(double rows, double seconds) {
  const absl::MutexLock lock(&mutex_);
  layer_row_seconds_ = std::max(seconds / rows, layer_row_seconds_ * kForgetLayer);
}

double CostModel::LayerRows(double seconds) const {
  const absl::MutexLock lock(&mutex_);
  return layer_row_seconds_ > 0.0 ? seconds / layer_row_seconds_ : 0.0;
}

void CostModel::ObserveTokenLayer(double seconds) {
  const absl::MutexLock lock(&mutex_);
  token_layer_seconds_ = std::max(seconds, token_layer_seconds_ * kForgetLayer);
}

double CostModel::TokenLayers(double seconds) const {
  const absl::MutexLock lock(&mutex_);
  return token_layer_seconds_ > 0.0 ? seconds / token_layer_seconds_ : 0.0;
}

void CostModel::ObserveLength(double generated, double max_new_tokens) {
  const absl::MutexLock lock(&mutex_);
  length_ += kRecent * (generated / max_new_tokens - length_);
}

void CostModel::ObserveRequest(const Demand& demand, double size, double least_seconds) {
  const absl::MutexLock lock(&mutex_);
  const double part = usual_.passes > 0.0 ? kRecent : 1.0;
  const auto mix = [part](double& mean, double value) { mean += part * (value - mean); };
  mix(usual_.passes, demand.passes);
  mix(usual_.tokens, demand.tokens);
  mix(usual_.pairs, demand.pairs);
  mix(usual_.edges, demand.edges);
  mix(usual_.summed, demand.summed);
  if (!(least_seconds > 0.0 && size > 0.0)) return;
  const double seen = least_seconds / size;
  least_ = least_ > 0.0 ? std::min(seen, least_ * kForget) : seen;
}

double CostModel::Capacity() const {
  const absl::MutexLock lock(&mutex_);
  const double seconds = usual_.passes > 0.0 ? PredictLocked(usual_) : 0.0;
  return seconds > 0.0 ? 1.0 / seconds : 0.0;
}

double CostModel::LeastSeconds(double size) const {
  const absl::MutexLock lock(&mutex_);
  return least_ * size;
}

void CostModel::ObserveEdges(double tokens, double pairs, double edges) {
  if (!(pairs > 0.0)) return;
  const double seen = std::max(edges / pairs, 1e-9);
  const absl::MutexLock lock(&mutex_);
  double& density = density_[LengthOf(tokens)];
  if (density == 0.0) {
    density = seen;
  } else {
    Follow(density, seen, kStep, kShareAbove);
  }
}

}  // namespace edgewise::server
