// InferenceService with messages as bytes: a call is known from its headers on, and its message is looked at before it
// is parsed. Handlers never block; answers are sent by the thread that finishes them (schedule/finisher.h).
#ifndef EDGEWISE_SERVER_WIRE_SERVICE_H_
#define EDGEWISE_SERVER_WIRE_SERVICE_H_

#include "server/wire/context.h"

namespace edgewise::server {

class InferenceServiceImpl final : public RawService {
 public:
  // `context` must outlive the service.
  explicit InferenceServiceImpl(RpcContext& context);
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_SERVICE_H_
