// A loaded model: configuration, tokenizer and weights on one backend. Immutable; its methods may be called from any
// thread.
#ifndef EDGEWISE_MODEL_MODEL_H_
#define EDGEWISE_MODEL_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/tokenizer.h"
#include "model/input/input.h"
#include "model/kinds/patterns.h"

namespace edgewise {

struct ModelWeights;

enum class TruncateMode { kRefuse, kHead, kTail };

// Positions of all windows of one scored text, and of what runs at once where they depend on each other: under a budget
// or a given graph. At a width of 384 a position holds about 17 KB, so the latter hold about 1.1 GB.
inline constexpr uint64_t kMaxScoredPositions = uint64_t{1} << 20;
inline constexpr uint64_t kMaxPositionsAtOnce = 65536;

class Model {
 public:
  // Loads <directory>/config.json and model.safetensors onto `backend`, which must outlive the model, and runs a
  // self-test. INVALID_ARGUMENT: a file says something that is not allowed; the message names field or tensor, what was
  // found and what was expected. NOT_FOUND: a file is missing. Must not run while another thread uses the backend.
  static absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& directory, Backend& backend,
                                                     AttentionKinds kinds = Kinds());
  ~Model();

  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return *weights_; }
  Backend& backend() const { return backend_; }
  uint64_t parameters() const { return parameters_; }
  const std::string& sha256() const { return sha256_; }  // of model.safetensors, lower-case hex

  // Text to token ids. INVALID_ARGUMENT: no tokenizer, or text outside its vocabulary. Messages start with "text".
  absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string& text) const;
  // The text of one generated token (Tokenizer::Decode).
  std::string Decode(int32_t token_id, bool first) const;

  // Checks, truncates and puts the CLS token in front; counts every token that is left out. INVALID_ARGUMENT: an id out
  // of the vocabulary, too long, no valid token. Messages start with "token_ids".
  absl::StatusOr<ModelSequence> Prepare(std::vector<int32_t> token_ids, TruncateMode truncate) const;

  // causal-lm: a text to score. One that fits the context, or is cut to it, is one sequence; a longer one becomes
  // windows of the context's length, `stride` positions apart (0: half the context; the last one ends with the text),
  // which score every token once, in the first window that has it: with the most context. INVALID_ARGUMENT as Prepare;
  // or a message that starts with "stride": it is not below the context. RESOURCE_EXHAUSTED: the windows have more than
  // kMaxScoredPositions positions together.
  absl::StatusOr<std::vector<ModelSequence>> PrepareWindows(std::vector<int32_t> token_ids, TruncateMode truncate,
                                                            uint32_t stride) const;

  // Rows of features, row-major [rows, columns]. INVALID_ARGUMENT: `columns` is not the model's feature_size, another
  // number of values, a value that is not finite, too many rows. Messages start with "features".
  absl::StatusOr<ModelSequence> PrepareFeatures(uint32_t rows, uint32_t columns, std::vector<float> values,
                                                TruncateMode truncate) const;

  // Checks the pairwise bias of a prepared sequence, if it has one. INVALID_ARGUMENT: the model takes none or the other
  // kind, the number of entries is not length x length (the length as the model sees it: cut, the CLS token included),
  // a bucket outside the table, a value that is not finite. Messages start with "bias.values" or "bias.buckets".
  absl::Status CheckBias(const ModelSequence& sequence) const;

  // Checks the input's graph against its sequences: layers, heads, row offsets, ascending keys, pads. INVALID_ARGUMENT;
  // messages start with "graph".
  absl::Status CheckGraph(const ModelInput& input) const;

  // Sum over layers and heads of valid queries x valid keys, both sequences of a pair.
  uint64_t Pairs(const ModelInput& input) const;
  // The least cap that this input can keep: its forced edges (every pair where `dense` or the layer is dense; the given
  // graph's edges).
  uint64_t LeastEdges(const ModelInput& input) const;
  // What decides the edges of `layer` for this input: its own graph, override or DENSE, else the model's attention. The
  // graph is taken as it is in the input, by position. Points into this model and the input.
  AttentionSpec Choose(const ModelInput& input, int32_t layer) const;
  // Whether two samples can differ: some layer draws edges.
  bool Samples(const ModelInput& input) const;

 private:
  Model(ModelConfig config, Backend& backend);

  ModelConfig config_;
  Backend& backend_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<const ModelWeights> weights_;
  uint64_t parameters_ = 0;
  std::string sha256_;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_MODEL_H_
