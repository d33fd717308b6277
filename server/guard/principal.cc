#include "server/guard/principal.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace edgewise::server {

std::string WithoutPort(const std::string& peer) {
  return absl::StartsWith(peer, "ip") ? peer.substr(0, peer.rfind(':')) : peer;
}

absl::StatusOr<Principal> PrincipalOf(const grpc::ServerContextBase& call, const Gate& gate) {
  std::vector<absl::string_view> authorization;
  if (gate.tokens() != nullptr) {
    for (auto [header, end] = call.client_metadata().equal_range("authorization"); header != end; ++header) {
      authorization.emplace_back(header->second.data(), header->second.size());
    }
  }
  ASSIGN_OR_RETURN(const std::optional<Principal> known, gate.Admit(authorization));
  if (known) return *known;
  if (const std::shared_ptr<const grpc::AuthContext> client = call.auth_context()) {
    const std::vector<grpc::string_ref> subjects = client->FindPropertyValues(GRPC_X509_SUBJECT_PROPERTY_NAME);
    if (!subjects.empty()) return Principal{std::string(subjects[0].data(), subjects[0].size())};
  }
  return Principal{WithoutPort(call.peer())};
}

}  // namespace edgewise::server
