// inference.GRPCInferenceService: the Open Inference Protocol over gRPC, beside our own service and through the same
// gates (wire/raw_call.h).
#ifndef EDGEWISE_SERVER_OIP_SERVICE_H_
#define EDGEWISE_SERVER_OIP_SERVICE_H_

#include <functional>
#include <string>

#include "server/wire/context.h"

namespace edgewise::server {

class OpenInferenceService final : public RawService {
 public:
  // `context` must outlive the service. `ready`: whether the server is; called on any thread.
  OpenInferenceService(RpcContext& context, std::function<bool()> ready);
};

// Why a method of any service is not served: a message that is never empty, which clients of C++ take for success.
std::string WhyNotServed(const std::string& method);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OIP_SERVICE_H_
