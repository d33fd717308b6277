// The parts of the server that every RPC uses.
#ifndef EDGEWISE_SERVER_WIRE_CONTEXT_H_
#define EDGEWISE_SERVER_WIRE_CONTEXT_H_

#include <grpcpp/server_context.h>

#include "server/guard/listener.h"
#include "server/guard/open_rpcs.h"
#include "server/wire/call_parts.h"
#include "server/wire/grpc_status.h"
#include "server/wire/raw_call.h"

namespace edgewise::server {

// All parts must outlive the context and every RPC.
struct RpcContext : CallParts {
  OpenRpcs open = {};
  Listener* listener = nullptr;  // null: nothing is read late

  // Sends the status of a call, after all that was written.
  void Finish(RawReactor& reactor, const grpc::ServerContextBase& call, const absl::Status& status) {
    if (!handler.draining()) return reactor.Finish(ToGrpc(status));
    open.FinishAfterWrites(call.peer(), [&reactor, status] { reactor.Finish(ToGrpc(status)); });
  }
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_CONTEXT_H_
