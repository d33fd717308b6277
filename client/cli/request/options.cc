#include "client/cli/request/options.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace edgewise::cli {

void CostFlags::RegisterModel(FlagSet& flags) {
  flags.Add("model", "NAME", "the model to ask; `edgewise models` lists them", &model);
  flags.Add("version", "N", "the model's version; 0: the latest", &version);
}

void CostFlags::RegisterCost(FlagSet& flags) {
  flags.Add("max_edges", "N", "hard cap on attended pairs per input (generate: per token) and sample", &max_edges);
  flags.Add("max_density", "D", "the same as a share of all pairs, in (0, 1]", &max_density);
  RegisterKeep(flags);
  flags.Add("samples", "N", "forward passes to average over; default: the profile's, else 1", &samples);
  flags.Add("seed", "S", "makes the answer repeatable; without it the server draws one", &seed);
  flags.AddSwitch("dense", "attend to every pair, whatever the model does", &dense);
  RegisterOverride(flags);
  flags.Add("priority", "P", "0: default; 1: highest", &priority);
  flags.Add("profile", "NAME", "the model's profile for what is left open; none: no profile", &profile);
}

void CostFlags::RegisterKeep(FlagSet& flags) {
  flags.Add("keep_edges", "random|probable", "attention sbm: the edges that a cap keeps; default: the model's",
            &keep_edges);
}

void CostFlags::RegisterOverride(FlagSet& flags) {
  flags.Add("windows", "W", "attend by SSA, in W windows with sources near them; with --sigma", &windows);
  flags.Add("window_tokens", "W", "attend by SSA, in windows of W tokens; with --sigma", &window_tokens);
  flags.Add("keep", "K", "attend by SSA, to K sources for all queries of a layer", &keep);
  flags.Add("block_size", "B", "the tokens of a block; with --block_pattern", &block_size);
  RegisterShape(flags);
}

void CostFlags::RegisterShape(FlagSet& flags) {
  flags.Add("sigma", "A[,B]",
            "how far sources may come from, as a share of the length, with --window_tokens in tokens; "
            "first and last layer",
            &sigma);
  flags.Add("block_pattern", "NAME",
            "attend by blocks: diagonal, local, strided or first_and_diagonal, with --block_size; "
            "learned with --block_threshold",
            &block_pattern);
  flags.Add("block_width", "N", "pattern local: blocks on each side; default: 1", &block_width);
  flags.Add("block_stride", "N", "pattern strided: every Nth block", &block_stride);
  flags.Add("block_threshold", "T", "pattern learned: the least sigmoid of a block's score", &block_threshold);
  flags.Add("last_layers", "L", "SSA or blocks in the last L layers only", &last_layers);
}

absl::Status CostFlags::Check() const {
  if (model.empty()) return absl::InvalidArgumentError("--model is missing");
  if (version < 0) return absl::InvalidArgumentError(absl::StrCat("--version is ", version, "; expected >= 0"));
  if (max_edges && max_density) {
    return absl::InvalidArgumentError("--max_edges and --max_density exclude each other");
  }
  if (max_edges && *max_edges == 0) return absl::InvalidArgumentError("--max_edges is 0; expected >= 1");
  if (max_density && !(*max_density > 0.0 && *max_density <= 1.0)) {
    return absl::InvalidArgumentError(absl::StrCat("--max_density is ", *max_density, "; expected in (0, 1]"));
  }
  if (v1::Keep keep; !keep_edges.empty() && !FindKeep(&keep)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--keep_edges is \"", keep_edges, "\"; expected random or probable"));
  }
  if (samples && *samples == 0) return absl::InvalidArgumentError("--samples is 0; expected >= 1");
  return absl::OkStatus();
}

bool CostFlags::FindKeep(v1::Keep* keep) const {
  *keep = keep_edges == "probable" ? v1::PROBABLE : v1::RANDOM;
  return keep_edges == "probable" || keep_edges == "random";
}

