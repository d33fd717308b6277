// edgewise generate: the text of a language model, as it comes.
#include <algorithm>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/format.h"
#include "client/cli/request/options.h"

namespace edgewise::cli {
namespace {

struct GenerateFlags {
  CostFlags cost;
  ConnectionFlags connection;
  std::optional<std::string> prompt;
  std::optional<std::string> token_ids;
  std::optional<std::string> chat, system, template_arguments;
  std::string truncate;
  uint32_t max_new_tokens = 128;
  double temperature = 0.8;
  uint32_t top_k = 0;
  double top_p = 0, min_p = 0;
  double presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  uint32_t alternatives = 0;
  std::vector<std::string> stop;
  std::string overflow;
  std::string request_id;
  bool json = false;

  void Register(FlagSet& flags) {
    flags.Section("Prompt (one of --prompt, --token_ids, --chat)");
    cost.RegisterModel(flags);
    flags.Add("prompt", "TEXT", "the text to go on from, through the model's tokenizer", &prompt);
    flags.Add("token_ids", "1,2,3", "the tokens to go on from", &token_ids);
    flags.Add("chat", "TEXT", "what a user says, through the model's chat template", &chat);
    flags.Add("system", "TEXT", "with --chat: the system message before it", &system);
    flags.Add("template_arguments", "JSON",
              "with --chat: an object, as '{\"enable_thinking\": false}', for the template", &template_arguments);
    flags.Add("truncate", "head|tail", "drop tokens there where the prompt is too long; otherwise refused", &truncate);
    flags.Section("Which tokens");
    flags.Add("max_new_tokens", "N", "stop after so many", &max_new_tokens);
    flags.Add("temperature", "T", "0: always the most probable token", &temperature);
    flags.Add("top_k", "K", "draw among the K most probable tokens", &top_k);
    flags.Add("top_p", "P", "draw among the fewest tokens whose probabilities sum to P", &top_p);
    flags.Add("min_p", "P", "draw among tokens with at least this share of the most probable one's probability",
              &min_p);
    flags.Add("presence_penalty", "X", "lowers tokens that were written already, -2 to 2", &presence_penalty);
    flags.Add("frequency_penalty", "X", "lowers them for each time, -2 to 2", &frequency_penalty);
    flags.Add("repetition_penalty", "X", "above 1: lowers tokens of the prompt and the text", &repetition_penalty);
    flags.AddList("stop", "TEXT", "end before this text; may be given more than once", &stop);
    flags.Add("overflow", "slide|halve|stop",
              "beyond the context: drop a token for each new one, or half at once; or end", &overflow);
    flags.Section("Cost and uncertainty");
    cost.RegisterCost(flags);
    flags.Section("Output");
    flags.AddSwitch("json", "print every message as a line of JSON", &json);
    flags.Add("alternatives", "N", "with --json: the N most probable tokens beside each, at most 20", &alternatives);
    flags.Add("request_id", "ID", "returned as it came, and logged by the server", &request_id);
    connection.timeout = absl::InfiniteDuration();
    connection.Register(flags);
  }

  absl::Status AddPrompt(v1::GenerateRequest& request) const {
    if (system) return absl::InvalidArgumentError("--system goes with --chat");
    if (template_arguments) return absl::InvalidArgumentError("--template_arguments goes with --chat");
    if (prompt.has_value() == token_ids.has_value()) {
      return absl::InvalidArgumentError(prompt ? "--prompt and --token_ids exclude each other"
                                               : "no prompt: give --prompt, --token_ids or --chat");
    }
    absl::StatusOr<v1::Sequence> sequence = MakeSequence(prompt, token_ids);
    if (!sequence.ok()) return sequence.status();
    *request.mutable_prompt() = *std::move(sequence);
    absl::StatusOr<v1::Truncate> how = ParseTruncate(truncate);
    if (!how.ok()) return how.status();
    request.mutable_prompt()->set_truncate(*how);
    return absl::OkStatus();
  }

