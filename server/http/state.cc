#include "server/http/state.h"

#include <utility>

#include "server/observe/gzip.h"

namespace edgewise::server {

void AddStateRoutes(Routes& routes, StateOfServer state) {
  for (const char* path : {"/livez", "/v2/health/live"}) {
    routes.Add({.method = "GET",
                .path = path,
                .error = PlainError,
                .open = true,
                .quiet = true,
                .answer = R"({"live":"boolean"})",
                .serve = [](const std::shared_ptr<Exchange>& exchange) { exchange->AnswerJson("{\"live\":true}\n"); }});
  }
  for (const char* path : {"/readyz", "/health", "/healthz", "/v2/health/ready"}) {
    routes.Add(
        {.method = "GET",
         .path = path,
         .error = PlainError,
         .open = true,
         .quiet = true,
         .answer =
             R"({"status":"string","ready":"boolean","reason?":"string","models":[{"name":"string","version":"integer","state":"string"}]})",
         .serve = [healthy = state.healthy](const std::shared_ptr<Exchange>& exchange) {
           std::string json;
           const int code = healthy(&json) ? 200 : 503;
           exchange->Answer({.code = code, .body = std::move(json)});
         }});
  }
  routes.Add(
      {.method = "GET",
       .path = "/metrics",
       .error = PlainError,
       .quiet = true,
       .apart = true,
       .answer = R"("text/plain")",
       .serve = [metrics = std::move(state.metrics)](const std::shared_ptr<Exchange>& exchange) {
         HttpAnswer answer{.type = "text/plain; version=0.0.4; charset=utf-8", .fields = {{"Vary", "Accept-Encoding"}}};
         if (exchange->request.method != "HEAD") answer.body = metrics();
         if (exchange->request.takes_gzip) {
           std::string packed = Gzip(answer.body);
           if (!packed.empty()) {
             answer.fields.emplace_back("Content-Encoding", "gzip");
             answer.body = std::move(packed);
           }
         }
         exchange->Answer(std::move(answer));
       }});
}

}  // namespace edgewise::server
