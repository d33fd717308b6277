// A loaded model: configuration, tokenizer and weights on one backend. Immutable; its methods may be called from any
// thread.
#ifndef EDGEWISE_MODEL_MODEL_H_
#define EDGEWISE_MODEL_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/work_bounds.h"
#include "kernels/backend.h"
#include "model/chat/chat_template.h"
#include "model/config/config.h"
#include "model/image/rgb_image.h"
#include "model/input/input.h"
#include "model/kinds/patterns.h"
#include "model/tokenizers/hf_tokenizer.h"
#include "model/tokenizers/tokenizer.h"

namespace edgewise {

struct ModelWeights;

// Memory that a pass leaves to later passes of its model.
class WaveCache {
 public:
  virtual ~WaveCache() = default;
};

enum class TruncateMode { kRefuse, kHead, kTail };

// The most positions of all windows of one scored text; and of windows that run at once, because a budget or a given
// graph makes them depend on each other. At a width of 384 a position takes about 17 KB, so the latter take 1.1 GB.
inline constexpr uint64_t kMaxScoredPositions = uint64_t{1} << 20;
inline constexpr uint64_t kMaxPositionsAtOnce = 65536;

class Model {
 public:
  // For LoadModel (model/load/load.h). `backend` must outlive the model.
  Model(ModelConfig config, std::unique_ptr<const ModelWeights> weights, std::string sha256, uint64_t parameters,
        Backend& backend, std::vector<std::string> skipped_tensors = {},
        std::unique_ptr<const HfTokenizer> hf_tokenizer = nullptr,
        absl::StatusOr<chat::ChatTemplate> chat_template = chat::NoTemplate(),
        std::vector<std::string> skipped_fields = {});
  ~Model();

  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return *weights_; }
  Backend& backend() const { return backend_; }
  uint64_t parameters() const { return parameters_; }
  const std::string& sha256() const { return sha256_; }  // of model.safetensors, lower-case hex; of shards: Shards
  // Tensors of the files that belong to other tasks and were not read.
  const std::vector<std::string>& skipped_tensors() const { return skipped_tensors_; }
  // Fields of the files that make no difference to an answer and were not read: "<file>: <field>".
  const std::vector<std::string>& skipped_fields() const { return skipped_fields_; }

  // The tokenizer of a Hugging Face folder that has one; null: none. Lives as long as the model.
  const HfTokenizer* tokenizer() const { return hf_tokenizer_.get(); }

  // The errors of the next eight name their field (base/field_error.h): text, second, token_ids, stride, features,
  // image, bias.

  // Those that tokenize end where `bounds` say so, with the status that they give.

