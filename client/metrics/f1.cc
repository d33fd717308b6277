#include "client/metrics/f1.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace edgewise {

std::optional<double> MacroF1(std::span<const std::vector<int32_t>> labels,
                              std::span<const std::vector<int32_t>> answers) {
  struct Counts {
    double hits = 0;
    double entries = 0;  // among labels and answers together
  };
  std::map<int32_t, Counts> classes;
  for (size_t i = 0; i < labels.size(); ++i) {
    for (const int32_t label : labels[i]) ++classes[label].entries;
    for (const int32_t answer : answers[i]) {
      ++classes[answer].entries;
      if (std::find(labels[i].begin(), labels[i].end(), answer) != labels[i].end()) ++classes[answer].hits;
    }
  }
  if (classes.empty()) return std::nullopt;
  double sum = 0;
  for (const auto& [label, counts] : classes) sum += 2 * counts.hits / counts.entries;
  return sum / static_cast<double>(classes.size());
}

}  // namespace edgewise
