#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "model/checkpoint/weights.h"
#include "model/kinds/kind.h"

namespace edgewise {
namespace {

absl::Status CheckTokens(const ModelConfig& config, const std::vector<int32_t>& token_ids) {
  REFUSE_IF(config.vocab_size == 0, "token_ids", ": this model takes rows of features; send features");
  REFUSE_IF(token_ids.empty(), "token_ids", "is empty; at least one token is expected");
  for (size_t i = 0; i < token_ids.size(); ++i) {
    REFUSE_IF(token_ids[i] < 0 || token_ids[i] >= config.vocab_size, absl::StrCat("token_ids[", i, "]"), "is ",
              token_ids[i], "; the vocabulary has ", config.vocab_size, " entries");
  }
  return absl::OkStatus();
}

// Cuts a text that is longer than `most` tokens; how many are left out.
absl::StatusOr<uint32_t> Cut(std::vector<int32_t>& token_ids, size_t most, TruncateMode truncate, const char* field) {
  REFUSE_IF(truncate == TruncateMode::kRefuse, field, "has ", token_ids.size(), " tokens; the model takes ", most,
            "; set truncate to cut it");
  const size_t surplus = token_ids.size() - most;
  if (truncate == TruncateMode::kHead) {
    token_ids.erase(token_ids.begin(), token_ids.begin() + static_cast<int64_t>(surplus));
  }
  token_ids.resize(most);
  return static_cast<uint32_t>(surplus);
}

// The places of `token_ids` that are not pads.
std::vector<int32_t> ValidPositions(const ModelConfig& config, const std::vector<int32_t>& token_ids) {
  std::vector<int32_t> positions;
  for (size_t i = 0; i < token_ids.size(); ++i) {
    if (token_ids[i] != config.pad_token_id) positions.push_back(static_cast<int32_t>(i));
  }
  return positions;
}

absl::Status AllPads(const ModelConfig& config, size_t tokens, const char* field) {
  return FieldError(field, absl::StrCat("has ", tokens, " tokens, all of them pads (", config.pad_token_id, ")"));
}

// Checks the tokenizer's tokens of the text of `field`: they may have ids that the model lacks.
absl::Status CheckMade(const ModelConfig& config, const HfTokenizer& tokenizer, const Encoding& encoding,
                       const char* field) {
  for (size_t i = 0; i < encoding.size(); ++i) {
    const int32_t id = encoding.ids[i];
    if (id < config.vocab_size) continue;
    const std::string* token = tokenizer.Token(id);
    return FieldError(encoding.sequences[i] == 1 ? "second" : field,
                      absl::StrCat(": the tokenizer makes token ", id, token == nullptr ? "" : ", ",
                                   token == nullptr ? "" : Quoted(*token), ", of it; the model has ", config.vocab_size,
                                   " tokens (vocab_size)"));
  }
  return absl::OkStatus();
}

}  // namespace

Model::Model(ModelConfig config, std::unique_ptr<const ModelWeights> weights, std::string sha256, uint64_t parameters,
             Backend& backend, std::vector<std::string> skipped_tensors,
             std::unique_ptr<const HfTokenizer> hf_tokenizer, absl::StatusOr<chat::ChatTemplate> chat_template,
             std::vector<std::string> skipped_fields)
    : config_(std::move(config)),
      backend_(backend),
      tokenizer_(std::make_unique<Tokenizer>(config_.tokenizer)),
      hf_tokenizer_(std::move(hf_tokenizer)),
      chat_template_(std::move(chat_template)),
      weights_(std::move(weights)),
      parameters_(parameters),
      sha256_(std::move(sha256)),
      skipped_tensors_(std::move(skipped_tensors)),
      skipped_fields_(std::move(skipped_fields)) {}

Model::~Model() = default;

absl::StatusOr<std::vector<int32_t>> Model::Tokenize(const std::string& text, size_t most, WorkBounds& bounds) const {
  if (hf_tokenizer_ == nullptr) return tokenizer_->Encode(text, most, bounds);
  const EncodeOptions options{.max_tokens = most, .refuse_longer = true, .only_ids = true};
  ASSIGN_OR_RETURN(Encoding encoding, hf_tokenizer_->Encode(text, options, bounds));
  if (encoding.too_long) return TooManyTokens(most);
  RETURN_IF_ERROR(CheckMade(config_, *hf_tokenizer_, encoding, "text"));
  return std::move(encoding.ids);
}

std::string Model::Decode(int32_t token_id, bool first) const { return tokenizer_->Decode(token_id, first); }

std::string Model::TokenBytes(int32_t token_id) const {
  return hf_tokenizer_ != nullptr ? hf_tokenizer_->Bytes(token_id) : tokenizer_->Decode(token_id, false);
}

absl::StatusOr<ModelSequence> Model::Prepare(std::vector<int32_t> token_ids, TruncateMode truncate,
                                             const char* field) const {
  RETURN_IF_ERROR(CheckTokens(config_, token_ids));
  ModelSequence sequence;
  const bool cls = config_.pooling == Pooling::kCls;
  size_t most = config_.max_position_embeddings;
  if (token_ids.size() > most) {
    if (cls && truncate != TruncateMode::kRefuse && most > 1) --most;  // the CLS token takes a place
    ASSIGN_OR_RETURN(sequence.truncated_tokens, Cut(token_ids, most, truncate, field));
  }
  if (cls) {
    // At full length the last position makes room, as the published models were trained.
    if (token_ids.size() == static_cast<size_t>(config_.max_position_embeddings)) {
      token_ids.pop_back();
      ++sequence.truncated_tokens;
    }
    token_ids.insert(token_ids.begin(), config_.cls_token_id);
  }
  return Finish(std::move(token_ids), field, std::move(sequence));
}

absl::StatusOr<ModelSequence> Model::Finish(std::vector<int32_t> token_ids, const char* field,
                                            ModelSequence sequence) const {
  sequence.positions = ValidPositions(config_, token_ids);
  if (sequence.positions.empty()) return AllPads(config_, token_ids.size(), field);
  if (config_.task == ModelTask::kFillMask &&
      std::find(token_ids.begin(), token_ids.end(), config_.mask_token_id) == token_ids.end()) {
    const std::string* mask = hf_tokenizer_ == nullptr ? nullptr : hf_tokenizer_->Token(config_.mask_token_id);
    return FieldError(field, absl::StrCat("has no mask token (", mask == nullptr ? "" : absl::StrCat(*mask, ", "),
                                          config_.mask_token_id, ")",
                                          sequence.truncated_tokens > 0 ? " in what truncation leaves" : "",
                                          "; a fill-mask model predicts these"));
  }
  sequence.token_ids = std::move(token_ids);
  return sequence;
}

absl::StatusOr<ModelSequence> Model::PrepareText(const std::string& text, const std::string* second,
                                                 TruncateMode truncate, WorkBounds& bounds,
                                                 const Prompt* prompt) const {
  ReservedBytes held(bounds);
  std::string prompted;
  if (prompt != nullptr && !prompt->text.empty()) {
    RETURN_IF_ERROR(held.Resize(prompt->text.size() + text.size()));
    prompted = prompt->text + text;
  }
  const std::string& whole = prompted.empty() ? text : prompted;
  const auto positions = static_cast<size_t>(config_.max_position_embeddings);
  const auto most = static_cast<size_t>(MostTextTokens(config_));
  const EncodeOptions options{.max_tokens = most,
                              .truncate_left = truncate == TruncateMode::kHead,
                              .refuse_longer = truncate == TruncateMode::kRefuse,
                              .only_ids = config_.task != ModelTask::kTokenClassification};
  ASSIGN_OR_RETURN(Encoding encoding, second == nullptr ? hf_tokenizer_->Encode(whole, options, bounds)
                                                        : hf_tokenizer_->Encode(whole, *second, options, bounds));
  REFUSE_IF(encoding.too_long, "text", "has more than ", most, " tokens",
            second == nullptr ? "" : " with the second text",
            ", those of the tokenizer's template included; the model ", most < positions ? "takes texts of " : "takes ",
            most, most < positions ? " (max_seq_length, or model_max_length of tokenizer_config.json)" : "",
            "; set truncate to cut it");
  REFUSE_IF(encoding.size() == 0, "text", "has no tokens; at least one is needed");
  RETURN_IF_ERROR(CheckMade(config_, *hf_tokenizer_, encoding, "text"));
  const int32_t types = *std::max_element(encoding.type_ids.begin(), encoding.type_ids.end()) + 1;
  ModelSequence sequence;
  sequence.truncated_tokens = static_cast<uint32_t>(encoding.truncated);
  if (types > 1 && config_.token_types > 0 && config_.text_types) {  // a model without types leaves them out
    REFUSE_IF(types > config_.token_types, second == nullptr ? "text" : "second", "gets tokens of type ", types - 1,
              " from the tokenizer's template; the model has types up to ", config_.token_types - 1,
              " (type_vocab_size)");
    sequence.token_types = std::move(encoding.type_ids);
  }
  if (config_.task == ModelTask::kTokenClassification) sequence.offsets = std::move(encoding.offsets);
  ASSIGN_OR_RETURN(sequence, Finish(std::move(encoding.ids), "text", std::move(sequence)));
  if (prompt == nullptr || prompt->tokens == 0) return sequence;
  const int32_t cut = truncate == TruncateMode::kHead ? static_cast<int32_t>(sequence.truncated_tokens) : 0;
  const int32_t first = std::max(prompt->tokens - cut, prompt->template_tokens);
  const auto behind = std::lower_bound(sequence.positions.begin(), sequence.positions.end(), first);
  REFUSE_IF(behind == sequence.positions.end(), "text",
            "has no tokens behind those of the prompt, which the model leaves out of its pooling (include_prompt)");
  sequence.pooled_from = static_cast<int32_t>(behind - sequence.positions.begin());
  return sequence;
}

absl::StatusOr<ModelSequence> Model::PrepareChat(const std::vector<chat::Message>& messages, absl::CivilSecond now,
                                                 WorkBounds& bounds, const std::string& template_arguments) const {
  REFUSE_IF(!chat_template_.ok(), "messages", "is set; ", std::string(chat_template_.status().message()),
            ", so give a prompt");
  ASSIGN_OR_RETURN(const chat::Arguments arguments, chat::Arguments::Read(template_arguments, bounds));
  const absl::StatusOr<std::string> prompt = chat_template_->Render(messages, now, bounds, arguments);
  REFUSE_IF(absl::IsInvalidArgument(prompt.status()) && FieldOf(prompt.status()).empty(), "messages",
            "make no prompt by the model's chat template: ", std::string(prompt.status().message()));
  RETURN_IF_ERROR(prompt.status());
  ReservedBytes held(bounds);
  RETURN_IF_ERROR(held.Resize(prompt->capacity()));
  const auto most = static_cast<size_t>(config_.max_position_embeddings);
  const EncodeOptions options{.add_special_tokens = false, .max_tokens = most, .refuse_longer = true, .only_ids = true};
  absl::StatusOr<Encoding> encoding = hf_tokenizer_->Encode(*prompt, options, bounds);
  REFUSE_IF(absl::IsInvalidArgument(encoding.status()), "messages",
            "make a prompt that the tokenizer refuses: ", std::string(encoding.status().message()));
  RETURN_IF_ERROR(encoding.status());
  REFUSE_IF(encoding->too_long, "messages", "make a prompt of more than ", most, " tokens; the model takes ", most);
  REFUSE_IF(encoding->size() == 0, "messages", "make a prompt without tokens");
  RETURN_IF_ERROR(CheckMade(config_, *hf_tokenizer_, *encoding, "messages"));
  return Finish(std::move(encoding->ids), "messages", ModelSequence());
}

absl::StatusOr<std::vector<ModelSequence>> Model::PrepareWindows(std::vector<int32_t> token_ids, TruncateMode truncate,
                                                                 uint32_t stride, const char* field) const {
  const size_t context = config_.max_position_embeddings;
  if (stride >= std::max<size_t>(context, 2)) {
    return FieldError("stride", absl::StrCat("is ", stride, "; allowed are 1 to ", context - 1,
                                             ", below the context, and 0 for half of it"));
  }
  std::vector<ModelSequence> windows;
  // A context of one token has nothing to predict from: no windows.
  if (token_ids.size() <= context || truncate != TruncateMode::kRefuse || context == 1) {
    ASSIGN_OR_RETURN(windows.emplace_back(), Prepare(std::move(token_ids), truncate, field));
    return windows;
  }
  RETURN_IF_ERROR(CheckTokens(config_, token_ids));
  const size_t step = stride > 0 ? stride : context / 2;
  // A small stride makes every token one of many windows: what they hold is bounded before any is built.
  const uint64_t count = (token_ids.size() - context + step - 1) / step + 1;
  if (count > kMaxScoredPositions / context) {
    return absl::ResourceExhaustedError(
        absl::StrCat(field, " has ", token_ids.size(), " tokens, which makes ", count, " windows of ", context,
                     " positions, ", step, " apart; at most ", kMaxScoredPositions,
                     " positions are scored in one input (a larger stride or several inputs need fewer)"));
  }
  size_t scored_to = 0;  // positions before it have had their window
  for (size_t next = 0; scored_to < token_ids.size(); next += step) {
    // The last window is as long as the others, so that the end of the text has a context too.
    const size_t begin = std::min(next, token_ids.size() - context), end = begin + context;
    ModelSequence window;
    window.token_ids.assign(token_ids.begin() + static_cast<int64_t>(begin),
                            token_ids.begin() + static_cast<int64_t>(end));
    window.positions = ValidPositions(config_, window.token_ids);
    const auto first_new =
        std::lower_bound(window.positions.begin(), window.positions.end(), static_cast<int32_t>(scored_to - begin));
    scored_to = end;
    if (first_new == window.positions.end()) continue;  // nothing but pads that no window had
    window.first_scored = std::max(1, static_cast<int32_t>(first_new - window.positions.begin()));
    windows.push_back(std::move(window));
  }
  if (windows.empty()) return AllPads(config_, token_ids.size(), field);
  return windows;
}

absl::StatusOr<ModelSequence> Model::PrepareFeatures(uint32_t rows, uint32_t columns, std::vector<float> values,
                                                     TruncateMode truncate) const {
  if (config_.feature_size == 0) {
    return FieldError("features", ": this model takes tokens; send text or token_ids");
  }
  if (columns != static_cast<uint32_t>(config_.feature_size)) {
    return FieldError("features.columns", absl::StrCat("is ", columns, "; the model takes ", config_.feature_size));
  }
  if (rows == 0) return FieldError("features.rows", "is 0; at least one row is expected");
  if (values.size() != static_cast<uint64_t>(rows) * columns) {
    return FieldError("features.values", absl::StrCat("has ", values.size(), " entries; ", rows, " rows of ", columns,
                                                      " are ", static_cast<uint64_t>(rows) * columns));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      return FieldError(absl::StrCat("features.values[", i, "]"),
                        absl::StrCat("is ", values[i], "; finite numbers are expected"));
    }
  }
  const auto patches = static_cast<uint32_t>(FewestRows(config_));
  if (config_.image.channels > 0 && rows != patches) {
    return FieldError("features.rows", absl::StrCat("is ", rows, "; the model takes ", patches, ", the patches of ",
                                                    config_.image.width, " x ", config_.image.height, " pixels"));
  }
  ModelSequence sequence;
  if (config_.image.channels > 0) {  // the CLS row is in the table of positions
    values.insert(values.begin(), columns, 0.0f);
    ++rows;
  }
  const uint32_t most = static_cast<uint32_t>(config_.max_position_embeddings);
  if (rows > most) {
    if (truncate == TruncateMode::kRefuse) {
      return FieldError("features.rows",
                        absl::StrCat("is ", rows, "; the model takes ", most, "; set truncate to cut them"));
    }
    sequence.truncated_tokens = rows - most;
    const int64_t surplus = static_cast<int64_t>(sequence.truncated_tokens) * columns;
    if (truncate == TruncateMode::kHead) values.erase(values.begin(), values.begin() + surplus);
    values.resize(static_cast<size_t>(most) * columns);
    rows = most;
  }
  sequence.features = std::move(values);
  sequence.feature_rows = static_cast<int32_t>(rows);
  for (int32_t i = 0; i < sequence.feature_rows; ++i) sequence.positions.push_back(i);
  return sequence;
}

