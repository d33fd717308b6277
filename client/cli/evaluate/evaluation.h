// Measures a budget: the same inputs under several settings, one call at a time. The settings take turns for each
// input, so that other load on the machine affects all of them alike.
#ifndef EDGEWISE_CLIENT_CLI_EVALUATE_EVALUATION_H_
#define EDGEWISE_CLIENT_CLI_EVALUATE_EVALUATION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/evaluate/quality.h"
#include "client/cli/request/inputs.h"
#include "edgewise/client/client.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::cli {

// One way to ask the model.
struct Setting {
  bool dense = false;                             // attend to every pair
  std::optional<v1::AttentionOverride> override;  // absent: the model's own attention
  std::optional<double> cap;                      // density, in (0, 1]
  uint32_t samples = 1;

  std::string Name() const;  // "dense", "no cap", "cap 1 %", "windows 4", "local blocks of 16, cap 1 %"
};

// One setting's answers: a row of the table. Sums are over answers: inputs times repeats. The two texts of a pair for
// an embedding model are one input, whose edges and pairs are those of both.
struct SettingResult {
  Setting setting;
  uint64_t answered = 0;
  uint64_t capped = 0;   // answers of which edges were dropped
  uint64_t refused = 0;  // how often the cap was below the least possible
  std::string refusal;   // of the first of these: the server's words
  uint64_t over = 0;     // answers above their cap: a fault
  std::string fault;     // the first of these
  double density = 0, edges = 0, mutual_information = 0;
  uint64_t most_edges = 0;         // of one sample
  double most_of_cap = 0;          // the same as a share of the cap, the largest
  std::vector<double> compute_ms;  // one for every answer, as the next two
  std::vector<double> total_ms;
  std::vector<double> speed;     // compute time of the dense answer to the same input in the same turn / of this one
  Quality quality;               // of all answers
  std::vector<Quality> repeats;  // of those of each repeat

  double Mean(double sum) const { return answered == 0 ? 0.0 : sum / static_cast<double>(answered); }
};

struct Evaluation {
  v1::PredictResponse first;  // says which model answered, and on what device
  uint64_t failed = 0;        // how often an input had no answer for another reason than its cap; left out of every row
  std::string failure;        // the first of these
  std::vector<SettingResult> rows;
};

// Called before every input.
using EvaluationProgress = std::function<void(uint64_t done, uint64_t all)>;

// `base`: the model and, where wanted, what caps keep; its seed is that of the first repeat, the next one has the seed
// after it. The first of `settings` must be the dense one. Fails where no further input would fare better, and with
// InvalidArgument where the labels of an input, or their names, do not fit the model: the message names the place.
absl::StatusOr<Evaluation> Evaluate(Client& client, const v1::PredictRequest& base, std::vector<LabelledInput> inputs,
                                    const std::vector<Setting>& settings, uint32_t repeats,
                                    const EvaluationProgress& progress);

// The quantile at `share` (0.5 is the median), by linear interpolation. 0 for no values.
double Quantile(std::vector<double> values, double share);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_EVALUATE_EVALUATION_H_