  absl::Status AddMessages(v1::GenerateRequest& request) const {
    if (prompt || token_ids || !truncate.empty()) {
      return absl::InvalidArgumentError("--chat goes without --prompt, --token_ids and --truncate");
    }
    for (const auto& [role, text] : {std::pair("system", &system), std::pair("user", &chat)}) {
      if (!*text) continue;
      if (!IsUtf8(**text)) return absl::InvalidArgumentError(absl::StrCat("the ", role, " message is not valid UTF-8"));
      v1::ChatMessage& message = *request.add_messages();
      message.set_role(role);
      message.set_content(**text);
    }
    if (template_arguments) {
      if (!IsUtf8(*template_arguments)) return absl::InvalidArgumentError("--template_arguments is not valid UTF-8");
      request.set_template_arguments(*template_arguments);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<v1::GenerateRequest> MakeRequest() const {
    v1::GenerateRequest request;
    if (absl::Status status = cost.Apply(request); !status.ok()) return status;
    if (absl::Status status = chat ? AddMessages(request) : AddPrompt(request); !status.ok()) return status;
    if (max_new_tokens == 0) return absl::InvalidArgumentError("--max_new_tokens is 0; expected >= 1");
    if (!(temperature >= 0.0)) {
      return absl::InvalidArgumentError(absl::StrCat("--temperature is ", temperature, "; expected >= 0"));
    }
    if (!(top_p >= 0.0 && top_p <= 1.0)) {
      return absl::InvalidArgumentError(absl::StrCat("--top_p is ", top_p, "; expected 0 to 1"));
    }
    if (!(min_p >= 0.0 && min_p <= 1.0)) {
      return absl::InvalidArgumentError(absl::StrCat("--min_p is ", min_p, "; expected 0 to 1"));
    }
    if (alternatives > 0 && !json) return absl::InvalidArgumentError("--alternatives goes with --json");
    request.set_max_new_tokens(max_new_tokens);
    request.set_temperature(temperature);
    request.set_top_k(top_k);
    request.set_top_p(top_p);
    request.set_min_p(min_p);
    request.set_presence_penalty(presence_penalty);
    request.set_frequency_penalty(frequency_penalty);
    if (repetition_penalty != 1.0) request.set_repetition_penalty(repetition_penalty);
    request.set_alternatives(alternatives);
    for (const std::string& text : stop) {
      if (!IsUtf8(text)) return absl::InvalidArgumentError("--stop is not valid UTF-8");
      request.add_stop(text);
    }
    v1::Overflow how_on = v1::SLIDE;
    if (!overflow.empty() && !v1::Overflow_Parse(absl::AsciiStrToUpper(overflow), &how_on)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--overflow is \"", overflow, "\"; expected slide, halve or stop"));
    }
    request.set_overflow(how_on);
    request.set_request_id(request_id);
    return request;
  }
};

// The tokens received so far.
struct Progress {
  uint64_t tokens = 0;
  double edges = 0, pairs = 0;
  v1::GenerateResponse last;

  void Add(const v1::GenerateResponse& message) {
    ++tokens;
    edges += message.edges().edges();
    pairs += static_cast<double>(message.edges().pairs());
    last = message;
  }

  std::string Line(double seconds) const {
    std::string line = absl::StrFormat("%s in %.2f s, %.1f tokens/s", Plural(tokens, "token"), seconds,
                                       static_cast<double>(tokens) / std::max(seconds, 1e-9));
    if (pairs > 0) absl::StrAppend(&line, ", density ", Percent(edges / pairs));
    return absl::StrCat(line, ", ended by ", last.finish_reason(), ", seed ", last.seed(), "\n");
  }
};

}  // namespace

int RunGenerate(Arguments arguments, std::ostream& out, std::ostream& err) {
  GenerateFlags values;
  FlagSet flags(
      "edgewise generate --model NAME --prompt TEXT [flags]",
      "Lets a language model write. Prints the text as it comes, then tokens, tokens per second and density.\n"
      "Models without a tokenizer: token ids. Ctrl-C ends the generation, on the server too.");
  values.Register(flags);
  int exit_code = kExitOk;
  if (!ParseOrHelp(flags, "generate", arguments, out, err, exit_code)) return exit_code;
  absl::StatusOr<v1::GenerateRequest> request = values.MakeRequest();
  if (!request.ok()) return ReportUsageError(request.status(), "generate", err);
  absl::StatusOr<std::unique_ptr<Client>> client = values.connection.Connect();
  if (!client.ok()) return ReportUsageError(client.status(), "generate", err);
  const CallOptions call{.timeout = values.connection.timeout};
  absl::StatusOr<v1::ModelInfo> model = (*client)->GetModel(request->model(), request->version(), call);
  if (!model.ok()) return ReportServerError(model.status(), values.connection, err);

  const bool as_ids = model->tokenizer() == "none";
  Progress progress;
  const absl::Time start = absl::Now();
  const absl::Status status = (*client)->Generate(
      *request,
      [&](const v1::GenerateResponse& message) {
        if (values.json) {
          out << ToJson(message, false) << "\n";
        } else if (as_ids) {
          out << (progress.tokens == 0 ? "" : " ") << message.token_id();
        } else {
          out << message.text();
        }
        out << std::flush;
        progress.Add(message);
        return out.good();
      },
      call);
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  if (!values.json && progress.tokens > 0) out << "\n" << std::flush;
  if (!status.ok()) return ReportServerError(status, values.connection, err);
  (values.json ? err : out) << progress.Line(seconds) << std::flush;
  return kExitOk;
}

}  // namespace edgewise::cli
