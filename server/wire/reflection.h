// grpc.reflection v1 and v1alpha: what the services are and how their messages are made, for tools such as grpcurl.
// gRPC 1.51 has v1alpha alone, on threads of its own that nobody counts (raw_call.h).
#ifndef EDGEWISE_SERVER_WIRE_REFLECTION_H_
#define EDGEWISE_SERVER_WIRE_REFLECTION_H_

#include <google/protobuf/descriptor.h>

#include "server/wire/context.h"

namespace edgewise::server {

class ReflectionService final : public RawService {
 public:
  // `context` must outlive the service.
  explicit ReflectionService(RpcContext& context);

 private:
  class Call;

  RpcContext& context_;
  google::protobuf::DescriptorPool pool_;  // that of the program, and v1alpha, which has the messages of v1
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_REFLECTION_H_