  // Text to token ids, with those of the template of tokenizer() where there is one; at most `most` of them (0: any
  // number). INVALID_ARGUMENT: no tokenizer, text outside its vocabulary, more than `most` tokens.
  absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string& text, size_t most = 0,
                                                WorkBounds& bounds = NoBounds()) const;
  // The text of one generated token (Tokenizer::Decode); not of a model with a tokenizer(), whose Stream has them.
  std::string Decode(int32_t token_id, bool first) const;
  // The bytes that a token adds to a text that has begun, as of any model: they may be a part of a character, and are
  // empty where there is no tokenizer.
  std::string TokenBytes(int32_t token_id) const;

  // Checks, truncates and puts the CLS token in front; counts every token that is left out. INVALID_ARGUMENT: an id out
  // of the vocabulary, too long, no valid token. `field`, of errors: text where they were made of one (Tokenize).
  absl::StatusOr<ModelSequence> Prepare(std::vector<int32_t> token_ids, TruncateMode truncate,
                                        const char* field = "token_ids") const;

  // The text, or both texts where there is a second (null: none), as the template of tokenizer() frames and joins them
  // into one sequence; there must be a tokenizer(). Truncation keeps the template's tokens; of two texts the longer one
  // is cut first. The prompt, one of the model's, is put before the text; null: none. INVALID_ARGUMENT:
  // HfTokenizer::Encode; too long; no valid token, or none to pool; no mask token for fill-mask.
  absl::StatusOr<ModelSequence> PrepareText(const std::string& text, const std::string* second, TruncateMode truncate,
                                            WorkBounds& bounds = NoBounds(), const Prompt* prompt = nullptr) const;

  // The tokens of a prompt that the chat template of the folder makes of the messages, with no token but those that the
  // template writes. Special tokens are found in the whole prompt, as transformers does it: also in the messages. The
  // error's field is messages, or template_arguments (chat::Arguments::Read). INVALID_ARGUMENT: chat_template() is an
  // error; the template refuses the messages; the prompt is too long. `now`: ChatTemplate::Render.
  absl::StatusOr<ModelSequence> PrepareChat(const std::vector<chat::Message>& messages, absl::CivilSecond now,
                                            WorkBounds& bounds = NoBounds(),
                                            const std::string& template_arguments = "") const;

  // The chat template of the folder. NOT_FOUND: it has none; INVALID_ARGUMENT: it has one that is not served.
  const absl::StatusOr<chat::ChatTemplate>& chat_template() const { return chat_template_; }

  // causal-lm: a text to score. One that fits the context, or is cut to it, is one sequence; a longer one becomes
  // windows of the context's length, `stride` positions apart (0: half the context; the last one ends with the text),
  // which score every token once, in the first window that has it: with the most context. INVALID_ARGUMENT as Prepare;
  // or the stride is not below the context. RESOURCE_EXHAUSTED: the windows have more than kMaxScoredPositions
  // positions together.
  absl::StatusOr<std::vector<ModelSequence>> PrepareWindows(std::vector<int32_t> token_ids, TruncateMode truncate,
                                                            uint32_t stride, const char* field = "token_ids") const;

  // Rows of features, row-major [rows, columns]. INVALID_ARGUMENT: `columns` is not the model's feature_size, another
  // number of values, a value that is not finite, too many rows.
  absl::StatusOr<ModelSequence> PrepareFeatures(uint32_t rows, uint32_t columns, std::vector<float> values,
                                                TruncateMode truncate) const;

  // An image, through the steps of the model's preprocessor_config.json. INVALID_ARGUMENT: CheckImage.
  absl::StatusOr<ModelSequence> PrepareImage(const RgbImage& image) const;
  // Whether the model takes images of this size, pixels. INVALID_ARGUMENT: it takes none, or another size alone.
  absl::Status CheckImage(int32_t width, int32_t height) const;

  // Checks the pairwise bias of a prepared sequence, if it has one. INVALID_ARGUMENT: the model takes none or the other
  // kind, the number of entries is not length x length (the length as the model sees it: cut, the CLS token included),
  // a bucket outside the table, a value that is not finite.
  absl::Status CheckBias(const ModelSequence& sequence) const;

  // Checks the input's graph against its sequences: layers, heads, row offsets, ascending keys, pads. INVALID_ARGUMENT
  // with the field.
  absl::Status CheckGraph(const ModelInput& input) const;

  // Sum over layers and heads of queries x keys, over all sequences.
  uint64_t Pairs(std::span<const QueryRange> ranges) const;
  uint64_t Pairs(const ModelInput& input) const { return Pairs(RangesOf(input)); }
  // Forced edges, the least cap that can be kept: every pair where the layer is dense; the edges of a given graph.
  uint64_t LeastEdges(const Draw& draw, const std::vector<std::vector<HeadEdges>>* given,
                      std::span<const QueryRange> ranges) const;
  uint64_t LeastEdges(const ModelInput& input) const {
    return LeastEdges(input, input.graph.has_value() ? &input.graph->layers : nullptr, RangesOf(input));
  }
  // The attention of `layer` with these draws: all pairs where they are dense, else the `given` edges
  // (AttentionSpec::given), else the override or the model's kind. Points into this model and the arguments.
  AttentionSpec Choose(const Draw& draw, const std::vector<std::vector<HeadEdges>>* given, int32_t layer) const;
  // Takes what Keep was given last; null: nothing is left.
  std::unique_ptr<WaveCache> TakeWaveCache() const;
  void ReturnWaveCache(std::unique_ptr<WaveCache> kept) const;

  // Whether some layer draws its edges by their rates, so that Draw::keep says which of them a cap keeps. Given edges
  // are never dropped.
  bool CapRuleMatters(const Draw& draw) const;

  // Whether two samples can differ: some layer draws edges.
  bool Samples(const ModelInput& input) const;

 private:
  static std::vector<QueryRange> RangesOf(const ModelInput& input);
  // The last steps of Prepare and PrepareText. `field`: where the ids come from.
  absl::StatusOr<ModelSequence> Finish(std::vector<int32_t> token_ids, const char* field, ModelSequence sequence) const;

  const ModelConfig config_;
  Backend& backend_;
  const std::unique_ptr<const Tokenizer> tokenizer_;
  const std::unique_ptr<const HfTokenizer> hf_tokenizer_;
  const absl::StatusOr<chat::ChatTemplate> chat_template_;
  const std::unique_ptr<const ModelWeights> weights_;
  const uint64_t parameters_;
  const std::string sha256_;
  const std::vector<std::string> skipped_tensors_, skipped_fields_;
  mutable absl::Mutex mutex_;
  mutable std::vector<std::unique_ptr<WaveCache>> wave_caches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_MODEL_H_
