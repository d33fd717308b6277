// Who calls: the principal that the scheduler shares the device between. Includes gRPC.
#ifndef EDGEWISE_SERVER_GUARD_PRINCIPAL_H_
#define EDGEWISE_SERVER_GUARD_PRINCIPAL_H_

#include <grpcpp/server_context.h>

#include <string>

#include "absl/status/statusor.h"
#include "server/guard/auth.h"
#include "server/request/request.h"

namespace edgewise::server {

// The caller's token, as the first 16 hexadecimal digits of its digest; else the subject of the client's certificate;
// else the IP address without its port. Errors: Gate::Admit. Any thread.
absl::StatusOr<Principal> PrincipalOf(const grpc::ServerContextBase& call, const Gate& gate);

// "ipv4:10.0.0.1:1234" without ":1234".
std::string WithoutPort(const std::string& peer);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_GUARD_PRINCIPAL_H_
