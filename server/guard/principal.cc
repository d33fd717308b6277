#include "server/guard/principal.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"

namespace edgewise::server {

std::string WithoutPort(const std::string& peer) {
  return absl::StartsWith(peer, "ip") ? peer.substr(0, peer.rfind(':')) : peer;
}

Principal PrincipalOf(const grpc::ServerContextBase& call, const Gate& gate) {
  if (const std::shared_ptr<const TokenSet> tokens = gate.tokens()) {
    const auto header = call.client_metadata().find("authorization");
    if (header != call.client_metadata().end()) {
      const Principal* known = tokens->Find({header->second.data(), header->second.size()});
      if (known != nullptr) return *known;
    }
  }
  if (const std::shared_ptr<const grpc::AuthContext> client = call.auth_context()) {
    const std::vector<grpc::string_ref> subjects = client->FindPropertyValues(GRPC_X509_SUBJECT_PROPERTY_NAME);
    if (!subjects.empty()) return {std::string(subjects[0].data(), subjects[0].size())};
  }
  return {WithoutPort(call.peer())};
}

}  // namespace edgewise::server
