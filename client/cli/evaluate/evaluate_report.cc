#include "client/cli/evaluate/evaluate_report.h"

#include <algorithm>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/format.h"
#include "client/cli/load.h"
#include "client/metrics/metrics.h"

namespace edgewise::cli {
namespace {

using Table = std::vector<std::vector<std::string>>;

std::string Cell(const Measure& measure) {
  if (!measure.value) return "-";
  return measure.percent ? Percent(*measure.value) : absl::StrFormat("%.4f", *measure.value);
}

// Whether samples disagreed anywhere; never for embeddings and values, which have no mutual information.
bool HasMutualInformation(const Evaluation& evaluation) {
  return std::any_of(evaluation.rows.begin(), evaluation.rows.end(),
                     [](const SettingResult& row) { return row.mutual_information > 0; });
}

// The cells that every table begins with.
std::vector<std::string> RowName(size_t r, const SettingResult& row) {
  return {absl::StrCat(r + 1), row.setting.Name(), WithCommas(row.setting.samples)};
}

std::vector<std::string> AlignTable(const Table& table) {
  std::string alignment(table[0].size(), 'r');
  alignment[1] = 'l';
  return AlignColumns(table, alignment);
}

void PrintCost(const Evaluation& evaluation, std::ostream& out) {
  const Measure measure = evaluation.rows[0].quality.MainMeasure();
  const bool has_measure = *measure.key != '\0';
  Table table = {{"row", "", "samples", "answered"}};
  if (has_measure) table[0].push_back(measure.title);
  for (const char* title : {"density", "mean edges", "most edges", "capped", "over cap", "median", "p90", "speed"}) {
    table[0].push_back(title);
  }
  for (size_t r = 0; r < evaluation.rows.size(); ++r) {
    const SettingResult& row = evaluation.rows[r];
    auto cell = [&](const std::string& text, bool known = true) { return row.answered > 0 && known ? text : "-"; };
    std::vector<std::string>& cells = table.emplace_back(RowName(r, row));
    cells.push_back(WithCommas(row.answered));
    if (has_measure) cells.push_back(cell(Cell(row.quality.MainMeasure())));
    const bool cap = row.setting.cap.has_value();
    cells.insert(cells.end(),
                 {cell(Percent(row.Mean(row.density))), cell(MeanWithCommas(row.Mean(row.edges))),
                  cell(WithCommas(row.most_edges)), cell(WithCommas(row.capped), cap), cell(WithCommas(row.over), cap),
                  cell(Milliseconds(1000.0 * Quantile(row.compute_ms, 0.5))),
                  cell(Milliseconds(1000.0 * Quantile(row.compute_ms, 0.9))),
                  cell(absl::StrFormat("%.2fx", Quantile(row.speed, 0.5)))});
  }
  const std::vector<std::string> lines = AlignTable(table);
  out << lines[0] << "\n";
  for (size_t r = 0; r < evaluation.rows.size(); ++r) {
    const SettingResult& row = evaluation.rows[r];
    out << lines[r + 1] << "\n";
    if (row.refused == 0) continue;
    out << "  refused " << (row.answered == 0 ? "every time" : Plural(row.refused, "time") + ", not in this row")
        << "; " << row.refusal << "\n";
  }
  out << "\n";
}

void PrintQuality(const Evaluation& evaluation, std::ostream& out) {
  const std::vector<Measure> titles = evaluation.rows[0].quality.OtherMeasures();
  const bool spread = HasMutualInformation(evaluation);
  if (titles.empty() && !spread) return;
  auto shown = [&](const Measure& measure) { return spread || !absl::StrContains(measure.key, "mutual_information"); };
  Table table = {{"row", "", "samples"}};
  for (const Measure& measure : titles) {
    if (shown(measure)) table[0].push_back(measure.title);
  }
  if (spread) table[0].push_back("mutual information");
  for (size_t r = 0; r < evaluation.rows.size(); ++r) {
    const SettingResult& row = evaluation.rows[r];
    std::vector<std::string>& cells = table.emplace_back(RowName(r, row));
    for (const Measure& measure : row.quality.OtherMeasures()) {
      if (shown(measure)) cells.push_back(Cell(measure));
    }
    cells.resize(table[0].size() - (spread ? 1 : 0), "-");  // a setting without an answer
    const bool has_spread = row.setting.samples > 1 && row.answered > 0;
    if (spread) cells.push_back(has_spread ? absl::StrFormat("%.4f", row.Mean(row.mutual_information)) : "-");
  }
  for (const std::string& line : AlignTable(table)) out << line << "\n";
  out << "\n";
}

void PrintNotes(const Evaluation& evaluation, std::ostream& out) {
  const Quality& quality = evaluation.rows[0].quality;
  const std::string measure = quality.MainMeasure().key;
  const bool spread = HasMutualInformation(evaluation);
  if (measure.empty()) out << "accuracy     not known: the data has no labels\n";
  if (measure == "accuracy") {
    const bool multi_label = evaluation.first.predictions(0).multi_label();
    out << "accuracy     of " << WithCommas(quality.accuracy().known)
        << (multi_label ? " answers a row: all labels of an input are right\n" : " labels a row\n");
    out << "macro F1     mean over the classes of F1\n";
    out << "calibration  |right answers - confidence|, mean over " << kCalibrationBins << " bins of the confidence"
        << (multi_label ? ",\n             of every label's yes or no\n" : "\n");
    out << "AUROC        that a wrong answer has more entropy" << (spread ? " (or mutual information)" : "")
        << " than a right one; - without wrong ones\n";
  }
  if (measure == "rank_correlation") out << "rank corr.   Spearman's, of the cosine of a pair with its value\n";
  if (measure == "error") {
    out << "error        mean absolute difference from the value in the data\n";
    out << "rank corr.   Spearman's, of the answer with the value\n";
  }
  if (measure == "loss") out << "loss         nats per token; perplexity is exp(loss)\n";
  if (spread) out << "mutual inf.  how much the samples disagree, nats, mean over inputs\n";
  uint64_t capped = 0, over = 0;
  for (const SettingResult& row : evaluation.rows) {
    if (row.setting.cap) capped += row.answered;
    over += row.over;
  }
  out << "capped       answers of which the cap dropped edges; where it dropped none, it changed nothing\n";
  out << "over cap     " << Plural(capped, "answer") << " under a cap, " << (over == 0 ? "none" : WithCommas(over))
      << " above it\n";
  out << "median, p90  the server's compute time of one input; one call at a time, the settings in turns input by\n"
         "             input, after one call of each to warm up\n"
         "speed        dense time / this time for the same input, median\n";
}

nlohmann::json ToJson(const Measure& measure) {
  return measure.value ? nlohmann::json(*measure.value) : nlohmann::json();
}

// The fields of the override that are set, by the names of config.json.
nlohmann::json ToJson(const v1::AttentionOverride& override) {
  nlohmann::json json = {{"kind", override.kind()}};
  const std::pair<const char*, uint32_t> counts[] = {{"windows", override.windows()},
                                                     {"window_tokens", override.window_tokens()},
                                                     {"keep", override.keep()},
                                                     {"last_layers", override.last_layers()},
                                                     {"block_size", override.block_size()},
                                                     {"stride", override.stride()}};
  for (const auto& [field, count] : counts) {
    if (count > 0) json[field] = count;
  }
  if (override.sigma_size() == 1) json["sigma"] = override.sigma(0);
  if (override.sigma_size() > 1) json["sigma"] = std::vector<double>(override.sigma().begin(), override.sigma().end());
  if (!override.pattern().empty()) json["pattern"] = override.pattern();
  if (override.has_width()) json["width"] = override.width();
  if (override.has_threshold()) json["threshold"] = override.threshold();
  return json;
}

// A profile of config.json that asks as `setting` does; null: none can ask for dense attention.
nlohmann::json Profile(const Setting& setting, const std::string& keep_edges) {
  if (setting.dense) return {};
  nlohmann::json json = nlohmann::json::object();
  if (setting.cap) json["max_density"] = *setting.cap;
  if (setting.cap && !keep_edges.empty()) json["keep"] = keep_edges;
  if (setting.samples > 1) json["samples"] = setting.samples;
  if (setting.override) json["override"] = ToJson(*setting.override);
  return json;
}

nlohmann::json Times(const std::vector<double>& ms) {
  return {{"mean", Mean(ms)},
          {"median", Quantile(ms, 0.5)},
          {"p90", Quantile(ms, 0.9)},
          {"quartiles", {Quantile(ms, 0.25), Quantile(ms, 0.75)}}};
}

nlohmann::json ToJson(size_t r, const SettingResult& row, const std::string& keep_edges) {
  nlohmann::json by_repeat = nlohmann::json::array(), measures = nlohmann::json::object();
  for (const Quality& quality : row.repeats) by_repeat.push_back(ToJson(quality.MainMeasure()));
  const Measure main = row.quality.MainMeasure();
  if (*main.key != '\0') measures[main.key] = ToJson(main);
  for (const Measure& measure : row.quality.OtherMeasures()) measures[measure.key] = ToJson(measure);
  return {{"row", r + 1},
          {"setting", row.setting.Name()},
          {"dense", row.setting.dense},
          {"override", row.setting.override ? ToJson(*row.setting.override) : nlohmann::json()},
          {"profile", Profile(row.setting, keep_edges)},
          {"cap", row.setting.cap ? nlohmann::json(*row.setting.cap) : nlohmann::json()},
          {"samples", row.setting.samples},
          {"answered", row.answered},
          {"refused", row.refused},
          {"refusal", row.refusal},
          {"quality", ToJson(main)},
          {"quality_by_repeat", by_repeat},
          {"measures", measures},
          {"right", row.quality.accuracy().right},
          {"known", row.quality.accuracy().known},
          {"scored_tokens", row.quality.scored_tokens()},
          {"density", row.Mean(row.density)},
          {"edges", row.Mean(row.edges)},
          {"most_edges", row.most_edges},
          {"most_of_cap", row.most_of_cap},
          {"capped", row.capped},
          {"over_cap", row.over},
          {"mutual_information", row.Mean(row.mutual_information)},
          {"compute_ms", Times(row.compute_ms)},
          {"total_ms", Times(row.total_ms)},
          {"speed", Quantile(row.speed, 0.5)}};
}

}  // namespace

void PrintEvaluation(const Evaluation& evaluation, std::ostream& out) {
  PrintCost(evaluation, out);
  PrintQuality(evaluation, out);
  PrintNotes(evaluation, out);
}

nlohmann::json EvaluationJson(const Evaluation& evaluation, const std::string& keep_edges) {
  nlohmann::json settings = nlohmann::json::array();
  for (size_t r = 0; r < evaluation.rows.size(); ++r) settings.push_back(ToJson(r, evaluation.rows[r], keep_edges));
  return {{"model", evaluation.first.model()},
          {"version", evaluation.first.version()},
          {"device", evaluation.first.device()},
          {"measure", evaluation.rows[0].quality.MainMeasure().key},
          {"failed", evaluation.failed},
          {"failure", evaluation.failure},
          {"settings", settings}};
}

}  // namespace edgewise::cli
