// One input of a request as a model takes it, checked and ready to run.
#ifndef EDGEWISE_MODEL_INPUT_H_
#define EDGEWISE_MODEL_INPUT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/attention.h"

namespace edgewise {

// Tokens as the model sees them: the CLS token first where there is one, pads included.
struct ModelSequence {
  std::vector<int32_t> token_ids;  // [length], every position
  std::vector<int32_t> positions;  // [valid], ascending: the places of the tokens that are not pads; at least one
  uint32_t truncated_tokens = 0;

  int32_t length() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t valid() const { return static_cast<int32_t>(positions.size()); }
};

// Attended pairs by position, [layers][heads]; the layers of a pair's second sequence follow the first's.
struct Graph {
  std::vector<std::vector<HeadEdges>> layers;
};

// Model::Prepare and Model::CheckGraph make the parts; the caller fills in the rest.
struct ModelInput {
  std::vector<ModelSequence> sequences;  // 1, or 2 for pair-classification
  std::optional<Graph> graph;            // used instead of the model's edges

  uint64_t seed = 0;
  uint32_t first_sample = 0;
  uint32_t samples = 1;         // >= 1
  double tolerance = 0.0;       // > 0: stop at the first k >= 4 samples whose standard error is below it
  uint64_t max_edges = kNoCap;  // per sample; >= Model::LeastEdges
  bool dense = false;           // every allowed pair, whatever the model's kind

  bool want_expected = false;
  bool want_key_degrees = false;
  bool want_graph = false;  // samples must be 1
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_INPUT_H_
