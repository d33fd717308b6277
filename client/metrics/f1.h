// F1 of a classifier's answers.
#ifndef EDGEWISE_CLIENT_METRICS_F1_H_
#define EDGEWISE_CLIENT_METRICS_F1_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace edgewise {

// The mean over classes of F1 = 2 · hits / (labels of the class + answers of the class): all classes count alike,
// however rare. The classes are those that occur among `labels` or `answers`, which have one entry for each input: its
// classes, each once, one of them or, of a multi-label model, any number. Absent where no class occurs.
std::optional<double> MacroF1(std::span<const std::vector<int32_t>> labels,
                              std::span<const std::vector<int32_t>> answers);

}  // namespace edgewise

#endif  // EDGEWISE_CLIENT_METRICS_F1_H_
