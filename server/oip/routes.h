// The Open Inference Protocol over HTTP: /v2, with the binary form of tensors.
#ifndef EDGEWISE_SERVER_OIP_ROUTES_H_
#define EDGEWISE_SERVER_OIP_ROUTES_H_

#include "server/http/routes.h"
#include "server/wire/call_parts.h"

namespace edgewise::server {

// `parts` must outlive the routes.
void AddOpenInferenceRoutes(Routes& routes, CallParts& parts);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OIP_ROUTES_H_
