#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "client/merge_prediction.h"

namespace edgewise::internal {
namespace {

constexpr double kWhole = 1.0;                     // counts
constexpr double kExpectedUnit = 1.0 / (1 << 20);  // expected edges

// Nothing of these depends on the samples.
absl::Status CheckEdges(std::span<const v1::Prediction* const> parts, int input) {
  const v1::EdgeReport& first = parts[0]->edges();
  for (size_t i = 1; i < parts.size(); ++i) {
    const v1::EdgeReport& edges = parts[i]->edges();
    const std::string name = absl::StrCat("parts[", i, "].predictions[", input, "].edges.");
    absl::Status status = CheckSame(name + "pairs", edges.pairs(), first.pairs());
    status.Update(CheckSame(name + "budget", edges.budget(), first.budget()));
    status.Update(CheckSame(name + "layers: their number", edges.layers_size(), first.layers_size()));
    for (int l = 0; status.ok() && l < first.layers_size(); ++l) {
      const auto& heads = edges.layers(l).heads();
      const auto& first_heads = first.layers(l).heads();
      status = CheckSame(name + "layers.heads: their number", heads.size(), first_heads.size());
      for (int h = 0; status.ok() && h < heads.size(); ++h) {
        status = CheckSame(name + "layers.heads.key_degrees: their number", heads[h].key_degrees_size(),
                           first_heads[h].key_degrees_size());
      }
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// A sum that is a multiple of `unit`, recovered from its mean over `samples` values: rounding undoes the division
// exactly while the sum is below 2^51 units.
double SumFromMean(double mean, uint32_t samples, double unit) { return std::round(mean * samples / unit) * unit; }

// Mean over all samples of what `value` gives as a mean over each part's samples.
template <typename Value>
double MergeMeans(std::span<const v1::Prediction* const> parts, uint32_t samples, double unit, Value value) {
  double sum = 0.0;
  for (const v1::Prediction* part : parts) sum += SumFromMean(value(part->edges()), part->samples(), unit);
  return sum / samples;
}

v1::EdgeReport::HeadEdges MergeHead(std::span<const v1::Prediction* const> parts, uint32_t samples, int l, int h) {
  auto head = [l, h](const v1::EdgeReport& edges) -> const v1::EdgeReport::HeadEdges& {
    return edges.layers(l).heads(h);
  };
  v1::EdgeReport::HeadEdges merged;
  merged.set_edges(MergeMeans(parts, samples, kWhole, [&](const auto& edges) { return head(edges).edges(); }));
  merged.set_expected(
      MergeMeans(parts, samples, kExpectedUnit, [&](const auto& edges) { return head(edges).expected(); }));
  *merged.mutable_key_degrees() = head(parts[0]->edges()).key_degrees();
  for (const v1::Prediction* part : parts.subspan(1)) {
    for (int key = 0; key < merged.key_degrees_size(); ++key) {
      merged.set_key_degrees(key, merged.key_degrees(key) + head(part->edges()).key_degrees(key));
    }
  }
  return merged;
}

}  // namespace

absl::StatusOr<v1::EdgeReport> MergeEdges(std::span<const v1::Prediction* const> parts, int input) {
  if (absl::Status status = CheckEdges(parts, input); !status.ok()) return status;
  v1::EdgeReport merged;
  uint32_t samples = 0;
  uint64_t edges = 0;
  uint64_t largest = 0;
  bool capped = false;
  for (const v1::Prediction* part : parts) {
    samples += part->samples();
    capped = capped || part->edges().capped();
    for (const v1::SampleOutput& sample : part->sample_outputs()) {
      edges += sample.edges();
      largest = std::max<uint64_t>(largest, sample.edges());
    }
  }
  const v1::EdgeReport& first = parts[0]->edges();
  merged.set_edges(static_cast<double>(edges) / samples);
  merged.set_pairs(first.pairs());
  merged.set_density(first.pairs() == 0 ? 0.0 : merged.edges() / static_cast<double>(first.pairs()));
  merged.set_budget(first.budget());
  merged.set_capped(capped);
  merged.set_max_sample_edges(largest);
  merged.set_expected_edges(
      MergeMeans(parts, samples, kExpectedUnit, [](const auto& report) { return report.expected_edges(); }));
  merged.set_isolated_queries(
      MergeMeans(parts, samples, kWhole, [](const auto& report) { return report.isolated_queries(); }));
  for (int l = 0; l < first.layers_size(); ++l) {
    v1::EdgeReport::LayerEdges* layer = merged.add_layers();
    for (int h = 0; h < first.layers(l).heads_size(); ++h) *layer->add_heads() = MergeHead(parts, samples, l, h);
  }
  return merged;
}

}  // namespace edgewise::internal
