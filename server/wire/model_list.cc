#include "server/wire/model_list.h"

#include <vector>

#include "server/handler/respond.h"

namespace edgewise::server {
namespace {

void FillInfo(const CallParts& parts, const ModelStatus& status, bool vocabulary, v1::ModelInfo& info) {
  FillModelInfo(status, vocabulary, info);
  info.set_max_message_bytes(parts.message_limit());
}

}  // namespace

void FillModels(const CallParts& parts, v1::ListModelsResponse& response) {
  for (const ModelStatus& status : parts.repository.List()) FillInfo(parts, status, false, *response.add_models());
}

absl::Status FillModel(const CallParts& parts, const std::string& name, int64_t version,
                       v1::GetModelResponse& response) {
  const std::vector<ModelStatus> list = parts.repository.List();
  const ModelStatus* found = nullptr;
  for (const ModelStatus& candidate : list) {
    if (candidate.name != name) continue;
    if (version != 0 && candidate.version != version) continue;
    if (!found || candidate.loaded || !found->loaded) found = &candidate;
  }
  if (!found) {
    const absl::Status status = parts.repository.Resolve(name, version).status;
    return status.ok() ? absl::UnavailableError("the repository is changing") : status;
  }
  FillInfo(parts, *found, true, *response.mutable_model());
  return absl::OkStatus();
}

}  // namespace edgewise::server