absl::StatusOr<std::optional<v1::AttentionOverride>> CostFlags::MakeOverride() const {
  const bool ssa = windows > 0 || window_tokens > 0 || keep > 0, blocks = !block_pattern.empty();
  if (!ssa && !blocks) {
    const std::pair<const char*, bool> parts[] = {{"--sigma", !sigma.empty()},
                                                  {"--block_size", block_size > 0},
                                                  {"--block_width", block_width.has_value()},
                                                  {"--block_stride", block_stride > 0},
                                                  {"--block_threshold", block_threshold.has_value()},
                                                  {"--last_layers", last_layers > 0}};
    for (const auto& [flag, given] : parts) {
      if (given) {
        return absl::InvalidArgumentError(absl::StrCat(
            flag, " goes with ", absl::StartsWith(flag, "--block") ? "" : "--windows, --window_tokens, --keep or ",
            "--block_pattern"));
      }
    }
    return std::optional<v1::AttentionOverride>();
  }
  if ((windows > 0) + (window_tokens > 0) + (keep > 0) + blocks > 1) {
    return absl::InvalidArgumentError("--windows, --window_tokens, --keep and --block_pattern exclude each other");
  }
  if (dense) {
    return absl::InvalidArgumentError("--dense excludes --windows, --window_tokens, --keep and --block_pattern");
  }
  if (windows > 0 && sigma.empty()) return absl::InvalidArgumentError("--windows needs --sigma, such as --sigma=0.1");
  if (window_tokens > 0 && sigma.empty()) {
    return absl::InvalidArgumentError("--window_tokens needs --sigma, such as --sigma=16");
  }
  v1::AttentionOverride override;
  override.set_kind(ssa ? "ssa" : "block");
  override.set_windows(windows);
  override.set_window_tokens(window_tokens);
  override.set_keep(keep);
  override.set_pattern(block_pattern);
  override.set_block_size(block_size);
  if (block_width) override.set_width(*block_width);
  override.set_stride(block_stride);
  if (block_threshold) override.set_threshold(*block_threshold);
  override.set_last_layers(last_layers);
  for (const auto& piece : absl::StrSplit(sigma, ',', absl::SkipWhitespace())) {
    double value = 0.0;
    if (!absl::SimpleAtod(piece, &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--sigma is \"", sigma, "\"; expected numbers, as 0.1 or 0.1,0.3"));
    }
    override.add_sigma(value);
  }
  return std::optional<v1::AttentionOverride>(std::move(override));
}

void RequestFlags::Register(FlagSet& flags) {
  flags.Section("Input (one of --text, --token_ids, --image, --input)");
  RegisterModel(flags);
  flags.Add("text", "TEXT", "text, through the model's tokenizer", &text);
  flags.Add("token_ids", "1,2,3", "token ids", &token_ids);
  flags.Add("image", "FILE", "a PNG or JPEG file, for models of images", &image);
  flags.Add(
      "input", "FILE",
      "JSON lines (- for standard input): {\"text\": ...}, {\"token_ids\": [...]}, {\"features\": [[...], ...]} or "
      "{\"image\": FILE}, and optional \"bias_values\" or \"bias_buckets\" ([[...], ...]) and \"prompt_name\", the "
      "same with \"second_\" in front, \"label\" (a number or a name), \"labels\", \"value\"",
      &input);
  flags.Add("second_text", "TEXT", "the second text of a pair", &second_text);
  flags.Add("second_token_ids", "1,2,3", "the second sequence of a pair", &second_token_ids);
  flags.Add("prompt_name", "NAME", "the model's prompt that goes before the text; empty: none, not the default one",
            &prompt_name);
  flags.Add("truncate", "head|tail", "drop tokens there where the input is too long; otherwise refused", &truncate);
  flags.Section("Cost and uncertainty");
  RegisterCost(flags);
  flags.AddSwitch("allow_degraded", "where time is short the server may compute fewer samples, then edges",
                  &allow_degraded);
  flags.AddSwitch("fit_deadline", "as many samples, at most --samples, or else edges, as --timeout allows",
                  &fit_deadline);
  flags.Add("tolerance", "T", "stop sampling at this standard error of the leading label", &tolerance);
  flags.Add("first_sample", "K", "index of the first sample: a part of a larger ensemble", &first_sample);
  flags.Add("top_k", "K", "the K most probable labels, or next tokens", &top_k);
  flags.Add("stride", "N", "language models: from window to window of a long text; 0: half the context", &stride);
}

