#include "client/cli/commands.h"

#include <memory>
#include <ostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/flag_set.h"
#include "client/cli/format.h"
#include "client/cli/request/options.h"

namespace edgewise::cli {
namespace {

constexpr char kHelp[] =
    "Usage: edgewise COMMAND [flags]\n"
    "\n"
    "Talks to an Edgewise server.\n"
    "\n"
    "  predict   ask a model; shows prediction, edges, uncertainty and time\n"
    "  generate  let a language model write; prints the text as it comes\n"
    "  score     how well a language model predicts a text: loss, perplexity, bits per byte\n"
    "  evaluate  what a budget buys: accuracy, density and time of a file of inputs at several caps\n"
    "  models    list the models of the server\n"
    "  health    say whether the server, or one model, serves\n"
    "  bench     measure latency and throughput\n"
    "  selfcheck compare this machine's device with other ways to compute (starts edgewise-selfcheck)\n"
    "  version   print the version of this program\n"
    "  help      print this\n"
    "\n"
    "`edgewise COMMAND --help` shows the flags of a command.\n"
    "Exit status: 0 done, 1 the server failed or refused, 2 wrong usage.\n";

std::string ModelTable(const v1::ListModelsResponse& response) {
  std::vector<std::vector<std::string>> rows = {
      {"name", "version", "state", "task", "attention", "layers", "heads", "max tokens", "parameters"}};
  for (const v1::ModelInfo& model : response.models()) {
    rows.push_back({model.name(), absl::StrCat(model.version()), v1::ModelInfo::State_Name(model.state()), model.task(),
                    model.attention(), absl::StrCat(model.layers()), absl::StrCat(model.heads()),
                    WithCommas(model.max_tokens()), WithCommas(model.parameters())});
  }
  const std::vector<std::string> lines = AlignColumns(rows, "lrlllrrrr");
  std::string text = lines[0] + "\n";
  for (int m = 0; m < response.models_size(); ++m) {
    absl::StrAppend(&text, lines[static_cast<size_t>(m) + 1], "\n");
    if (!response.models(m).error().empty()) absl::StrAppend(&text, "  ", response.models(m).error(), "\n");
  }
  return text;
}

}  // namespace

int ReportServerError(const absl::Status& status, const ConnectionFlags& connection, std::ostream& err) {
  err << "edgewise: " << CodeName(status.code()) << ": " << std::string(status.message()) << "\n";
  if (const std::string hint = connection.Hint(status); !hint.empty()) err << hint << "\n";
  return kExitServer;
}

int ReportUsageError(const absl::Status& status, const std::string& command, std::ostream& err) {
  err << "edgewise " << command << ": " << std::string(status.message()) << "\n`edgewise " << command
      << " --help` shows the flags.\n";
  return kExitUsage;
}

bool ParseOrHelp(FlagSet& flags, const std::string& command, Arguments arguments, std::ostream& out, std::ostream& err,
                 int& exit_code) {
  if (FlagSet::AsksForHelp(arguments)) {
    out << flags.Help();
    exit_code = kExitOk;
    return false;
  }
  absl::Status status = flags.Parse(arguments);
  if (!status.ok()) exit_code = ReportUsageError(status, command, err);
  return status.ok();
}

int RunModels(Arguments arguments, std::ostream& out, std::ostream& err) {
  ConnectionFlags connection;
  bool json = false;
  FlagSet flags("edgewise models [flags]", "Lists the models of the server, their state and shape.");
  flags.Section("Output");
  flags.AddSwitch("json", "print the answer as JSON", &json);
  connection.Register(flags);
  int exit_code = kExitOk;
  if (!ParseOrHelp(flags, "models", arguments, out, err, exit_code)) return exit_code;
  absl::StatusOr<std::unique_ptr<Client>> client = connection.Connect();
  if (!client.ok()) return ReportUsageError(client.status(), "models", err);
  absl::StatusOr<v1::ListModelsResponse> response = (*client)->ListModels();
  if (!response.ok()) return ReportServerError(response.status(), connection, err);
  out << (json ? ToJson(*response, true) : ModelTable(*response));
  return kExitOk;
}

int RunHealth(Arguments arguments, std::ostream& out, std::ostream& err) {
  ConnectionFlags connection;
  std::string model;
  bool watch = false;
  bool wait = false;
  FlagSet flags("edgewise health [--model NAME] [--wait | --watch] [flags]",
                "Asks grpc.health.v1. Prints SERVING and ends with 0, or another state and ends with 1.");
  flags.Section("What to ask");
  flags.Add("model", "NAME", "one model; without it, the server as a whole", &model);
  flags.AddSwitch("watch", "print each change until interrupted", &watch);
  flags.AddSwitch("wait", "wait until it serves, up to the timeout", &wait);
  connection.Register(flags);
  int exit_code = kExitOk;
  if (!ParseOrHelp(flags, "health", arguments, out, err, exit_code)) return exit_code;
  if (watch && wait) {
    return ReportUsageError(absl::InvalidArgumentError("--watch and --wait exclude each other"), "health", err);
  }
  connection.wait_for_ready = connection.wait_for_ready || wait;
  absl::StatusOr<std::unique_ptr<Client>> client = connection.Connect();
  if (!client.ok()) return ReportUsageError(client.status(), "health", err);
  if (watch) {
    absl::Status status = (*client)->WatchHealth(model, [&out](HealthState state) {
      out << absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::Now(), absl::LocalTimeZone()) << " " << HealthStateName(state)
          << std::endl;
      return out.good();
    });
    return status.ok() ? kExitOk : ReportServerError(status, connection, err);
  }
  if (wait) {
    absl::Status status = (*client)->WatchHealth(
        model, [](HealthState state) { return state != HealthState::kServing; }, {.timeout = connection.timeout});
    if (!status.ok()) return ReportServerError(status, connection, err);
  }
  absl::StatusOr<HealthState> state = (*client)->Health(model);
  if (absl::IsNotFound(state.status())) {  // grpc.health.v1 says "service"; the model's own status says more
    const absl::Status known = (*client)->GetModel(model).status();
    if (!known.ok()) return ReportServerError(known, connection, err);
  }
  if (!state.ok()) return ReportServerError(state.status(), connection, err);
  out << HealthStateName(*state) << "\n";
  return *state == HealthState::kServing ? kExitOk : kExitServer;
}

int RunCommand(Arguments arguments, std::ostream& out, std::ostream& err) {
  if (arguments.empty()) {
    err << kHelp;
    return kExitUsage;
  }
  const std::string& command = arguments[0];
  const Arguments rest = arguments.subspan(1);
  if (command == "predict") return RunPredict(rest, out, err);
  if (command == "generate") return RunGenerate(rest, out, err);
  if (command == "score") return RunScore(rest, out, err);
  if (command == "models") return RunModels(rest, out, err);
  if (command == "health") return RunHealth(rest, out, err);
  if (command == "evaluate") return RunEvaluate(rest, out, err);
  if (command == "bench") return RunBench(rest, out, err);
  if (command == "selfcheck") return RunSelfcheck(rest, out, err);
  if (command == "version" || command == "--version") {
    out << "edgewise " << EDGEWISE_VERSION << "\n";
    return kExitOk;
  }
  if (command == "help" && !rest.empty()) {
    const std::string again[] = {rest[0], "--help"};
    return RunCommand(again, out, err);
  }
  if (command == "help" || command == "--help" || command == "-h") {
    out << kHelp;
    return kExitOk;
  }
  err << "edgewise: unknown command \"" << command << "\"\n\n" << kHelp;
  return kExitUsage;
}

}  // namespace edgewise::cli
