#include "client/cli/plot_show.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/connection.h"
#include "client/cli/format.h"

namespace edgewise::cli {
namespace {

constexpr uint64_t kMaxGraphEdges = 4 << 20;  // that a server returns, unless its --max_graph_edges says otherwise

// The edges of the first sample: the same request again, of that sample alone. A graph can only be had under a cap that
// the server can return; where that cap drops edges, the graph is another than the answer's.
absl::StatusOr<v1::Graph> AskForGraph(Client& client, v1::PredictRequest request, const v1::Input& input,
                                      const v1::PredictResponse& response) {
  const v1::EdgeReport& edges = response.predictions(0).edges();
  if (response.predictions(0).has_graph()) return response.predictions(0).graph();
  request.set_version(response.version());
  request.mutable_ensemble()->set_seed(response.seed());
  request.mutable_ensemble()->set_samples(1);
  request.mutable_ensemble()->clear_tolerance();
  const uint32_t stride = request.outputs().stride();
  request.mutable_outputs()->Clear();
  request.mutable_outputs()->set_stride(stride);
  request.mutable_outputs()->set_graph(true);
  const bool lowered = std::min(edges.budget() == 0 ? edges.pairs() : edges.budget(), edges.pairs()) > kMaxGraphEdges;
  if (lowered) request.mutable_budget()->set_max_edges(kMaxGraphEdges);
  absl::StatusOr<v1::PredictResponse> answer = AskOne(client, std::move(request), input);
  if (lowered && (answer.status().code() == absl::StatusCode::kInvalidArgument ||
                  (answer.ok() && answer->predictions(0).edges().capped()))) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a graph can have ", WithCommas(kMaxGraphEdges), " edges, and this one has more"));
  }
  if (!answer.ok()) return answer.status();
  return std::move(*answer->mutable_predictions(0)->mutable_graph());
}

}  // namespace

absl::Status ShowPlot(const std::string& path, Client& client, const v1::PredictRequest& request,
                      const v1::Input& input, const v1::PredictResponse& response, std::ostream& out) {
  const v1::ModelInfo model =
      client.GetModel(response.model(), response.version()).value_or(v1::ModelInfo::default_instance());
  const absl::StatusOr<v1::Graph> graph = AskForGraph(client, request, input, response);
  const PlotSource source{.input = input,
                          .response = response,
                          .model = model,
                          .graph = graph.ok() ? &*graph : nullptr,
                          .without_graph = std::string(graph.status().message())};
  if (path == kTerminal) {
    const bool colour = &out == &std::cout && isatty(STDOUT_FILENO) && std::getenv("NO_COLOR") == nullptr;
    absl::StatusOr<std::string> text = PlotText(source, colour);
    if (text.ok()) out << "\n" << *text << std::flush;
    return text.status();
  }
  absl::StatusOr<Plot> plot = LayOutPlot(source);
  return plot.ok() ? DrawPlot(*plot, path) : plot.status();
}

}  // namespace edgewise::cli