absl::Status Model::CheckImage(int32_t width, int32_t height) const {
  const ImagePatches& image = config_.image;
  REFUSE_IF(config_.feature_size == 0, "image", ": this model takes tokens; send text or token_ids");
  REFUSE_IF(!config_.image_processor.serves, "image",
            ": this model has no preprocessor_config.json; send rows of features");
  REFUSE_IF(!config_.image_processor.resize && (width != image.width || height != image.height), "image", "has ", width,
            " x ", height, " pixels; the model takes ", image.width, " x ", image.height,
            " and resizes none (do_resize)");
  return absl::OkStatus();
}

absl::StatusOr<ModelSequence> Model::PrepareImage(const RgbImage& image) const {
  RETURN_IF_ERROR(CheckImage(image.width, image.height));
  return PrepareFeatures(static_cast<uint32_t>(config_.image.count()), static_cast<uint32_t>(config_.feature_size),
                         PatchRows(image, config_.image_processor, config_.image), TruncateMode::kRefuse);
}

absl::Status Model::CheckBias(const ModelSequence& sequence) const {
  const bool values = !sequence.bias_values.empty();
  if (!values && sequence.bias_buckets.empty()) return absl::OkStatus();
  const std::string field = values ? "bias.values" : "bias.buckets";
  if (values && !sequence.bias_buckets.empty()) {
    return FieldError("bias.values", "and bias.buckets are both given; one of them is expected");
  }
  if (config_.pairwise_bias == PairwiseBiasKind::kNone) {
    return FieldError(field, ": this model takes no pairwise bias");
  }
  if (values != (config_.pairwise_bias == PairwiseBiasKind::kValues)) {
    return FieldError(field, absl::StrCat(": this model takes bias.", values ? "buckets" : "values"));
  }
  const uint64_t length = static_cast<uint64_t>(sequence.length());
  const uint64_t found = values ? sequence.bias_values.size() : sequence.bias_buckets.size();
  if (found != length * length) {
    return FieldError(
        field, absl::StrCat("has ", found, " entries; ", length, " x ", length, " positions are ", length * length));
  }
  for (size_t i = 0; i < found; ++i) {
    if (values && !std::isfinite(sequence.bias_values[i])) {
      return FieldError(absl::StrCat(field, "[", i, "]"),
                        absl::StrCat("is ", sequence.bias_values[i], "; finite numbers are expected"));
    }
    if (!values && sequence.bias_buckets[i] >= config_.num_buckets) {
      return FieldError(absl::StrCat(field, "[", i, "]"),
                        absl::StrCat("is ", static_cast<int>(sequence.bias_buckets[i]), "; the model has ",
                                     config_.num_buckets, " buckets"));
    }
  }
  return absl::OkStatus();
}

