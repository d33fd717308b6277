#include "model/load.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/safetensors.h"
#include "model/forward/pass.h"
#include "model/reserve.h"
#include "text/status_macros.h"

namespace edgewise {
namespace {

constexpr uint64_t kMaxConfigBytes = 64 << 20;

// Puts the file's name before a message.
absl::Status In(const std::string& file, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(file, ": ", std::string(status.message())));
}

absl::StatusOr<ModelSequence> ShortSequence(const Model& model) {
  const ModelConfig& config = model.config();
  if (config.feature_size > 0) {
    const uint32_t columns = static_cast<uint32_t>(config.feature_size);
    return model.PrepareFeatures(4, columns, std::vector<float>(4 * columns, 0.5f), TruncateMode::kTail);
  }
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < config.vocab_size && ids.size() < 4; ++id) {
    if (id != config.pad_token_id && id != config.cls_token_id) ids.push_back(id);
  }
  if (ids.empty()) return absl::InvalidArgumentError("the vocabulary has no token that is neither pad nor CLS");
  return model.Prepare(ids, TruncateMode::kTail);
}

// One forward pass of a short input: finite weights can still give numbers that are not.
absl::Status SelfTest(const Model& model, const RunWork& use_backend) {
  const ModelConfig& config = model.config();
  ASSIGN_OR_RETURN(const ModelSequence sequence, ShortSequence(model));
  std::vector<ModelInput> inputs(1);
  inputs[0].sequences.assign(config.task == ModelTask::kPairClassification ? 2 : 1, sequence);
  std::optional<Pass> pass;
  absl::Status status = use_backend([&] {
    pass.emplace(model, inputs, Pass::Options{});
    return absl::OkStatus();
  });
  while (status.ok() && !pass->done()) status = use_backend([&] { return pass->Step(); });
  if (status.ok()) status = pass->TakeResult(0).status;
  status.Update(use_backend([&] {
    pass.reset();
    return absl::OkStatus();
  }));
  return status;
}

}  // namespace

absl::StatusOr<ModelConfig> LoadConfig(const std::string& directory, AttentionKinds kinds) {
  const absl::StatusOr<std::string> text = ReadSmallFile(directory + "/config.json", kMaxConfigBytes);
  if (!text.ok()) return In("config.json", text.status());
  absl::StatusOr<ModelConfig> config = ParseModelConfig(*text, kinds);
  if (!config.ok()) return In("config.json", config.status());
  return config;
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& directory, Backend& backend, AttentionKinds kinds,
                                                 const RunWork& use_backend) {
  ASSIGN_OR_RETURN(ModelConfig config, LoadConfig(directory, kinds));
  auto file = SafetensorsFile::Open(directory + "/model.safetensors");
  if (!file.ok()) return In("model.safetensors", file.status());
  const RunWork& prepare = backend.PreparesBeside() ? RunHere : use_backend;
  auto weights = LoadWeights(config, **file, backend, prepare);
  if (!weights.ok()) return In("model.safetensors", weights.status());
  config.head_dim = AlignedHeadDim(config, backend);
  auto model = std::make_unique<Model>(std::move(config), *std::move(weights), (*file)->sha256(),
                                       (*file)->data_bytes() / sizeof(float), backend);

  absl::Status status = SelfTest(*model, use_backend);
  if (status.ok()) status = prepare([&] { return ReserveForPasses(*model); });
  if (status.ok()) return model;
  // Numbers that are not finite are the file's fault; running out of memory is not.
  const absl::StatusCode code =
      status.code() == absl::StatusCode::kInternal ? absl::StatusCode::kInvalidArgument : status.code();
  return In("model.safetensors", absl::Status(code, absl::StrCat("self-test: ", std::string(status.message()))));
}

}  // namespace edgewise
