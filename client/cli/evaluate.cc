// edgewise evaluate: what a budget buys on a file of inputs.
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/evaluate/evaluate_report.h"
#include "client/cli/evaluate/evaluation.h"
#include "client/cli/evaluate/sweep.h"
#include "client/cli/format.h"
#include "client/cli/request/options.h"

namespace edgewise::cli {
namespace {

struct EvaluateFlags {
  CostFlags cost;
  SweepFlags sweep;
  ConnectionFlags connection;
  std::string data;
  std::string truncate;
  uint64_t seed = 1;
  uint64_t limit = 0;
  uint32_t repeats = 1;
  bool json = false;

  void Register(FlagSet& flags) {
    flags.Section("Model and data");
    cost.RegisterModel(flags);
    flags.Add("data", "FILE.jsonl",
              "inputs as `edgewise predict --input` takes them (- for standard input); \"label\", \"labels\" or "
              "\"value\" says what is right; for an embedding model the value says how alike \"text\" and "
              "\"second_text\" are",
              &data);
    flags.Add("limit", "N", "use the first N inputs only; 0: all", &limit);
    flags.Add("truncate", "head|tail", "drop tokens there where an input is too long; otherwise refused", &truncate);
    flags.Section("Settings to compare, beside dense attention and no cap");
    sweep.Register(flags, cost);
    flags.Add("seed", "S", "of the first repeat, the next has S + 1; the same seed gives the same answers", &seed);
    flags.Add("repeats", "N", "ask everything N times", &repeats);
    flags.Section("Output");
    flags.AddSwitch("json", "print the result as JSON", &json);
    connection.Register(flags);
  }

  absl::StatusOr<v1::PredictRequest> MakeRequest() const {
    if (repeats < 1 || repeats > 10000) {
      return absl::InvalidArgumentError(absl::StrCat("--repeats is ", repeats, "; expected 1 to 10000"));
    }
    CostFlags model;  // the settings have the rest
    model.model = cost.model;
    model.version = cost.version;
    model.keep_edges = cost.keep_edges;
    v1::PredictRequest request;
    if (absl::Status status = model.Apply(request); !status.ok()) return status;
    request.mutable_ensemble()->set_seed(seed);
    request.set_profile("none");  // the model's default would set what the rows leave open
    return request;
  }

  absl::StatusOr<std::vector<LabelledInput>> ReadInputs() const {
    if (data.empty()) return absl::InvalidArgumentError("--data is missing; give a file of JSON lines");
    const absl::StatusOr<v1::Truncate> how = ParseTruncate(truncate);
    if (!how.ok()) return how.status();
    absl::StatusOr<std::vector<LabelledInput>> inputs = ReadInputFile(data, "--data");
    if (!inputs.ok()) return inputs.status();
    if (limit > 0 && limit < inputs->size()) inputs->resize(limit);
    SetTruncate(*how, *inputs);
    return inputs;
  }
};

std::string ToJson(const EvaluateFlags& flags, size_t inputs, const Evaluation& evaluation) {
  nlohmann::json json = EvaluationJson(evaluation, flags.cost.keep_edges);
  json["data"] = flags.data;
  json["inputs"] = inputs;
  json["seed"] = absl::StrCat(flags.seed);
  json["repeats"] = flags.repeats;
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void Print(const EvaluateFlags& flags, size_t inputs, const Evaluation& evaluation, std::ostream& out) {
  if (flags.json) {
    out << ToJson(flags, inputs, evaluation);
    return;
  }
  out << "model        " << evaluation.first.model() << ", version " << evaluation.first.version() << ", on "
      << evaluation.first.device() << "\n";
  out << "data         " << flags.data << ", " << Plural(inputs, "input") << ", seed " << flags.seed
      << (flags.repeats > 1 ? absl::StrCat(" and up, ", flags.repeats, " repeats") : "") << "\n\n";
  PrintEvaluation(evaluation, out);
}

// Tells every fault on `err`. Returns the exit status.
int Faults(const Evaluation& evaluation, std::ostream& err) {
  int status = kExitOk;
  for (const SettingResult& row : evaluation.rows) {
    if (row.over == 0) continue;
    err << "edgewise: FAULT: " << Plural(row.over, "answer") << " above \"" << row.setting.Name() << "\"; first "
        << row.fault << "\n";
    status = kExitServer;
  }
  if (evaluation.failed == 0) return status;
  err << "edgewise: failed " << Plural(evaluation.failed, "time") << ", left out of every row; first "
      << evaluation.failure << "\n";
  return kExitServer;
}

}  // namespace

int RunEvaluate(Arguments arguments, std::ostream& out, std::ostream& err) {
  EvaluateFlags values;
  FlagSet flags(
      "edgewise evaluate --model NAME --data FILE.jsonl [--caps 1%,10%] [flags]",
      "Says what a budget buys: asks every input with dense attention, without a cap and under each cap, and shows\n"
      "density, time and, where the data says what is right, how good the answers are. Checks every cap.");
  values.Register(flags);
  int exit_code = kExitOk;
  if (!ParseOrHelp(flags, "evaluate", arguments, out, err, exit_code)) return exit_code;
  auto wrong = [&](const absl::Status& status) { return ReportUsageError(status, "evaluate", err); };
  const absl::StatusOr<v1::PredictRequest> base = values.MakeRequest();
  if (!base.ok()) return wrong(base.status());
  const absl::StatusOr<std::vector<Setting>> settings = values.sweep.MakeSettings(values.cost);
  if (!settings.ok()) return wrong(settings.status());
  const absl::StatusOr<std::vector<LabelledInput>> inputs = values.ReadInputs();
  if (!inputs.ok()) return wrong(inputs.status());
  const absl::StatusOr<std::unique_ptr<Client>> client = values.connection.Connect();
  if (!client.ok()) return wrong(client.status());

  const bool terminal = isatty(STDERR_FILENO) != 0;
  const absl::StatusOr<Evaluation> evaluation =
      Evaluate(**client, *base, *inputs, *settings, values.repeats, [&](uint64_t done, uint64_t all) {
        if (terminal) err << "\r" << WithCommas(done) << " of " << Plural(all, "input") << std::flush;
      });
  if (terminal) err << "\r" << PadRight("", 40) << "\r";
  if (absl::IsInvalidArgument(evaluation.status())) return wrong(evaluation.status());
  if (!evaluation.ok()) return ReportServerError(evaluation.status(), values.connection, err);
  if (evaluation->rows[0].answered == 0) return Faults(*evaluation, err);
  Print(values, inputs->size(), *evaluation, out);
  return Faults(*evaluation, err);
}

}  // namespace edgewise::cli
