// The settings that `edgewise evaluate` compares, from its flags.
#ifndef EDGEWISE_CLIENT_CLI_EVALUATE_SWEEP_H_
#define EDGEWISE_CLIENT_CLI_EVALUATE_SWEEP_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/flag_set.h"
#include "client/cli/evaluate/evaluation.h"
#include "client/cli/request/options.h"

namespace edgewise::cli {

// Each list is one flag. Every override is tried without a cap and under each cap, with each number of samples; without
// an override the model's own attention is.
struct SweepFlags {
  std::string caps;
  std::string samples = "1";
  std::string windows;
  std::string window_tokens;
  std::string keep;
  std::string block_size;

  // `cost` has the flags that are no lists: `keep_edges` and the shape of overrides.
  void Register(FlagSet& flags, CostFlags& cost);

  // Dense attention first; it draws nothing, so one sample says all. InvalidArgument names the flag and the entry.
  absl::StatusOr<std::vector<Setting>> MakeSettings(const CostFlags& cost) const;

 private:
  absl::StatusOr<std::vector<v1::AttentionOverride>> MakeOverrides(const CostFlags& cost) const;
};

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_EVALUATE_SWEEP_H_
