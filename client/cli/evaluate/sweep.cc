#include "client/cli/evaluate/sweep.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace edgewise::cli {
namespace {

// "1%" or "0.01"; `entry` names it in an error.
absl::StatusOr<double> ParseCap(const std::string& entry, absl::string_view text) {
  absl::string_view number = text;
  const bool percent = absl::ConsumeSuffix(&number, "%");
  double value = 0;
  if (absl::SimpleAtod(number, &value)) {
    const double density = percent ? value / 100.0 : value;
    if (density > 0.0 && density <= 1.0) return density;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(entry, " is \"", text, "\"; expected a density above 0 and at most 100 %, as 5% or 0.05"));
}

absl::StatusOr<std::vector<double>> ParseCaps(const std::string& text) {
  std::vector<double> caps;
  if (text.empty()) return caps;
  for (const absl::string_view piece : absl::StrSplit(text, ',')) {
    absl::StatusOr<double> cap = ParseCap(absl::StrCat("--caps[", caps.size(), "]"), absl::StripAsciiWhitespace(piece));
    if (!cap.ok()) return cap.status();
    caps.push_back(*cap);
  }
  return caps;
}

// `example` ends the message: "1 or 1,16".
absl::StatusOr<std::vector<uint32_t>> ParseCounts(const char* flag, const std::string& text, const char* example) {
  std::vector<uint32_t> counts;
  for (const absl::string_view piece : absl::StrSplit(text, ',')) {
    uint32_t count = 0;
    if (!absl::SimpleAtoi(piece, &count) || count == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, "[", counts.size(), "] is \"", piece,
                                                     "\"; expected numbers from 1 up, as ", example));
    }
    counts.push_back(count);
  }
  return counts;
}

void ClearBlocks(CostFlags& cost) {
  cost.block_pattern.clear();
  cost.block_width.reset();
  cost.block_stride = 0;
  cost.block_threshold.reset();
}

}  // namespace

void SweepFlags::Register(FlagSet& flags, CostFlags& cost) {
  flags.Add("caps", "1%,10%", "hard caps on the density, as 1% or 0.01; without it none is tried", &caps);
  cost.RegisterKeep(flags);
  flags.Add("samples", "N[,N]", "forward passes to average over; each number has its own rows", &samples);
  flags.Add("windows", "W[,W]", "SSA in W windows with sources near them, each number a setting; with --sigma",
            &windows);
  flags.Add("window_tokens", "W[,W]", "SSA in windows of W tokens; with --sigma", &window_tokens);
  flags.Add("keep", "K[,K]", "SSA to K sources for all queries of a layer", &keep);
  flags.Add("block_size", "B[,B]", "blocks of B tokens; with --block_pattern", &block_size);
  cost.RegisterShape(flags);
}

absl::StatusOr<std::vector<v1::AttentionOverride>> SweepFlags::MakeOverrides(const CostFlags& cost) const {
  if (!windows.empty() && !window_tokens.empty()) {
    return absl::InvalidArgumentError(
        "--windows and --window_tokens exclude each other: --sigma is a share of the length with one, in tokens with "
        "the other");
  }
  struct List {
    const char* flag;
    const std::string& text;
    uint32_t CostFlags::*field;
    bool has_sigma;
    bool blocks;
  };
  const List lists[] = {{"windows", windows, &CostFlags::windows, true, false},
                        {"window_tokens", window_tokens, &CostFlags::window_tokens, true, false},
                        {"keep", keep, &CostFlags::keep, false, false},
                        {"block_size", block_size, &CostFlags::block_size, false, true}};
  // A flag goes to those settings that it is for. One that is for none stays, and the server says so.
  const bool sigma_is_used = !windows.empty() || !window_tokens.empty();
  std::vector<CostFlags> all;
  for (const List& list : lists) {
    if (list.text.empty()) continue;
    const absl::StatusOr<std::vector<uint32_t>> counts = ParseCounts(list.flag, list.text, "4 or 4,8");
    if (!counts.ok()) return counts.status();
    for (const uint32_t count : *counts) {
      CostFlags& one = all.emplace_back(cost);
      one.*list.field = count;
      if (!list.blocks && !cost.block_pattern.empty()) ClearBlocks(one);
      if (!list.has_sigma && sigma_is_used) one.sigma.clear();
    }
  }
  // A pattern whose blocks have the model's own size; or flags that go with nothing, which is an error.
  const bool unsized = block_size.empty() && !cost.block_pattern.empty();
  if (all.empty() || unsized) {
    CostFlags& one = all.emplace_back(cost);
    if (sigma_is_used) one.sigma.clear();
  }
  std::vector<v1::AttentionOverride> overrides;
  for (const CostFlags& one : all) {
    absl::StatusOr<std::optional<v1::AttentionOverride>> override = one.MakeOverride();
    if (!override.ok()) return override.status();
    if (*override) overrides.push_back(**std::move(override));
  }
  return overrides;
}

absl::StatusOr<std::vector<Setting>> SweepFlags::MakeSettings(const CostFlags& cost) const {
  if (!cost.keep_edges.empty() && caps.empty()) return absl::InvalidArgumentError("--keep_edges goes with --caps");
  const absl::StatusOr<std::vector<double>> densities = ParseCaps(caps);
  if (!densities.ok()) return densities.status();
  const absl::StatusOr<std::vector<uint32_t>> counts = ParseCounts("samples", samples, "1 or 1,16");
  if (!counts.ok()) return counts.status();
  const absl::StatusOr<std::vector<v1::AttentionOverride>> overrides = MakeOverrides(cost);
  if (!overrides.ok()) return overrides.status();
  std::vector<std::optional<v1::AttentionOverride>> attentions(overrides->begin(), overrides->end());
  if (attentions.empty()) attentions.emplace_back();  // the model's own
  std::vector<Setting> settings = {{.dense = true}};
  for (const uint32_t count : *counts) {
    for (const std::optional<v1::AttentionOverride>& attention : attentions) {
      settings.push_back({.override = attention, .samples = count});
      for (const double density : *densities) {
        settings.push_back({.override = attention, .cap = density, .samples = count});
      }
    }
  }
  return settings;
}

}  // namespace edgewise::cli
