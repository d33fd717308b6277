// Merges the predictions that the parts of an ensemble made for one input. Internal to the library.
#ifndef EDGEWISE_CLIENT_MERGE_PREDICTION_H_
#define EDGEWISE_CLIENT_MERGE_PREDICTION_H_

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::internal {

// InvalidArgument where a field of a part differs from that of parts[0]; `field` names it with the part in front.
template <typename T>
absl::Status CheckSame(const std::string& field, const T& found, const T& expected) {
  if (found == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", found, ", but parts[0] has ", expected));
}

// Calls visit(id, text) for the labels that a prediction names.
template <typename Visit>
void VisitLabels(const v1::Prediction& prediction, Visit visit) {
  visit(prediction.label_id(), prediction.label());
  for (const v1::Prediction::Top& top : prediction.top()) visit(top.label_id(), top.label());
  for (const v1::TokenPrediction& token : prediction.tokens()) {
    if (token.pad()) continue;
    visit(token.label_id(), token.label());
    for (const v1::Prediction::Top& top : token.top()) visit(top.label_id(), top.label());
  }
}

// parts: the same input's prediction in every part, in sample order; at least one. Error messages start with
// "parts[i].predictions[`input`]". See edgewise/client/ensemble.h.
absl::StatusOr<v1::Prediction> MergePrediction(std::span<const v1::Prediction* const> parts, int input,
                                               std::span<const std::string> label_names);

// Edges of the parts, whose sample outputs are complete.
absl::StatusOr<v1::EdgeReport> MergeEdges(std::span<const v1::Prediction* const> parts, int input);

}  // namespace edgewise::internal

#endif  // EDGEWISE_CLIENT_MERGE_PREDICTION_H_
