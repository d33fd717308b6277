// The OpenAPI document of a table of routes.
#ifndef EDGEWISE_SERVER_HTTP_OPENAPI_H_
#define EDGEWISE_SERVER_HTTP_OPENAPI_H_

#include <string>

#include "server/http/routes.h"

namespace edgewise::server {

// GET /openapi.json. `routes` is filled before the port opens.
void AddOpenApiRoute(Routes& routes);

// The document: each route with its body by the descriptor of its message, its answer by its shape, and its errors as
// its API writes them.
//
// A shape is JSON: the name of a type ("integer", "number|null"), of a message ("edgewise.v1.PredictResponse") or of
// another media type ("text/plain"); [shape], a list; or {"field": shape, "field?": shape}, an object and its optional
// fields.
std::string OpenApiOf(const Routes& routes);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_OPENAPI_H_
