// Our own API as JSON, by Protobuf's mapping: Predict at /edgewise/v1/predict, Generate as server-sent events at
// /edgewise/v1/generate, ListModels and GetModel below /edgewise/v1/models.
#ifndef EDGEWISE_SERVER_HTTP_NATIVE_H_
#define EDGEWISE_SERVER_HTTP_NATIVE_H_

#include "server/http/routes.h"
#include "server/wire/call_parts.h"

namespace edgewise::server {

// `parts` must outlive the routes.
void AddNativeRoutes(Routes& routes, CallParts& parts);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_NATIVE_H_