absl::Status Model::CheckGraph(const ModelInput& input) const {
  if (!input.graph.has_value()) return absl::OkStatus();
  const Graph& graph = *input.graph;
  const size_t layers = config_.num_hidden_layers;
  const size_t heads = config_.num_attention_heads;
  if (graph.layers.size() != layers * input.sequences.size()) {
    return FieldError("graph.layers", absl::StrCat("has ", graph.layers.size(), " entries; ",
                                                   layers * input.sequences.size(), " are expected"));
  }
  for (size_t l = 0; l < graph.layers.size(); ++l) {
    const ModelSequence& sequence = input.sequences[l / layers];
    if (graph.layers[l].size() != heads) {
      return FieldError(absl::StrCat("graph.layers[", l, "].heads"),
                        absl::StrCat("has ", graph.layers[l].size(), " entries; ", heads, " are expected"));
    }
    const AttentionConfig& attention = config_.attention[l % layers];
    const bool multi = attention.law == Law::kPoissonMulti;
    for (size_t h = 0; h < heads; ++h) {
      const absl::Status status = CheckHeadEdges(graph.layers[l][h], sequence, multi, config_.causal);
      if (!status.ok()) return Within(absl::StrCat("graph.layers[", l, "].heads[", h, "]"), status);
    }
  }
  return absl::OkStatus();
}

