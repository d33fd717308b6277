// Health and metrics, of both HTTP ports.
#ifndef EDGEWISE_SERVER_HTTP_STATE_H_
#define EDGEWISE_SERVER_HTTP_STATE_H_

#include <functional>
#include <string>

#include "server/http/routes.h"

namespace edgewise::server {

// Called on any thread.
struct StateOfServer {
  std::function<std::string()> metrics;            // exposition text
  std::function<bool(std::string* json)> healthy;  // fills the body; true: 200, false: 503
};

// /livez and /v2/health/live, whether the process answers; /readyz, /health, /healthz and /v2/health/ready, whether the
// server serves; /metrics, compressed where the client takes gzip. HEAD makes no page of metrics, so it takes none away
// from those who read them (Metrics::Render).
void AddStateRoutes(Routes& routes, StateOfServer state);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_STATE_H_
