// edgewise evaluate: what a budget buys on a file of inputs.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/commands.h"
#include "client/cli/evaluation.h"
#include "client/cli/format.h"
#include "client/cli/load.h"
#include "client/cli/options.h"
#include "client/cli/plot_show.h"

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

absl::StatusOr<std::vector<uint32_t>> ParseSamples(const std::string& text) {
  std::vector<uint32_t> samples;
  for (const absl::string_view piece : absl::StrSplit(text, ',')) {
    uint32_t count = 0;
    if (!absl::SimpleAtoi(piece, &count) || count == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--samples[", samples.size(), "] is \"", piece, "\"; expected numbers from 1 up, as 1 or 1,16"));
    }
    samples.push_back(count);
  }
  return samples;
}

struct EvaluateFlags {
  CostFlags cost;
  ConnectionFlags connection;
  std::string data;
  std::string truncate;
  std::string caps;
  std::string samples = "1";
  uint64_t seed = 1;
  uint64_t limit = 0;
  uint32_t repeats = 1;
  bool json = false;
  std::string plot;

  void Register(FlagSet& flags) {
    flags.Section("Model and data");
    cost.RegisterModel(flags);
    flags.Add("data", "FILE.jsonl",
              "inputs as `edgewise predict --input` takes them (- for standard input); \"label\", \"labels\" or\n"
              "                              \"value\" says what is right",
              &data);
    flags.Add("limit", "N", "use the first N inputs only; 0: all", &limit);
    flags.Add("truncate", "head|tail", "drop tokens there where an input is too long; otherwise refused", &truncate);
    flags.Section("Settings to compare, beside dense attention and no cap");
    flags.Add("caps", "1%,10%", "hard caps on the density, as 1% or 0.01; without it none is tried", &caps);
    cost.RegisterKeep(flags);
    flags.Add("samples", "N[,N]", "forward passes to average over; each number has its own rows", &samples);
    flags.Add("seed", "S", "of the first repeat, the next has S + 1; the same seed gives the same answers", &seed);
    flags.Add("repeats", "N", "ask everything N times", &repeats);
    cost.RegisterOverride(flags);
    flags.Section("Output");
    flags.AddSwitch("json", "print the result as JSON", &json);
    flags.Add("plot", "FILE.png|svg", "draw quality and speed against density", &plot);
    connection.Register(flags);
  }

  absl::StatusOr<v1::PredictRequest> MakeRequest() const {
    v1::PredictRequest request;
    if (absl::Status status = cost.Apply(request); !status.ok()) return status;
    request.mutable_ensemble()->set_seed(seed);
    if (repeats < 1 || repeats > 10000) {
      return absl::InvalidArgumentError(absl::StrCat("--repeats is ", repeats, "; expected 1 to 10000"));
    }
    if (!cost.keep_edges.empty() && caps.empty()) {
      return absl::InvalidArgumentError("--keep_edges goes with --caps");
    }
    if (absl::Status status = CheckPictureName(plot, "as budget.png"); !plot.empty() && !status.ok()) return status;
    return request;
  }

