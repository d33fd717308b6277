// A model's configuration as values. model/checkpoint/parse_config.h reads them from config.json.
#ifndef EDGEWISE_MODEL_CONFIG_CONFIG_H_
#define EDGEWISE_MODEL_CONFIG_CONFIG_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/draw/draw.h"
#include "model/config/profiles.h"
#include "model/image/processor.h"

namespace edgewise {

// The last two are tasks of Hugging Face folders only (model/checkpoint/hugging_face/folder.h).
enum class ModelTask {
  kSequenceClassification,
  kPairClassification,
  kTokenClassification,
  kRegression,
  kCausalLm,
  kEmbedding,  // one vector per input: the pooled rows
  kFillMask,   // a distribution over the vocabulary at each mask token
};
enum class NormPosition { kPre, kPost };
// kRotary is of Hugging Face folders only.
enum class PositionEmbedding { kLearned, kSinusoidal, kNone, kAlibi, kRelative, kRotary };
// kCls puts the CLS token in front and reads its row; kFirst reads the row of the first valid token as sent, kLast that
// of the last.
enum class Pooling { kMeanValid, kMeanMaxLength, kCls, kFirst, kLast };
// kHuggingFace: HfTokenizer, which the model has beside its configuration.
enum class TokenizerKind { kNone, kByte, kChar, kWord, kHuggingFace };
enum class BlockPattern { kDiagonal, kLocal, kStrided, kFirstAndDiagonal, kList, kLearned };
enum class PairwiseBiasKind { kNone, kValues, kBuckets };

struct TokenizerConfig {
  TokenizerKind kind = TokenizerKind::kNone;
  std::string unread;  // none: which files of one the folder has that is not read, and what to do; empty: none
  int32_t offset = 1;  // byte
  std::vector<std::string> vocabulary;               // char, word
  int32_t unknown_token_id = -1;                     // char, word; -1: text outside the vocabulary is an error
  bool lowercase = false;                            // word
  std::map<std::string, std::string> substitutions;  // word
};

// Rotary positions: angles in radians that queries and keys turn by at each position, and a factor of both.
struct Rotary {
  std::vector<double> angles;  // [head_dim / 2]
  double factor = 1.0;
};

// A linear layer that an embedding runs through, behind the pooling.
struct DenseLayer {
  int32_t in_features = 0, out_features = 0;
  bool bias = true;
  Activation activation = Activation::kNone;
};

// Put before a text.
struct Prompt {
  std::string text;
  // Where the pooling leaves the prompt out: its tokens with those that the tokenizer's template puts in front, and the
  // latter alone.
  int32_t tokens = 0, template_tokens = 0;
};

struct AttentionKind;  // model/kinds/kind.h
extern const AttentionKind kDenseKind;

// The attention of one layer. Each field belongs to the kind named above it.
struct AttentionConfig {
  const AttentionKind* kind = &kDenseKind;
  // dense
  int32_t reach = AllPairs::kFar;  // most positions between a query and its key
  // sbm
  int32_t num_clusters = 0;
  Law law = Law::kBernoulli;
  float exploration = 0.0f;
  bool self_loops = false;
  int32_t local_window = 0;
  // ssa
  bool local = true;          // bias local; false: bias none
  int32_t windows = 0;        // w; 0: `window_tokens` or `keep` decides
  int32_t window_tokens = 0;  // W of bias local; 0: `windows` decides
  int32_t keep = 0;           // k of bias none; 0: `windows` decides
  double sigma = 0.0;         // of this layer: in tokens with window_tokens, else a fraction of the length
  int32_t grid_rows = 0, grid_columns = 0;  // 0: the text is one-dimensional
  // block
  int32_t block_size = 0;  // B; 0: min(max(min_block, floor(alpha * length)), max_block)
  int32_t min_block = 0, max_block = 0;
  double alpha = 0.0;
  BlockPattern pattern = BlockPattern::kDiagonal;
  int32_t width = 1;                                // pattern local
  int32_t stride = 1;                               // pattern strided
  std::vector<std::pair<int32_t, int32_t>> blocks;  // pattern list: (row, column), ascending, each once
  double threshold = 0.5;                           // pattern learned
};

struct ModelConfig {
  ModelTask task = ModelTask::kSequenceClassification;
  std::string description;
  bool causal = false;
  int32_t vocab_size = 0;    // 0: the input is rows of features
  int32_t feature_size = 0;  // 0: the input is tokens
  // The rows of features are the patches of an image, all of them, behind a CLS row; or there is none.
  ImagePatches image;
  ImageProcessor image_processor;
  int32_t hidden_size = 0;
  int32_t num_hidden_layers = 0;
  bool tied_layers = false;
  int32_t num_attention_heads = 0;
  int32_t num_key_value_heads = 0;  // AttentionInputs::num_key_value_heads
  int32_t head_dim = 0;             // of a loaded model: with the zeros that its backend aligns heads by
  float score_scale = 0.0f;         // 1 / sqrt(head_dim), without them
  int32_t intermediate_size = 0;
  int32_t max_position_embeddings = 0;
  bool text_types = true;       // texts get the token types of the tokenizer's template; else all are of type 0
  int32_t max_text_tokens = 0;  // the most tokens of a text, if that is less (hugging_face/text_limit.h); 0: it is not
  std::map<std::string, Prompt> prompts;
  std::string default_prompt;  // of texts that name none, one of `prompts`; empty: no prompt
  bool pools_prompts = true;   // false: the pooling leaves out the tokens of the prompt
  float layer_norm_eps = 1e-5f;
  bool rms_norm = false;        // norms are RmsNorm, which has no bias
  bool norm_bias = true;        // of norms; false with rms_norm
  bool first_norm = true;       // false: layer 0 attends to the embeddings as they are, without a norm before
  bool head_norm = false;       // queries and keys are normed too, head by head, before they are rotated
  bool gated = false;           // the feed-forward's hidden rows are hidden_act(gate(x)) * up(x)
  bool projection_bias = true;  // of queries, keys and values
  bool output_bias = true;      // of attention's output
  bool feed_forward_bias = true;
  Activation hidden_act = Activation::kGelu;
  NormPosition norm_position = NormPosition::kPre;
  PositionEmbedding position_embedding = PositionEmbedding::kLearned;
  Rotary rotary;         // kRotary
  Rotary window_rotary;  // of the layers that the model has windows in, where theirs differ; else without angles
  // > 0: positions count the tokens that are not pads, and this many rows at the table's start belong to pads.
  int32_t position_offset = 0;
  int32_t token_types = 0;       // kinds of tokens, whose embeddings are added (ModelSequence::token_types); 0: none
  bool embedding_norm = false;   // after the sum of the embeddings
  int32_t relative_buckets = 0;  // > 0: a bias of the scores by buckets of the distance, beside the learned positions
  int32_t pad_token_id = 0;      // -1: none
  int32_t cls_token_id = -1;     // -1: none
  int32_t mask_token_id = -1;    // fill-mask
  Pooling pooling = Pooling::kMeanValid;
  PairwiseBiasKind pairwise_bias = PairwiseBiasKind::kNone;
  int32_t num_buckets = 0;             // of pairwise_bias kBuckets
  bool tie_word_embeddings = true;     // causal-lm
  std::vector<int32_t> end_token_ids;  // causal-lm: any of them ends a generated text
  int32_t num_labels = 0;              // causal-lm, fill-mask: vocab_size; regression: values; embedding: numbers
  std::vector<std::string> labels;     // [num_labels] or empty
  bool multi_label = false;            // classification of inputs: each label is an answer of its own, by a sigmoid
  int32_t classifier_hidden_size = 0;  // 0: one linear layer
  Activation classifier_act = Activation::kRelu;  // of that hidden layer
  bool classifier_norm = false;                   // after it
  bool classifier_hidden_bias = true;             // of that hidden layer
  bool decoder_bias = true;                       // fill-mask: of the output layer
  std::vector<DenseLayer> dense;                  // embedding: behind the pooling, in order
  int32_t embedding_size = 0;                     // embedding: numbers of a vector where a request does not say
  bool normalize = false;                         // embedding: to length 1
  bool sigmoid = false;                           // regression: a value is the sigmoid of its logit
  TokenizerConfig tokenizer;
  std::vector<AttentionConfig> attention;  // [num_hidden_layers]
  std::vector<double> budget_shares;       // [num_hidden_layers]
  CapRule budget_keep = CapRule::kRandom;
  Profiles profiles;
  std::string others;  // the JSON of all fields but those of `profiles`: where it is equal, so is all of the above
};

// The names that config.json and ListModels use.
const char* ModelTaskName(ModelTask task);
// The largest sizes that any config.json may give: widths, positions and token types together, ids of tokens.
inline constexpr int32_t kMaxWidth = 1 << 16;
inline constexpr int32_t kMaxPositions = 1 << 20;
inline constexpr int32_t kMaxIds = 1 << 24;

// Whether the outputs are numbers as they are: no labels, no probabilities.
bool GivesValues(ModelTask task);
inline int32_t KeyValueHeads(const ModelConfig& config) {
  return config.num_key_value_heads > 0 ? config.num_key_value_heads : config.num_attention_heads;
}
// Whether a layer attends in windows, where its attention is the model's.
bool HasWindows(const ModelConfig& config);
// Whether the head reads one row of a sequence alone.
inline bool ReadsOneRow(const ModelConfig& config) {
  return config.pooling == Pooling::kCls || config.pooling == Pooling::kFirst || config.pooling == Pooling::kLast;
}
// The most tokens of a text that a Hugging Face tokenizer reads.
inline int32_t MostTextTokens(const ModelConfig& config) {
  const int32_t limit = config.max_text_tokens, positions = config.max_position_embeddings;
  return limit > 0 && limit < positions ? limit : positions;
}
// Whether the labels are the vocabulary.
inline bool GivesVocabulary(ModelTask task) { return task == ModelTask::kCausalLm || task == ModelTask::kFillMask; }
// The fewest rows of features that an input may have: the patches of an image are all there.
inline int32_t FewestRows(const ModelConfig& config) { return config.image.channels > 0 ? config.image.count() : 1; }
const char* TokenizerName(TokenizerKind kind);
}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CONFIG_CONFIG_H_