absl::StatusOr<v1::PredictRequest> RequestFlags::MakeRequest() const {
  v1::PredictRequest request;
  if (absl::Status status = Apply(request); !status.ok()) return status;
  if (!(tolerance >= 0.0)) {
    return absl::InvalidArgumentError(absl::StrCat("--tolerance is ", tolerance, "; expected >= 0"));
  }
  if (allow_degraded) request.mutable_budget()->set_allow_degraded(true);
  if (fit_deadline) request.mutable_budget()->set_fit_deadline(true);
  request.mutable_ensemble()->set_tolerance(tolerance);
  request.mutable_ensemble()->set_first_sample(first_sample);
  request.mutable_outputs()->set_top_k(top_k);
  request.mutable_outputs()->set_stride(stride);
  return request;
}

absl::StatusOr<v1::Truncate> ParseTruncate(const std::string& truncate) {
  if (truncate.empty()) return v1::REFUSE;
  if (truncate == "head") return v1::HEAD;
  if (truncate == "tail") return v1::TAIL;
  return absl::InvalidArgumentError(absl::StrCat("--truncate is \"", truncate, "\"; expected head or tail"));
}

void SetTruncate(v1::Truncate how, std::vector<LabelledInput>& inputs) {
  for (LabelledInput& one : inputs) {
    one.input.mutable_sequence()->set_truncate(how);
    if (one.input.has_second()) one.input.mutable_second()->set_truncate(how);
  }
}

void SetPrompt(const std::optional<std::string>& name, std::vector<LabelledInput>& inputs) {
  if (!name) return;
  for (LabelledInput& one : inputs) {
    v1::Sequence& sequence = *one.input.mutable_sequence();
    if (!sequence.has_prompt_name()) sequence.set_prompt_name(*name);
  }
}

absl::StatusOr<std::vector<LabelledInput>> RequestFlags::ReadInputs() const {
  const int sources = text.has_value() + token_ids.has_value() + image.has_value() + input.has_value();
  if (sources != 1) {
    return absl::InvalidArgumentError(sources == 0 ? "no input: give --text, --token_ids, --image or --input"
                                                   : "--text, --token_ids, --image and --input exclude each other");
  }
  if (second_text && second_token_ids) {
    return absl::InvalidArgumentError("--second_text and --second_token_ids exclude each other");
  }
  const absl::StatusOr<v1::Truncate> how = ParseTruncate(truncate);
  if (!how.ok()) return how.status();
  std::vector<LabelledInput> inputs;
  if (input) {
    if (second_text || second_token_ids) {
      return absl::InvalidArgumentError(
          "--second_text and --second_token_ids go with --text or --token_ids; in a "
          "file, put them on each line");
    }
    absl::StatusOr<std::vector<LabelledInput>> lines = ReadInputFile(*input);
    if (!lines.ok()) return lines.status();
    inputs = *std::move(lines);
  } else {
    LabelledInput one;
    absl::StatusOr<v1::Sequence> sequence = image ? ReadImage("--image", *image) : MakeSequence(text, token_ids);
    if (!sequence.ok()) return sequence.status();
    *one.input.mutable_sequence() = *std::move(sequence);
    if (second_text || second_token_ids) {
      absl::StatusOr<v1::Sequence> second = MakeSequence(second_text, second_token_ids);
      if (!second.ok()) return second.status();
      *one.input.mutable_second() = *std::move(second);
    }
    inputs.push_back(std::move(one));
  }
  SetTruncate(*how, inputs);
  SetPrompt(prompt_name, inputs);
  return inputs;
}

}  // namespace edgewise::cli
