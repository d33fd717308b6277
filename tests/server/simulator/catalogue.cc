#include "tests/server/simulator/catalogue.h"

#include <algorithm>
#include <random>

#include "model/forward/edge_budget.h"

namespace edgewise::server {
namespace {

using testing::ModelKind;

// Short contexts, so that texts of a few tokens are long; but where a text is generated, of several pages.
constexpr int kContext = 24, kGenerationContext = 200;
constexpr int kWorksOfAModel = 16;

ModelKind KindOf(const std::string& name) {
  const std::vector<ModelKind> kinds = testing::ModelKinds();
  const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const ModelKind& k) { return k.name == name; });
  if (kind == kinds.end()) throw std::runtime_error("no kind " + name);
  return *kind;
}

std::vector<ModelKind> KindsOfTheCatalogue() {
  return {KindOf("bernoulli"), KindOf("lm_ssa_local"), KindOf("block_local")};
}

// Where the first model has token 49 at position 10, its answer is not finite. Its self-test does not see it.
constexpr int32_t kPoison = 49;
constexpr size_t kPoisonPosition = 10;

void WriteModel(const std::string& folder, const ModelKind& kind, uint64_t seed) {
  nlohmann::json config = testing::ConfigOf(kind);
  config["max_position_embeddings"] = kind.name == "lm_ssa_local" ? kGenerationContext : kContext;
  auto tensors = testing::RandomTensors(config, seed);
  if (kind.name == "bernoulli") {
    tensors["embeddings.word.weight"].values[kPoison * 32] = 3e38f;
    tensors["embeddings.position.weight"].values[kPoisonPosition * 32] = 3e38f;
  }
  testing::WriteFile(folder + "/config.json", config.dump());
  testing::WriteFile(folder + "/model.safetensors", testing::SafetensorsBytes(tensors));
}

LoneAnswer Predict(const Model& model, const SimulatedWork& work, const Lowered& lowered) {
  LoneAnswer answer;
  for (ModelInput input : work.inputs) {
    input.samples = lowered.samples;
    const auto edges = static_cast<uint64_t>(lowered.cap);
    const uint64_t cap = lowered.by_density ? EdgesOfDensity(lowered.cap, model.Pairs(input)) : edges;
    if (lowered.cap > 0.0) input.max_edges = std::min(input.max_edges, cap);
    answer.results.push_back(testing::RunOne(model, input));
    if (!answer.results.back().status.ok()) answer.code = answer.results.back().status.code();
  }
  return answer;
}

LoneAnswer Generate(const Model& model, const SimulatedWork& work) {
  LoneAnswer answer;
  auto generation = Generation::Create(model, *model.Prepare(work.prompt, TruncateMode::kRefuse), work.options);
  answer.code = generation.status().code();
  while (generation.ok() && !(*generation)->done()) {
    answer.code = (*generation)->Step().code();
    if (answer.code != absl::StatusCode::kOk) break;
    if (auto token = (*generation)->TakeToken()) answer.tokens.push_back(*std::move(token));
  }
  return answer;
}

}  // namespace

bool SameToken(const GeneratedToken& a, const GeneratedToken& b) {
  return a.token_id == b.token_id && a.text == b.text && a.log_probability == b.log_probability &&
         a.edges.edges == b.edges.edges && a.edges.max_sample_edges == b.edges.max_sample_edges &&
         a.edges.pairs == b.edges.pairs && a.edges.budget == b.edges.budget && a.edges.capped == b.edges.capped;
}

Catalogue::Catalogue() {
  const std::vector<ModelKind> kinds = KindsOfTheCatalogue();
  for (size_t model = 0; model < kModels; ++model) {
    for (size_t version = 0; version < kVersions; ++version) {
      WriteModel(Folder(model, version), kinds[model], 1 + version);
      models_.push_back(testing::LoadModel(Folder(model, version)));
    }
    AddPredicts(model, kinds[model]);
  }
  AddGenerations(kGenerates);
}

std::string Catalogue::Folder(size_t model, size_t version) const {
  return folder_.path() + "/" + std::to_string(model) + "/" + std::to_string(version);
}

void Catalogue::AddPredicts(size_t model, const ModelKind& kind) {
  std::mt19937_64 random(100 + model);
  for (int w = 0; w < kWorksOfAModel; ++w) {
    SimulatedWork work;
    work.model = model;
    const uint32_t samples = std::vector<uint32_t>{1, 1, 2, 4, 16}[random() % 5];
    const double tolerance = random() % 6 == 0 ? 0.05 : 0.0;
    const bool dense = random() % 8 == 0;
    const int caps = static_cast<int>(random() % 4);
    for (uint64_t inputs = 1 + random() % 3; inputs > 0; --inputs) {
      ModelInput input = testing::RandomInput(kind, ModelOf(model), random, kContext - 4);
      input.samples = samples;
      input.tolerance = tolerance;
      input.dense = dense;
      const uint64_t pairs = ModelOf(model).Pairs(input);
      if (caps == 0) input.max_edges = std::max({uint64_t{1}, pairs / 4, ModelOf(model).LeastEdges(input)});
      work.inputs.push_back(std::move(input));
    }
    predicts_.push_back(std::move(work));
  }
  if (model != 0) return;
  SimulatedWork poisoned;
  poisoned.inputs.push_back(testing::MakeInput(ModelOf(0), {1, 2, 3}));
  std::vector<int32_t> tokens(kPoisonPosition + 2, 7);
  tokens[kPoisonPosition] = kPoison;
  poisoned.inputs.push_back(testing::MakeInput(ModelOf(0), tokens));
  predicts_.push_back(std::move(poisoned));
}

void Catalogue::AddGenerations(size_t model) {
  std::mt19937_64 random(200);
  for (int w = 0; w < kWorksOfAModel; ++w) {
    SimulatedWork work;
    work.model = model;
    const bool grows = w % 4 == 0;  // by a page at least
    const uint64_t prompt = grows ? 50 + random() % 150 : 1 + random() % (kContext - 4);
    work.prompt = testing::RandomTokens(static_cast<int32_t>(prompt), kPoison, random());
    work.options.seed = random();
    work.options.samples = random() % 3 == 0 ? 3 : 1;
    work.options.max_new_tokens = static_cast<uint32_t>(1 + random() % (grows ? 80 : 16));
    if (random() % 2 == 0) work.options.overflow = Overflow::kHalve;
    work.options.temperature = random() % 2 == 0 ? 0.0 : 1.0;
    if (random() % 4 == 0) work.options.max_density = 0.5;
    generations_.push_back(std::move(work));
  }
}

const LoneAnswer& Catalogue::AnswerOf(const SimulatedWork& work, size_t version, Lowered lowered) {
  if (lowered.samples == 0 && !work.generates()) lowered.samples = work.inputs[0].samples;
  const auto [answer, first] = answers_.try_emplace({&work, version, lowered});
  if (first) {
    const Model& model = *models_[work.model * kVersions + version].model;
    answer->second = work.generates() ? Generate(model, work) : Predict(model, work, lowered);
  }
  return answer->second;
}

}  // namespace edgewise::server
