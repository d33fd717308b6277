#include "client/metrics/f1.h"

#include <cstddef>
#include <map>

namespace edgewise {

std::optional<double> MacroF1(std::span<const int32_t> labels, std::span<const int32_t> answers) {
  if (labels.empty()) return std::nullopt;
  struct Counts {
    double hits = 0;
    double entries = 0;  // among labels and answers together
  };
  std::map<int32_t, Counts> classes;
  for (size_t i = 0; i < labels.size(); ++i) {
    ++classes[labels[i]].entries;
    ++classes[answers[i]].entries;
    if (labels[i] == answers[i]) ++classes[labels[i]].hits;
  }
  double sum = 0;
  for (const auto& [label, counts] : classes) sum += 2 * counts.hits / counts.entries;
  return sum / static_cast<double>(classes.size());
}

}  // namespace edgewise