  // Dense attention first; it draws nothing, so one sample says all.
  absl::StatusOr<std::vector<Setting>> MakeSettings() const {
    const absl::StatusOr<std::vector<double>> densities = ParseCaps(caps);
    if (!densities.ok()) return densities.status();
    const absl::StatusOr<std::vector<uint32_t>> counts = ParseSamples(samples);
    if (!counts.ok()) return counts.status();
    std::vector<Setting> settings = {{.dense = true}};
    for (const uint32_t count : *counts) {
      settings.push_back({.samples = count});
      for (const double density : *densities) settings.push_back({.cap = density, .samples = count});
    }
    return settings;
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

std::string QualityText(const Quality& quality) {
  if (!quality.IsKnown()) return "-";
  return quality.accuracy.known > 0 ? Percent(quality.Value()) : absl::StrFormat("%.4f", quality.Value());
}

bool HasSeveralSamples(const Evaluation& evaluation) {
  return std::any_of(evaluation.rows.begin(), evaluation.rows.end(),
                     [](const SettingResult& row) { return row.setting.samples > 1; });
}

std::vector<std::string> Cells(const SettingResult& row, bool has_quality, bool has_spread) {
  const bool any = row.answered > 0;
  auto cell = [any](const std::string& text) { return any ? text : "-"; };
  std::vector<std::string> cells = {row.setting.Name(), WithCommas(row.setting.samples), WithCommas(row.answered)};
  if (has_quality) cells.push_back(cell(QualityText(row.quality)));
  cells.insert(cells.end(), {cell(Percent(row.Mean(row.density))), cell(MeanWithCommas(row.Mean(row.edges))),
                             cell(WithCommas(row.most_edges)), row.setting.cap ? cell(WithCommas(row.capped)) : "-",
                             row.setting.cap ? cell(WithCommas(row.over)) : "-"});
  if (has_spread) {
    cells.push_back(row.setting.samples > 1 ? cell(absl::StrFormat("%.4f", row.Mean(row.mutual_information))) : "-");
  }
  cells.insert(cells.end(), {cell(Milliseconds(1000.0 * Mean(row.compute_ms))),
                             cell(absl::StrFormat("%.2fx", Quantile(row.speed, 0.5)))});
  return cells;
}

void PrintTable(const Evaluation& evaluation, std::ostream& out) {
  const std::string measure = evaluation.rows[0].quality.Measure();
  const bool spread = HasSeveralSamples(evaluation);
  std::vector<std::vector<std::string>> cells = {{"", "samples", "answered"}};
  if (!measure.empty()) cells[0].push_back(measure);
  cells[0].insert(cells[0].end(), {"density", "mean edges", "most edges", "capped", "over cap"});
  if (spread) cells[0].push_back("mutual information");
  cells[0].insert(cells[0].end(), {"compute", "speed"});
  for (const SettingResult& row : evaluation.rows) cells.push_back(Cells(row, !measure.empty(), spread));
  std::string alignment(cells[0].size(), 'r');
  alignment[0] = 'l';
  const std::vector<std::string> lines = AlignColumns(cells, alignment);
  out << lines[0] << "\n";
  for (size_t r = 0; r < evaluation.rows.size(); ++r) {
    const SettingResult& row = evaluation.rows[r];
    out << lines[r + 1] << "\n";
    if (row.refused == 0) continue;
    out << "  refused " << (row.answered == 0 ? "every time" : Plural(row.refused, "time") + ", not in this row")
        << "; " << row.refusal << "\n";
  }
}

void PrintNotes(const Evaluation& evaluation, std::ostream& out) {
  const Quality& quality = evaluation.rows[0].quality;
  const std::string measure = quality.Measure();
  if (measure.empty()) out << "accuracy     not known: the data has no labels\n";
  if (measure == "accuracy") out << "accuracy     of " << WithCommas(quality.accuracy.known) << " labels a row\n";
  if (measure == "error") out << "error        mean absolute difference from the value in the data\n";
  if (measure == "loss") out << "loss         nats per token\n";
  uint64_t capped = 0, over = 0;
  for (const SettingResult& row : evaluation.rows) {
    if (row.setting.cap) capped += row.answered;
    over += row.over;
  }
  out << "capped       answers of which the cap dropped edges; where it dropped none, it changed nothing\n";
  out << "over cap     " << Plural(capped, "answer") << " under a cap, " << (over == 0 ? "none" : WithCommas(over))
      << " above it\n";
  out << "compute      the server's compute time of one input, mean; one call at a time, the settings in turns input "
         "by\n"
         "             input, after one call of each to warm up\n"
         "speed        dense time / this time for the same input, median\n";
}

nlohmann::json ToJson(const Quality& quality) {
  return quality.IsKnown() ? nlohmann::json(quality.Value()) : nlohmann::json();
}

nlohmann::json ToJson(const SettingResult& row) {
  nlohmann::json by_repeat = nlohmann::json::array();
  for (const Quality& quality : row.repeats) by_repeat.push_back(ToJson(quality));
  return {{"setting", row.setting.Name()},
          {"dense", row.setting.dense},
          {"cap", row.setting.cap ? nlohmann::json(*row.setting.cap) : nlohmann::json()},
          {"samples", row.setting.samples},
          {"answered", row.answered},
          {"refused", row.refused},
          {"refusal", row.refusal},
          {"quality", ToJson(row.quality)},
          {"quality_by_repeat", by_repeat},
          {"right", row.quality.accuracy.right},
          {"known", row.quality.accuracy.known},
          {"scored_tokens", row.quality.scored_tokens},
          {"density", row.Mean(row.density)},
          {"edges", row.Mean(row.edges)},
          {"most_edges", row.most_edges},
          {"most_of_cap", row.most_of_cap},
          {"capped", row.capped},
          {"over_cap", row.over},
          {"mutual_information", row.Mean(row.mutual_information)},
          {"compute_ms",
           {{"mean", Mean(row.compute_ms)},
            {"median", Quantile(row.compute_ms, 0.5)},
            {"quartiles", {Quantile(row.compute_ms, 0.25), Quantile(row.compute_ms, 0.75)}}}},
          {"total_ms", {{"mean", Mean(row.total_ms)}, {"median", Quantile(row.total_ms, 0.5)}}},
          {"speed", Quantile(row.speed, 0.5)}};
}

nlohmann::json ToJson(const EvaluateFlags& flags, size_t inputs, const Evaluation& evaluation) {
  nlohmann::json settings = nlohmann::json::array();
  for (const SettingResult& row : evaluation.rows) settings.push_back(ToJson(row));
  return {{"model", evaluation.first.model()},
          {"version", evaluation.first.version()},
          {"device", evaluation.first.device()},
          {"data", flags.data},
          {"inputs", inputs},
          {"seed", absl::StrCat(flags.seed)},
          {"repeats", flags.repeats},
          {"measure", evaluation.rows[0].quality.Measure()},
          {"failed", evaluation.failed},
          {"failure", evaluation.failure},
          {"settings", settings}};
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
      "evaluate --model NAME --data FILE.jsonl [--caps 1%,10%] [flags]",
      "Says what a budget buys: asks every input with dense attention, without a cap and under each cap, and shows\n"
      "density, time and, where the data says what is right, how good the answers are. Checks every cap.");
  values.Register(flags);
  int exit_code = kExitOk;
  if (!ParseOrHelp(flags, "evaluate", arguments, out, err, exit_code)) return exit_code;
  const absl::StatusOr<v1::PredictRequest> base = values.MakeRequest();
  if (!base.ok()) return ReportUsageError(base.status(), "evaluate", err);
  const absl::StatusOr<std::vector<Setting>> settings = values.MakeSettings();
  if (!settings.ok()) return ReportUsageError(settings.status(), "evaluate", err);
  const absl::StatusOr<std::vector<LabelledInput>> inputs = values.ReadInputs();
  if (!inputs.ok()) return ReportUsageError(inputs.status(), "evaluate", err);
  const absl::StatusOr<std::unique_ptr<Client>> client = values.connection.Connect();
  if (!client.ok()) return ReportUsageError(client.status(), "evaluate", err);

  const bool terminal = isatty(STDERR_FILENO) != 0;
  const absl::StatusOr<Evaluation> evaluation =
      Evaluate(**client, *base, *inputs, *settings, values.repeats, [&](uint64_t done, uint64_t all) {
        if (terminal) err << "\r" << WithCommas(done) << " of " << Plural(all, "input") << std::flush;
      });
  if (terminal) err << "\r" << PadRight("", 40) << "\r";
  if (!evaluation.ok()) return ReportServerError(evaluation.status(), values.connection, err);
  if (evaluation->rows[0].answered == 0) return Faults(*evaluation, err);
  if (values.json) {
    out << ToJson(values, inputs->size(), *evaluation).dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
        << "\n";
  } else {
    out << "model        " << evaluation->first.model() << ", version " << evaluation->first.version() << ", on "
        << evaluation->first.device() << "\n";
    out << "data         " << values.data << ", " << Plural(inputs->size(), "input") << ", seed " << values.seed
        << (values.repeats > 1 ? absl::StrCat(" and up, ", values.repeats, " repeats") : "") << "\n\n";
    PrintTable(*evaluation, out);
    out << "\n";
    PrintNotes(*evaluation, out);
  }
  const int status = Faults(*evaluation, err);
  if (values.plot.empty()) return status;
  const absl::Status drawn = DrawEvaluation(*evaluation, values.data, values.plot);
  if (!drawn.ok()) return ReportServerError(drawn, values.connection, err);
  err << "plot in " << values.plot << "\n";
  return status;
}

}  // namespace edgewise::cli
