#include "bench/caps_models.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "bench/timing.h"
#include "model/forward/pass.h"
#include "model/load/load.h"

namespace edgewise::bench {
namespace {

using nlohmann::json;

constexpr double kLeastSeconds = 0.002;  // that one timing takes: short requests run several times

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) Check(absl::NotFoundError(absl::StrCat("cannot read ", path.string())));
  return text;
}

template <typename T>
std::vector<T> Flat(const json& rows) {
  std::vector<T> values;
  for (const json& row : rows) {
    const std::vector<T> more = row.get<std::vector<T>>();
    values.insert(values.end(), more.begin(), more.end());
  }
  return values;
}

ModelSequence PrepareText(const Model& model, const std::string& text) {
  auto tokens = model.Tokenize(text);
  Check(tokens.status());
  auto sequence = model.Prepare(*std::move(tokens), TruncateMode::kHead);
  Check(sequence.status());
  return *std::move(sequence);
}

ModelSequence PrepareLine(const Model& model, const std::string& line) {
  const auto fields = ParseStrictJson(line);
  Check(fields.status());
  if (fields->contains("text")) return PrepareText(model, (*fields)["text"].get<std::string>());
  absl::StatusOr<ModelSequence> sequence;
  if (fields->contains("token_ids")) {
    sequence = model.Prepare((*fields)["token_ids"].get<std::vector<int32_t>>(), TruncateMode::kHead);
  } else {
    const json& features = (*fields)["features"];
    sequence = model.PrepareFeatures(static_cast<uint32_t>(features.size()), static_cast<uint32_t>(features[0].size()),
                                     Flat<float>(features), TruncateMode::kHead);
  }
  Check(sequence.status());
  if (fields->contains("bias_buckets")) sequence->bias_buckets = Flat<uint8_t>((*fields)["bias_buckets"]);
  Check(model.CheckBias(*sequence));
  return *std::move(sequence);
}

// The longest of the inputs bundled for a model. The language models have the sonnet.
ModelSequence InputOf(const Model& model, const std::filesystem::path& data, const std::string& name) {
  if (model.config().task == ModelTask::kCausalLm) return PrepareText(model, ReadFile(data / "sonnet.txt"));
  const std::filesystem::path path = data / (name + ".jsonl");
  std::ifstream lines(path);
  ModelSequence longest;
  for (std::string line; std::getline(lines, line);) {
    ModelSequence sequence = PrepareLine(model, line);
    if (longest.positions.empty() || sequence.valid() > longest.valid()) longest = std::move(sequence);
  }
  if (longest.positions.empty()) Check(absl::NotFoundError(absl::StrCat("no inputs in ", path.string())));
  return longest;
}

// One forward pass of one sample.
SampleResult Run(const Model& model, const std::vector<ModelInput>& inputs) {
  Pass pass(model, inputs, {});
  while (!pass.done()) Check(pass.Step());
  InputResult result = pass.TakeResult(0);
  Check(result.status);
  return std::move(result.sample_results[0]);
}

double Seconds(const Model& model, const std::vector<ModelInput>& inputs, int passes) {
  const double start = CpuSeconds();
  for (int pass = 0; pass < passes; ++pass) Run(model, inputs);
  return (CpuSeconds() - start) / passes;
}

ModelRow TimeModel(const Model& model, const std::string& name, ModelSequence sequence, std::span<const double> caps,
                   int repeats) {
  ModelRow row;
  row.name = name;
  row.tokens = sequence.valid();
  std::vector<ModelInput> free(1);
  free[0].sequences.push_back(std::move(sequence));
  free[0].seed = 2026;
  row.edges = Run(model, free).edges;
  std::vector<std::vector<ModelInput>> capped(caps.size(), free);
  for (size_t c = 0; c < caps.size(); ++c) {
    const auto edges = static_cast<uint64_t>(caps[c] * static_cast<double>(row.edges));
    capped[c][0].max_edges = std::max(edges, model.LeastEdges(free[0]));
    Run(model, capped[c]);
  }
  const int passes = static_cast<int>(std::ceil(kLeastSeconds / Seconds(model, free, 2)));
  std::vector<double> times;
  std::vector<std::vector<double>> shares(caps.size());
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (size_t c = 0; c < caps.size(); ++c) {
      const double before = Seconds(model, free, passes), under = Seconds(model, capped[c], passes),
                   after = Seconds(model, free, passes);
      times.push_back(before);
      shares[c].push_back(2.0 * under / (before + after));
    }
  }
  row.milliseconds = 1e3 * Median(times);
  for (std::vector<double>& of_cap : shares) row.shares.push_back(Median(std::move(of_cap)));
  return row;
}

}  // namespace

void TimeModels(Backend& backend, const std::filesystem::path& examples, std::span<const double> caps, int repeats,
                const std::function<void(const ModelRow&)>& use) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(examples / "models", error)) {
    names.push_back(entry.path().filename().string());
  }
  if (error) Check(absl::NotFoundError(absl::StrCat("cannot list ", (examples / "models").string())));
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    auto model = LoadModel((examples / "models" / name / "1").string(), backend);
    Check(model.status());
    use(TimeModel(**model, name, InputOf(**model, examples / "data", name), caps, repeats));
  }
}

}  // namespace edgewise::bench
