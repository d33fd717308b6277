#include "model/load/load.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/status_macros.h"
#include "model/checkpoint/hugging_face/folder.h"
#include "model/checkpoint/hugging_face/other_formats.h"
#include "model/checkpoint/hugging_face/tensors.h"
#include "model/checkpoint/parse_config.h"
#include "model/checkpoint/safetensors.h"
#include "model/forward/pass.h"
#include "model/kinds/kind.h"
#include "model/load/reserve.h"

namespace edgewise {
namespace {

constexpr uint64_t kMaxConfigBytes = 64 << 20;

// Puts the file's name before a message.
absl::Status In(const std::string& file, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(file, ": ", std::string(status.message())));
}

// With what the folder has instead.
absl::Status Missing(const std::string& file, const ModelFolder& files) {
  return absl::NotFoundError(absl::StrCat(file, ": no such file", hugging_face::OtherFormat(file, files)));
}

absl::StatusOr<ModelSequence> ShortSequence(const Model& model) {
  const ModelConfig& config = model.config();
  if (config.feature_size > 0) {
    const uint32_t columns = static_cast<uint32_t>(config.feature_size);
    const auto rows = static_cast<uint32_t>(std::max(4, FewestRows(config)));
    return model.PrepareFeatures(rows, columns, std::vector<float>(size_t{rows} * columns, 0.5f), TruncateMode::kTail);
  }
  std::vector<int32_t> ids;
  if (config.task == ModelTask::kFillMask) ids.push_back(config.mask_token_id);
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

// The files of a folder but the weights. A folder of our own format has the configuration alone.
absl::StatusOr<hugging_face::Folder> ReadFolder(ModelFolder& files, AttentionKinds kinds) {
  const absl::StatusOr<std::string> text = files.Read("config.json", kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) return Missing("config.json", files);
  if (!text.ok()) return In("config.json", text.status());
  const absl::StatusOr<nlohmann::json> json = ParsePythonJson(*text);
  if (!json.ok()) return In("config.json", json.status());
  if (hugging_face::IsHuggingFace(*json)) return hugging_face::ReadFolder(files, *json);
  absl::StatusOr<ModelConfig> config = ParseModelConfig(*text, kinds);
  if (!config.ok()) return In("config.json", config.status());
  hugging_face::Folder folder;
  folder.config = *std::move(config);
  return folder;
}

// Weights on the backend, and what is known of their files.
struct Loaded {
  std::unique_ptr<const ModelWeights> weights;
  std::string sha256;
  uint64_t parameters = 0;
  std::vector<std::string> skipped_tensors;
};

absl::StatusOr<Loaded> ReadWeights(ModelFolder& files, const hugging_face::Folder& folder, Backend& backend,
                                   const RunWork& prepare) {
  Loaded loaded;
  if (folder.family != nullptr) {
    ASSIGN_OR_RETURN(hugging_face::Tensors read, hugging_face::ReadTensors(files, folder));
    absl::StatusOr<std::unique_ptr<ModelWeights>> weights = PlaceWeights(folder.config, read.tensors, backend, prepare);
    if (!weights.ok()) return In("model.safetensors", weights.status());
    loaded = {*std::move(weights), std::move(read.sha256), read.parameters, std::move(read.skipped)};
    return loaded;
  }
  absl::StatusOr<OpenFile> opened = files.Open("model.safetensors");
  if (absl::IsNotFound(opened.status())) return Missing("model.safetensors", files);
  if (!opened.ok()) return In("model.safetensors", opened.status());
  auto file = SafetensorsFile::Open(*std::move(opened));
  if (!file.ok()) return In("model.safetensors", file.status());
  auto weights = LoadWeights(folder.config, **file, backend, prepare);
  if (!weights.ok()) return In("model.safetensors", weights.status());
  loaded = {*std::move(weights), (*file)->sha256(), (*file)->data_bytes() / sizeof(float), {}};
  return loaded;
}

}  // namespace

absl::StatusOr<ModelConfig> LoadConfig(ModelFolder& files, AttentionKinds kinds) {
  ASSIGN_OR_RETURN(hugging_face::Folder folder, ReadFolder(files, kinds));
  return std::move(folder.config);
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& directory, Backend& backend, AttentionKinds kinds,
                                                 const RunWork& use_backend) {
  ModelFolder files(directory);
  return LoadModel(files, backend, kinds, use_backend);
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(ModelFolder& files, Backend& backend, AttentionKinds kinds,
                                                 const RunWork& use_backend) {
  ASSIGN_OR_RETURN(hugging_face::Folder folder, ReadFolder(files, kinds));
  const RunWork& prepare = backend.PreparesBeside() ? RunHere : use_backend;
  ASSIGN_OR_RETURN(Loaded loaded, ReadWeights(files, folder, backend, prepare));
  ModelConfig config = std::move(folder.config);
  config.head_dim = AlignedHeadDim(config, backend);
  auto model =
      std::make_unique<Model>(std::move(config), std::move(loaded.weights), std::move(loaded.sha256), loaded.parameters,
                              backend, std::move(loaded.skipped_tensors), std::move(folder.tokenizer),
                              std::move(folder.chat), std::move(folder.skipped_fields));

  absl::Status status = SelfTest(*model, use_backend);
  if (status.ok()) status = prepare([&] { return ReserveForPasses(*model); });
  if (status.ok()) return model;
  // Numbers that are not finite are the file's fault; running out of memory is not.
  const absl::StatusCode code =
      status.code() == absl::StatusCode::kInternal ? absl::StatusCode::kInvalidArgument : status.code();
  return In("model.safetensors", absl::Status(code, absl::StrCat("self-test: ", std::string(status.message()))));
}

}  // namespace edgewise
