// Graphs that requests bring.
#ifndef EDGEWISE_SERVER_VALIDATE_GRAPH_H_
#define EDGEWISE_SERVER_VALIDATE_GRAPH_H_

#include <string>

#include "absl/status/statusor.h"
#include "edgewise/v1/inference.pb.h"
#include "model/model.h"
#include "server/base/options.h"

namespace edgewise::server {

// Converts a graph after a check of its size. Model::CheckGraph checks the contents. `field`: "inputs[0].graph".
absl::StatusOr<Graph> ParseGraph(const v1::Graph& graph, const Model& model, const RequestLimits& limits,
                                 const std::string& field);

// The edges over all layers and heads.
uint64_t EdgesOf(const Graph& graph);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_VALIDATE_GRAPH_H_
