#include "server/oip/describe.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "model/config/config.h"
#include "model/kinds/kind.h"
#include "server/oip/model_tensors.h"

namespace edgewise::server {
namespace {

absl::StatusOr<Resolved> Find(const Repository& repository, const std::string& name, const std::string& version) {
  int64_t number = 0;
  REFUSE_IF(!version.empty() && (!absl::SimpleAtoi(version, &number) || number < 1), "version", "is ", Quoted(version),
            "; it is a number from 1, or empty for the latest");
  return repository.Resolve(name, number);
}

absl::StatusOr<std::shared_ptr<const LoadedModel>> FindLoaded(const Repository& repository, const std::string& name,
                                                              const std::string& version) {
  ASSIGN_OR_RETURN(Resolved resolved, Find(repository, name, version));
  RETURN_IF_ERROR(resolved.status);
  return std::move(resolved.loaded);
}

template <typename Info>
void FillMetadata(const Info& info, const std::vector<int64_t>& shape, inference::DataType type,
                  inference::ModelMetadataResponse::TensorMetadata& tensor) {
  tensor.set_name(info.name);
  tensor.set_datatype(DatatypeName(type));
  tensor.mutable_shape()->Add(shape.begin(), shape.end());
}

void SetSum(const ModelTotals::Sum& sum, inference::StatisticDuration& duration) {
  duration.set_count(sum.count);
  duration.set_ns(static_cast<uint64_t>(sum.seconds * 1e9));
}

void FillStatistics(const LoadedModel& model, inference::ModelStatistics& message) {
  const ModelTotals totals = model.metrics->Totals();
  message.set_name(model.name);
  message.set_version(absl::StrCat(model.version));
  message.set_last_inference(totals.last_ms);
  message.set_inference_count(totals.inputs);
  message.set_execution_count(totals.executions);
  inference::InferStatistics& sums = *message.mutable_inference_stats();
  SetSum(totals.success, *sums.mutable_success());
  SetSum(totals.fail, *sums.mutable_fail());
  SetSum(totals.queue, *sums.mutable_queue());
  SetSum(totals.input, *sums.mutable_compute_input());
  SetSum(totals.forward, *sums.mutable_compute_infer());
  SetSum(totals.output, *sums.mutable_compute_output());
}

}  // namespace

inference::ServerMetadataResponse DescribeServer() {
  inference::ServerMetadataResponse response;
  response.set_name("edgewise");
  response.set_version(EDGEWISE_VERSION);
  for (const char* extension :
       {"binary_tensor_data", "model_configuration", "parameters", "schedule_policy", "statistics"}) {
    response.add_extensions(extension);
  }
  return response;
}

absl::StatusOr<inference::ModelReadyResponse> DescribeReady(const Repository& repository, const std::string& name,
                                                            const std::string& version) {
  ASSIGN_OR_RETURN(const Resolved resolved, Find(repository, name, version));
  const bool known = absl::IsUnavailable(resolved.status) || absl::IsFailedPrecondition(resolved.status);
  if (!resolved.status.ok() && !known) return resolved.status;
  inference::ModelReadyResponse response;
  response.set_ready(resolved.status.ok());
  return response;
}

absl::StatusOr<inference::ModelMetadataResponse> DescribeModel(const Repository& repository, const std::string& name,
                                                               const std::string& version) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const LoadedModel> loaded, FindLoaded(repository, name, version));
  const Model& model = *loaded->model;
  const ModelConfig& config = model.config();
  inference::ModelMetadataResponse response;
  response.set_name(name);
  response.set_platform("edgewise");
  for (const ModelStatus& status : repository.List()) {
    if (status.name == name && status.loaded) response.add_versions(absl::StrCat(status.version));
  }
  for (const InputTensorInfo& info : InputsOf(model)) {
    FillMetadata(info, info.shape, info.type, *response.add_inputs());
  }
  for (const OutputTensorInfo& info : OutputsOf(model)) {
    if (!info.by_name) FillMetadata(info, info.shape(), info.type(), *response.add_outputs());
  }
  auto& properties = *response.mutable_properties();
  properties["task"] = ModelTaskName(config.task);
  properties["attention"] = AttentionName(config);
  properties["max_tokens"] = absl::StrCat(config.max_position_embeddings);
  return response;
}

absl::StatusOr<inference::ModelConfigResponse> DescribeConfig(const Repository& repository,
                                                              const ServerOptions& options, const std::string& name,
                                                              const std::string& version) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const LoadedModel> loaded, FindLoaded(repository, name, version));
  const Model& model = *loaded->model;
  inference::ModelConfigResponse response;
  inference::ModelConfig& config = *response.mutable_config();
  config.set_name(name);
  config.set_backend("edgewise");
  config.mutable_version_policy()->mutable_all();
  config.set_max_batch_size(static_cast<int32_t>(options.limits.max_inputs));
  for (const InputTensorInfo& info : InputsOf(model)) {
    inference::ModelInput& input = *config.add_input();
    input.set_name(info.name);
    input.set_data_type(info.type);
    input.mutable_dims()->Add(info.shape.begin() + 1, info.shape.end());
    input.set_optional(info.optional);
  }
  for (const OutputTensorInfo& info : OutputsOf(model)) {
    if (info.by_name) continue;
    inference::ModelOutput& output = *config.add_output();
    const std::vector<int64_t> shape = info.shape();
    output.set_name(info.name);
    output.set_data_type(info.type());
    output.mutable_dims()->Add(shape.begin() + 1, shape.end());
  }
  inference::ModelDynamicBatching& batching = *config.mutable_dynamic_batching();
  batching.set_priority_levels(kPriorityLevels);
  batching.set_default_priority_level(kDefaultPriority);
  batching.mutable_default_queue_policy()->set_allow_timeout_override(true);
  batching.mutable_default_queue_policy()->set_max_queue_size(options.queue.max_requests);
  (*config.mutable_parameters())["task"].set_string_value(ModelTaskName(model.config().task));
  config.mutable_model_transaction_policy()->set_decoupled(false);
  return response;
}

absl::StatusOr<inference::ModelStatisticsResponse> DescribeStatistics(const Repository& repository,
                                                                      const std::string& name,
                                                                      const std::string& version) {
  inference::ModelStatisticsResponse response;
  if (!name.empty()) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const LoadedModel> loaded, FindLoaded(repository, name, version));
    FillStatistics(*loaded, *response.add_model_stats());
    return response;
  }
  for (const ModelStatus& status : repository.List()) {
    if (status.loaded) FillStatistics(*status.loaded, *response.add_model_stats());
  }
  return response;
}

inference::RepositoryIndexResponse DescribeRepository(const Repository& repository, bool ready) {
  inference::RepositoryIndexResponse response;
  for (const ModelStatus& status : repository.List()) {
    const bool serves = status.state == ModelState::kReady;
    if (ready && !serves) continue;
    inference::RepositoryIndexResponse::ModelIndex& model = *response.add_models();
    model.set_name(status.name);
    model.set_version(absl::StrCat(status.version));
    model.set_state(serves ? "READY" : status.state == ModelState::kLoading ? "LOADING" : "UNAVAILABLE");
    model.set_reason(status.state == ModelState::kDraining ? "the server stops" : status.error);
  }
  return response;
}

}  // namespace edgewise::server
