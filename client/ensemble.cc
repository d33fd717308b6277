#include "edgewise/client/ensemble.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/merge_prediction.h"

namespace edgewise {
namespace {

absl::Status CheckPart(const v1::PredictResponse& part, size_t index, const v1::PredictResponse& first) {
  const std::string name = absl::StrCat("parts[", index, "].");
  absl::Status status = internal::CheckSame(name + "model", part.model(), first.model());
  status.Update(internal::CheckSame(name + "version", part.version(), first.version()));
  status.Update(internal::CheckSame(name + "seed", part.seed(), first.seed()));
  status.Update(internal::CheckSame(name + "device", part.device(), first.device()));
  status.Update(internal::CheckSame(name + "build", part.build(), first.build()));
  status.Update(internal::CheckSame(name + "sha256", part.sha256(), first.sha256()));
  status.Update(
      internal::CheckSame(name + "predictions: their number", part.predictions_size(), first.predictions_size()));
  return status;
}

v1::Timing MergeTimings(std::span<const v1::PredictResponse> parts) {
  v1::Timing merged;
  for (const v1::PredictResponse& part : parts) {
    const v1::Timing& timing = part.timing();
    merged.set_queue_us(std::max(merged.queue_us(), timing.queue_us()));
    merged.set_compute_us(merged.compute_us() + timing.compute_us());
    merged.set_total_us(std::max(merged.total_us(), timing.total_us()));
    merged.set_batch_inputs(std::max(merged.batch_inputs(), timing.batch_inputs()));
    merged.set_batch_tokens(std::max(merged.batch_tokens(), timing.batch_tokens()));
  }
  return merged;
}

}  // namespace

absl::StatusOr<v1::PredictResponse> MergeEnsembleParts(std::span<const v1::PredictResponse> parts,
                                                       std::span<const std::string> label_names) {
  if (parts.empty()) return absl::InvalidArgumentError("parts is empty; expected at least one");
  const v1::PredictResponse& first = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    if (absl::Status status = CheckPart(parts[i], i, first); !status.ok()) return status;
  }
  v1::PredictResponse merged;
  merged.set_model(first.model());
  merged.set_version(first.version());
  merged.set_seed(first.seed());
  merged.set_device(first.device());
  merged.set_build(first.build());
  merged.set_sha256(first.sha256());
  merged.set_request_id(first.request_id());
  if (first.has_settings()) {
    *merged.mutable_settings() = first.settings();
    merged.mutable_settings()->set_samples(0);
    for (const v1::PredictResponse& part : parts) {
      merged.mutable_settings()->set_samples(merged.settings().samples() + part.settings().samples());
    }
  }
  if (std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part.has_timing(); })) {
    *merged.mutable_timing() = MergeTimings(parts);
  }
  for (int input = 0; input < first.predictions_size(); ++input) {
    std::vector<const v1::Prediction*> predictions;
    for (const v1::PredictResponse& part : parts) predictions.push_back(&part.predictions(input));
    absl::StatusOr<v1::Prediction> prediction = internal::MergePrediction(predictions, input, label_names);
    if (!prediction.ok()) return prediction.status();
    *merged.add_predictions() = *std::move(prediction);
  }
  return merged;
}

}  // namespace edgewise
