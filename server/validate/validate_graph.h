// Graphs that a request gives, and the sizes of graphs and answers, known before anything is computed.
#ifndef EDGEWISE_SERVER_VALIDATE_VALIDATE_GRAPH_H_
#define EDGEWISE_SERVER_VALIDATE_VALIDATE_GRAPH_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "edgewise/v1/inference.pb.h"
#include "model/model.h"
#include "server/options.h"
#include "server/validate/validate.h"

namespace edgewise::server {

// Converts a graph whose size is allowed. What it says is checked by Model::CheckGraph. `field`: "inputs[0].graph".
absl::StatusOr<Graph> ParseGraph(const v1::Graph& graph, const Model& model, const RequestLimits& limits,
                                 const std::string& field);

// RESOURCE_EXHAUSTED or INVALID_ARGUMENT when the answer, or what is held for the samples, would be too large.
absl::Status CheckResultSize(const ParsedRequest& request, const Model& model, const RequestLimits& limits);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_VALIDATE_VALIDATE_GRAPH_H_
