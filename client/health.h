// grpc.health.v1 without its generated code: one string goes out, one enum comes back. A program may link the library
// beside any copy of health.proto; two registered copies of one file would abort at start-up.
#ifndef EDGEWISE_CLIENT_HEALTH_H_
#define EDGEWISE_CLIENT_HEALTH_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "edgewise/client/client.h"

namespace edgewise::internal {

grpc::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext& context,
                         const std::string& service, HealthState& state);

// Until on_state returns false (OK) or the stream ends.
grpc::Status WatchHealth(const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext& context,
                         const std::string& service, const std::function<bool(HealthState)>& on_state);

}  // namespace edgewise::internal

#endif  // EDGEWISE_CLIENT_HEALTH_H_
