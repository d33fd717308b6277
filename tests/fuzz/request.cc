// Fuzz target of the checks of messages.
#include <google/protobuf/stubs/logging.h>

#include <cmath>
#include <iterator>

#include "edgewise/v1/inference.pb.h"
#include "model/forward/generation.h"
#include "server/oip/infer.h"
#include "server/request/cost_model.h"
#include "server/validate/validate.h"
#include "tests/fuzz/targets.h"
#include "tests/model/model_kinds.h"

namespace edgewise::fuzz {
namespace {

// What is run: it takes microseconds.
constexpr uint64_t kFewTokens = 48;
constexpr uint32_t kFewSamples = 4, kFewNewTokens = 4;

constexpr const char* kKinds[] = {
    "bernoulli",        "pair",          "tokens",       "features_grid", "regression_sbm",  "bias_values_sbm",
    "bias_buckets_ssa", "ssa_none_keep", "lm_ssa_local", "lm_dense",      "lm_windows_block"};

// Folders of Hugging Face, after the others: one with a chat template, one that takes images.
constexpr const char* kFolders[] = {"_chat/qwen3/1", "_images/vit_classes/1"};

// One of every task and input. The last one of kKinds has a tokenizer too.
const std::vector<testing::LoadedModel>& Models() {
  static const std::vector<testing::LoadedModel>& models = *[] {
    auto* loaded = new std::vector<testing::LoadedModel>;
    const testing::TemporaryFolder folder;
    const std::vector<testing::ModelKind> kinds = testing::ModelKinds();
    for (const char* name : kKinds) {
      for (const testing::ModelKind& kind : kinds) {
        if (kind.name != name) continue;
        nlohmann::json config = testing::ConfigOf(kind);
        if (name == *std::rbegin(kKinds)) {
          config["tokenizer"] = {{"kind", "byte"}, {"offset", 0}};
          config["vocab_size"] = 256;
        }
        loaded->push_back(testing::LoadModel(testing::WriteModel(folder.path() + "/" + name, config)));
      }
    }
    Require(loaded->size() == std::size(kKinds), "every kind is there");
    for (const char* name : kFolders) loaded->push_back(testing::LoadModel(EDGEWISE_FUZZ_TESTDATA + std::string(name)));
    return loaded;
  }();
  return models;
}

server::RequestLimits Limits() {
  server::RequestLimits limits;
  limits.allow_graphs = true;
  limits.max_cache_bytes = uint64_t{1} << 24;
  return limits;
}

void RunInputs(const Model& model, const server::Request& request) {
  server::CostModel costs;
  uint64_t samples = 0;
  for (const ModelInput& input : request.work.inputs) {
    Require(!input.sequences.empty() && input.samples >= 1, "a valid input has a sequence and a sample");
    Require(input.max_edges >= model.LeastEdges(input), "a valid cap keeps the forced edges");
    const server::Demand demand = costs.Expected(model, input);
    Require(demand.tokens > 0.0 && std::isfinite(demand.pairs) && demand.edges <= demand.pairs + 0.5,
            "the demand of a valid input is known");
    samples = std::max<uint64_t>(samples, input.samples);
  }
  if (request.work.cost > kFewTokens || samples > kFewSamples) return;
  for (const InputResult& result : testing::RunAll(model, request.work.inputs)) {
    Require(result.status.ok() || absl::IsInternal(result.status), "a valid input has an answer, or is not finite");
  }
}

void RunGeneration(const Model& model, server::Request& request) {
  server::GenerationWork& work = *request.work.generation;
  Require(work.cache_bytes.longest > 0 && work.cache_bytes.longest <= Limits().max_cache_bytes,
          "a valid generation has room");
  if (request.work.cost > kFewTokens || work.options.samples > kFewSamples) return;
  work.options.max_new_tokens = std::min(work.options.max_new_tokens, kFewNewTokens);
  auto generation = Generation::Create(model, std::move(work.prompt), work.options);
  if (!generation.ok()) return RequireReadable(std::string(generation.status().message()));
  while (!(*generation)->done()) {
    const absl::Status step = (*generation)->Step();
    Require(step.ok() || absl::IsInternal(step), "a valid generation ends, or is not finite");
    if (!step.ok()) return;
    if (const auto token = (*generation)->TakeToken()) RequireUtf8(token->text);
  }
}

template <typename Message>
absl::Status Check(const std::string& bytes, const Model& model, server::Request& request) {
  Message message;
  if (!message.ParseFromString(bytes)) return absl::DataLossError("no message");
  absl::StatusOr<server::Work> work = server::Validate(message, model, model.config().profiles, Limits());
  if (work.ok()) request.work = *std::move(work);
  return work.status();
}

constexpr uint64_t kObjectBytes = 1024;  // the request itself

// A call of the Open Inference Protocol, which becomes a PredictRequest.
absl::Status CheckInfer(const std::string& bytes, const Model& model, server::Request& request) {
  inference::ModelInferRequest message;
  if (!message.ParseFromString(bytes)) return absl::DataLossError("no message");
  const auto tensors = server::TensorsOf(message);
  if (!tensors.ok()) return tensors.status();
  server::MemoryLedger ledger(uint64_t{64} << 20);
  server::MemoryHold memory(ledger);
  server::InferCall call;
  absl::Status status = server::ReadInfer(model, Limits(), message, *tensors, {memory}, call);
  Require(call.request.SpaceUsedLong() <= memory.bytes() + kObjectBytes, "a call takes no more than was counted");
  if (status.ok()) {
    absl::StatusOr<server::Work> work =
        server::Validate(call.request, model, model.config().profiles, Limits(), {.deadline = server::Time()});
    if (work.ok()) request.work = *std::move(work);
    status = work.status();
  }
  const absl::Status named = call.Named(status);
  Require(named.code() == status.code(), "an error keeps its code");
  return named;
}

// The model and what the checks say.
absl::Status Check(const std::string& bytes, const Model*& model, server::Request& request) {
  static google::protobuf::LogSilencer silence;  // of what it says of every text that is not UTF-8
  if (bytes.empty()) return absl::DataLossError("no message");
  const auto choice = static_cast<uint8_t>(bytes[0]);
  model = Models()[choice % 16 % Models().size()].model.get();
  const std::string message = bytes.substr(1);
  return choice >= 128  ? Check<v1::GenerateRequest>(message, *model, request)
         : choice >= 64 ? CheckInfer(message, *model, request)
                        : Check<v1::PredictRequest>(message, *model, request);
}

}  // namespace

void FuzzRequest(const std::string& bytes) {
  const Model* model = nullptr;
  server::Request request;
  const absl::Status status = Check(bytes, model, request);
  if (!status.ok()) return RequireReadable(std::string(status.message()));
  request.work.generation ? RunGeneration(*model, request) : RunInputs(*model, request);
}

absl::Status CheckRequest(const std::string& bytes) {
  const Model* model = nullptr;
  server::Request request;
  return Check(bytes, model, request);
}

}  // namespace edgewise::fuzz