std::vector<QueryRange> Model::RangesOf(const ModelInput& input) {
  std::vector<QueryRange> ranges;
  for (const ModelSequence& sequence : input.sequences) ranges.push_back({&sequence});
  return ranges;
}

uint64_t Model::Pairs(std::span<const QueryRange> ranges) const {
  uint64_t pairs = 0;
  for (const QueryRange& range : ranges) pairs += PairsOf(config_, range);
  return pairs * config_.num_attention_heads * config_.num_hidden_layers;
}

uint64_t Model::LeastEdges(const Draw& draw, const std::vector<std::vector<HeadEdges>>* given,
                           std::span<const QueryRange> ranges) const {
  uint64_t edges = 0;
  for (int32_t l = 0; l < config_.num_hidden_layers; ++l) edges += edgewise::LeastEdges(Choose(draw, given, l), ranges);
  return edges;
}

AttentionSpec Model::Choose(const Draw& draw, const std::vector<std::vector<HeadEdges>>* given, int32_t layer) const {
  AttentionSpec choice;
  choice.config = &config_;
  choice.attention = draw.dense ? nullptr : &AttentionOf(config_, draw)[static_cast<size_t>(layer)];
  choice.given = draw.dense ? nullptr : given;
  choice.layer = layer;
  choice.block_scores = weights_->layer(static_cast<size_t>(layer)).block_scores;
  choice.seed = draw.seed;
  return choice;
}

std::unique_ptr<WaveCache> Model::TakeWaveCache() const {
  const absl::MutexLock lock(&mutex_);
  if (wave_caches_.empty()) return nullptr;
  std::unique_ptr<WaveCache> kept = std::move(wave_caches_.back());
  wave_caches_.pop_back();
  return kept;
}

void Model::ReturnWaveCache(std::unique_ptr<WaveCache> kept) const {
  const absl::MutexLock lock(&mutex_);
  wave_caches_.push_back(std::move(kept));
}

bool Model::CapRuleMatters(const Draw& draw) const {
  const std::vector<AttentionConfig>& layers = AttentionOf(config_, draw);
  return !draw.dense && std::any_of(layers.begin(), layers.end(),
                                    [](const AttentionConfig& layer) { return layer.kind->memberships; });
}

bool Model::Samples(const ModelInput& input) const {
  return !input.graph.has_value() && FirstDrawnLayer(config_, input) < config_.num_hidden_layers;
}

}  // namespace edgewise
