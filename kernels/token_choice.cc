#include "kernels/token_choice.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/softmax.h"

namespace edgewise {
namespace {

struct Candidate {
  double probability;
  double weight;  // probability ^ (1 / temperature), over the largest
  int32_t id;
};

// Heap order: the largest probability on top, of equal ones the lowest id. Weights may be equal, by rounding or as
// zeros, where probabilities are not.
bool Below(const Candidate& a, const Candidate& b) {
  return a.probability != b.probability ? a.probability < b.probability : a.id > b.id;
}

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

}  // namespace

int32_t ChooseToken(const std::vector<double>& probabilities, const TokenChoice& choice) {
  const int32_t count = static_cast<int32_t>(probabilities.size());
  int32_t best = -1;
  for (int32_t id = 0; id < count; ++id) {
    if (id != choice.excluded && (best < 0 || probabilities[id] > probabilities[best])) best = id;
  }
  if (!(choice.temperature > 0.0) || !(probabilities[best] > 0.0)) return best;

  std::vector<Candidate> all;
  double total = 0.0;
  for (int32_t id = 0; id < count; ++id) {
    if (id == choice.excluded) continue;
    const double ratio = std::log(probabilities[id] / probabilities[best]);
    all.push_back({probabilities[id], std::exp(ratio / choice.temperature), id});
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

void HostTokenChooser::Add(ConstMatrix logits) {
  chosen_.reserve(choices_.size());
  for (int64_t r = 0; r < logits.rows; ++r) {
    const TokenChoice& choice = choices_[chosen_.size()];
    std::vector<double>& probabilities = samples_ == 0 ? mean_ : more_;
    finite_ &= AllFinite(logits.row(r), probabilities.size());
    Softmax(logits.row(r), probabilities);
    for (size_t c = 0; samples_ > 0 && c < mean_.size(); ++c) mean_[c] += more_[c];
    if (++samples_ < choice.samples) continue;
    for (size_t c = 0; choice.samples > 1 && c < mean_.size(); ++c) mean_[c] /= static_cast<double>(choice.samples);
    ChosenToken& chosen = chosen_.emplace_back();
    if (finite_) {
      chosen.id = ChooseToken(mean_, choice);
      chosen.log_probability = std::log(mean_[chosen.id]);
      chosen.finite = std::isfinite(chosen.log_probability);  // else all of it was the excluded token's
    }
    samples_ = 0;
    finite_ = true;
  }
}

}  // namespace edgewise
