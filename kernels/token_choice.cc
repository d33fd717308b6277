#include "kernels/token_choice.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/softmax.h"

namespace edgewise {
namespace {

struct Candidate {
  double value;   // its probability, or its score
  double weight;  // probability ^ (1 / temperature), over the largest
  int32_t id;
};

// Heap order: the largest value on top, of equal ones the lowest id. Weights may be equal, by rounding or as zeros,
// where values are not.
bool Below(const Candidate& a, const Candidate& b) { return a.value != b.value ? a.value < b.value : a.id > b.id; }

// Takes candidates in descending order, as far as they are needed: a vocabulary is rarely sorted to its end.
class Descending {
 public:
  explicit Descending(std::vector<Candidate> candidates) : heap_(std::move(candidates)) {
    std::make_heap(heap_.begin(), heap_.end(), Below);
  }
  bool empty() const { return heap_.empty(); }
  Candidate Next() {
    std::pop_heap(heap_.begin(), heap_.end(), Below);
    const Candidate next = heap_.back();
    heap_.pop_back();
    return next;
  }

 private:
  std::vector<Candidate> heap_;
};

// Scores from probabilities.
std::vector<double> Penalize(const std::vector<double>& probabilities, const TokenPenalties& penalties) {
  std::vector<double> scores(probabilities.size());
  std::transform(probabilities.begin(), probabilities.end(), scores.begin(), [](double p) { return std::log(p); });
  for (const auto& [id, times] : penalties.seen) {
    double& score = scores[static_cast<size_t>(id)];
    if (times > 0) score -= penalties.presence + penalties.frequency * static_cast<double>(times);
    score = score > 0.0 ? score / penalties.repetition : score * penalties.repetition;
  }
  return scores;
}

// The entropy of a row: as EntropyOf, but without a logarithm of each probability.
double EntropyOfRow(const float* logits, const std::vector<double>& probabilities) {
  const auto best = std::max_element(probabilities.begin(), probabilities.end());
  const double largest = logits[best - probabilities.begin()];
  double moment = 0.0;
  for (size_t c = 0; c < probabilities.size(); ++c) moment += probabilities[c] * (logits[c] - largest);
  return std::max(0.0, -std::log(*best) - moment);
}

double EntropyOf(const std::vector<double>& probabilities) {
  double entropy = 0.0;
  for (const double p : probabilities) {
    if (p > 0.0) entropy -= p * std::log(p);
  }
  return entropy;
}

}  // namespace

TokenAlternatives MostProbable(std::span<const double> probabilities, uint32_t count, int32_t excluded) {
  std::vector<TokenProbability> all;
  for (size_t id = 0; id < probabilities.size(); ++id) {
    if (static_cast<int32_t>(id) == excluded || !(probabilities[id] > 0.0)) continue;
    all.push_back({static_cast<int32_t>(id), probabilities[id]});
  }
  const auto end = all.begin() + static_cast<int64_t>(std::min<size_t>(count, all.size()));
  std::partial_sort(all.begin(), end, all.end(), [](const TokenProbability& a, const TokenProbability& b) {
    return a.log_probability != b.log_probability ? a.log_probability > b.log_probability : a.id < b.id;
  });
  TokenAlternatives most(all.begin(), end);
  for (TokenProbability& one : most) one.log_probability = std::log(one.log_probability);
  return most;
}

int32_t ChooseToken(const std::vector<double>& probabilities, const TokenChoice& choice) {
  const bool scored = choice.penalties != nullptr;
  const std::vector<double> scores = scored ? Penalize(probabilities, *choice.penalties) : std::vector<double>();
  const std::vector<double>& values = scored ? scores : probabilities;
  const int32_t count = static_cast<int32_t>(probabilities.size());
  int32_t best = -1;
  for (int32_t id = 0; id < count; ++id) {
    if (id != choice.excluded && (best < 0 || values[id] > values[best])) best = id;
  }
  if (!(choice.temperature > 0.0) || !(probabilities[best] > 0.0)) return best;

  std::vector<Candidate> all;
  double total = 0.0;
  for (int32_t id = 0; id < count; ++id) {
    if (id == choice.excluded) continue;
    const double ratio = scored ? values[id] - values[best] : std::log(probabilities[id] / probabilities[best]);
    all.push_back({values[id], std::exp(ratio / choice.temperature), id});
    total += all.back().weight;
  }
  Descending descending(std::move(all));
  std::vector<Candidate> kept;
  if (choice.top_k > 0) {
    total = 0.0;
    while (!descending.empty() && kept.size() < choice.top_k) {
      kept.push_back(descending.Next());
      total += kept.back().weight;
    }
    descending = Descending(kept);
  }
  if (choice.top_p > 0.0) {
    const double share = choice.top_p * total;
    kept.clear();
    total = 0.0;
    while (!descending.empty() && (kept.empty() || total < share)) {
      kept.push_back(descending.Next());
      total += kept.back().weight;
    }
    descending = Descending(kept);
  }
  if (choice.min_p > 0.0) {  // the largest weight is 1
    kept.clear();
    total = 0.0;
    while (!descending.empty()) {
      const Candidate next = descending.Next();
      if (!(next.weight >= choice.min_p)) break;
      kept.push_back(next);
      total += next.weight;
    }
    descending = Descending(kept);
  }
  double sum = 0.0;
  while (!descending.empty()) {
    const Candidate next = descending.Next();
    if (!(next.weight > 0.0)) break;
    best = next.id;  // the last one, should rounding leave the sum below
    sum += next.weight;
    if (sum > choice.uniform * total) break;
  }
  return best;
}

void HostTokenChooser::Choose(const TokenChoice& choice) {
  const double samples = choice.samples;
  for (size_t c = 0; choice.samples > 1 && c < mean_.size(); ++c) mean_[c] /= samples;
  ChosenToken& chosen = chosen_.emplace_back();
  TokenAlternatives& alternatives = alternatives_.emplace_back();
  if (!finite_) return;
  chosen.id = ChooseToken(mean_, choice);
  chosen.log_probability = std::log(mean_[chosen.id]);
  chosen.predictive_entropy = choice.samples > 1 ? EntropyOf(mean_) : entropies_;
  if (choice.samples > 1) {
    chosen.mutual_information = std::max(0.0, chosen.predictive_entropy - entropies_ / samples);
  }
  chosen.finite = std::isfinite(chosen.log_probability);  // else all of it was the excluded token's
  if (choice.alternatives > 0) alternatives = MostProbable(mean_, choice.alternatives, choice.excluded);
}

void HostTokenChooser::Add(ConstMatrix logits) {
  chosen_.reserve(choices_.size());
  alternatives_.reserve(choices_.size());
  for (int64_t r = 0; r < logits.rows; ++r) {
    const TokenChoice& choice = choices_[chosen_.size()];
    std::vector<double>& probabilities = samples_ == 0 ? mean_ : more_;
    finite_ &= AllFinite(logits.row(r), probabilities.size());
    Softmax(logits.row(r), probabilities);
    if (finite_) entropies_ += EntropyOfRow(logits.row(r), probabilities);
    for (size_t c = 0; samples_ > 0 && c < mean_.size(); ++c) mean_[c] += more_[c];
    if (++samples_ < choice.samples) continue;
    Choose(choice);
    samples_ = 0;
    entropies_ = 0.0;
    finite_ = true;
  }
}

}  // namespace edgewise
