// The models and requests of simulations, and the answers that each request has alone on an undisturbed device.
#ifndef EDGEWISE_TESTS_SERVER_SIMULATOR_CATALOGUE_H_
#define EDGEWISE_TESTS_SERVER_SIMULATOR_CATALOGUE_H_

#include <compare>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "model/forward/generation.h"
#include "tests/model/model_kinds.h"

namespace edgewise::server {

// The work of a request: of Predict where it has inputs, else of Generate.
struct SimulatedWork {
  size_t model = 0;  // of the catalogue
  std::vector<ModelInput> inputs;
  std::vector<int32_t> prompt;
  GenerationOptions options;

  bool generates() const { return inputs.empty(); }
};

// Of Predict, instead of what the work says.
struct Lowered {
  uint32_t samples = 0;  // 0: as the work says
  double cap = 0.0;      // 0: as the work says; else the lower one of both
  bool by_density = true;

  auto operator<=>(const Lowered&) const = default;
};

struct LoneAnswer {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::vector<InputResult> results;
  std::vector<GeneratedToken> tokens;
};

bool SameToken(const GeneratedToken& a, const GeneratedToken& b);

// Answers are computed when they are first asked for. One thread.
class Catalogue {
 public:
  static constexpr size_t kModels = 3;
  static constexpr size_t kGenerates = 1;  // the model that takes generations, and requests too
  static constexpr size_t kVersions = 2;   // of each, which differ in their weights

  Catalogue();

  std::string Folder(size_t model, size_t version) const;
  // For its methods that compute nothing.
  const Model& ModelOf(size_t model) const { return *models_[model * kVersions].model; }

  const std::vector<SimulatedWork>& predicts() const { return predicts_; }
  const std::vector<SimulatedWork>& generations() const { return generations_; }
  const LoneAnswer& AnswerOf(const SimulatedWork& work, size_t version, Lowered lowered = {});

 private:
  void AddPredicts(size_t model, const testing::ModelKind& kind);
  void AddGenerations(size_t model);

  const testing::TemporaryFolder folder_;
  std::vector<testing::LoadedModel> models_;
  std::vector<SimulatedWork> predicts_, generations_;
  std::map<std::tuple<const SimulatedWork*, size_t, Lowered>, LoneAnswer> answers_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_SIMULATOR_CATALOGUE_H_
