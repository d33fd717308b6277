// The flags that several commands share, and the requests that they make.
#ifndef EDGEWISE_CLIENT_CLI_REQUEST_OPTIONS_H_
#define EDGEWISE_CLIENT_CLI_REQUEST_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/flag_set.h"
#include "client/cli/request/connection.h"
#include "client/cli/request/inputs.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::cli {

// The model and the cost of an answer: flags of every command that computes. PredictRequest and GenerateRequest have
// the same fields for them.
struct CostFlags {
  std::string model;
  int64_t version = 0;
  std::optional<uint64_t> max_edges;
  std::optional<double> max_density;
  std::string keep_edges;
  std::optional<uint32_t> samples;
  std::optional<uint64_t> seed;
  bool dense = false;
  uint32_t windows = 0;
  uint32_t window_tokens = 0;
  uint32_t keep = 0;
  std::string sigma;
  std::string block_pattern;
  uint32_t block_size = 0;
  std::optional<uint32_t> block_width;
  uint32_t block_stride = 0;
  std::optional<double> block_threshold;
  uint32_t last_layers = 0;
  uint32_t priority = 0;
  std::string profile;

  void RegisterModel(FlagSet& flags);
  void RegisterCost(FlagSet& flags);
  void RegisterKeep(FlagSet& flags);  // part of RegisterCost(), as the next
  void RegisterOverride(FlagSet& flags);
  void RegisterShape(FlagSet& flags);  // part of RegisterOverride(): all but the sizes and counts
  // Empty: the flags ask for no override. Whether the fields go together is the server's to say.
  absl::StatusOr<std::optional<v1::AttentionOverride>> MakeOverride() const;
  template <typename Request>
  absl::Status Apply(Request& request) const;

 private:
  absl::Status Check() const;
  // False: there is no --keep_edges, or it names nothing.
  bool FindKeep(v1::Keep* keep) const;
};

// "head", "tail" or "".
absl::StatusOr<v1::Truncate> ParseTruncate(const std::string& truncate);

// Sets what to do with a sequence that is too long.
void SetTruncate(v1::Truncate how, std::vector<LabelledInput>& inputs);

// Sets the prompt of the texts of inputs that name none. Null: leaves them as they are.
void SetPrompt(const std::optional<std::string>& name, std::vector<LabelledInput>& inputs);

// The inputs and the options of a request: flags of predict and bench.
struct RequestFlags : CostFlags {
  std::optional<std::string> text;
  std::optional<std::string> token_ids;
  std::optional<std::string> image;  // a file's path
  std::optional<std::string> input;
  std::optional<std::string> second_text;
  std::optional<std::string> second_token_ids;
  std::optional<std::string> prompt_name;
  std::string truncate;
  bool allow_degraded = false;
  bool fit_deadline = false;
  double tolerance = 0;
  uint32_t first_sample = 0;
  uint32_t top_k = 0;
  uint32_t stride = 0;

  void Register(FlagSet& flags);
  // Everything but the inputs.
  absl::StatusOr<v1::PredictRequest> MakeRequest() const;
  // At least one; from --text, --token_ids, --image or the file of --input.
  absl::StatusOr<std::vector<LabelledInput>> ReadInputs() const;
};

template <typename Request>
absl::Status CostFlags::Apply(Request& request) const {
  if (absl::Status status = Check(); !status.ok()) return status;
  absl::StatusOr<std::optional<v1::AttentionOverride>> override = MakeOverride();
  if (!override.ok()) return override.status();
  request.set_model(model);
  request.set_version(version);
  if (max_edges) request.mutable_budget()->set_max_edges(*max_edges);
  if (max_density) request.mutable_budget()->set_max_density(*max_density);
  if (v1::Keep keep; FindKeep(&keep)) request.mutable_budget()->set_keep(keep);
  if (samples) request.mutable_ensemble()->set_samples(*samples);
  if (seed) request.mutable_ensemble()->set_seed(*seed);
  if (dense) request.set_attention(v1::DENSE);
  if (*override) *request.mutable_override() = **std::move(override);
  request.set_priority(priority);
  request.set_profile(profile);
  return absl::OkStatus();
}

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_REQUEST_OPTIONS_H_
