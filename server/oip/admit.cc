#include "server/oip/admit.h"

#include "absl/strings/numbers.h"
#include "base/field_error.h"
#include "base/status_macros.h"

namespace edgewise::server {

absl::Status AdmitInfer(CallParts& parts, const inference::ModelInferRequest& message,
                        const absl::StatusOr<std::vector<InputTensor>>& tensors, const Ticket& ticket,
                        MemoryHold& memory, InferCall& infer) {
  infer.request.set_model(message.model_name());
  const auto read = [&]() -> absl::Status {
    int64_t version = 0;
    const std::string& text = message.model_version();
    const bool right = text.empty() || (absl::SimpleAtoi(text, &version) && version >= 1);
    parts.handler.Name(*ticket.call, message.model_name(), right ? version : 0);
    REFUSE_IF(!right, "model_version", "is ", Quoted(text), "; it is a number from 1, or empty for the latest");
    infer.request.set_version(version);
    const Resolved resolved = parts.repository.Resolve(message.model_name(), version);
    RETURN_IF_ERROR(resolved.status);
    RETURN_IF_ERROR(tensors.status());
    infer.request.set_version(resolved.loaded->version);
    const InferBounds bounds = {memory, parts.message_limit(),
                                [&] { return parts.handler.CheckWanted(ticket.stopping, ticket.deadline); }};
    return ReadInfer(*resolved.loaded->model, parts.options.limits, message, *tensors, bounds, infer);
  };
  return infer.Named(read());
}

}  // namespace edgewise::server
