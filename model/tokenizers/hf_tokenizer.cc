#include "model/tokenizers/hf_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/checkpoint/json_object.h"
#include "model/tokenizers/added_tokens.h"
#include "model/tokenizers/decoders.h"
#include "model/tokenizers/normalizers.h"
#include "model/tokenizers/post_processor.h"
#include "model/tokenizers/pre_tokenizers.h"
#include "model/tokenizers/utf8.h"
#include "model/tokenizers/word_model.h"
#include "text/field_error.h"
#include "text/status_macros.h"

namespace edgewise {

using nlohmann::json;
using tokenizers::AddedTokens;
using tokenizers::AlignedText;
using tokenizers::Decoder;
using tokenizers::Normalizer;
using tokenizers::Piece;
using tokenizers::PostProcessor;
using tokenizers::PreTokenizer;
using tokenizers::TextTokens;
using tokenizers::WordModel;

namespace {

constexpr size_t kMostBytes = size_t{1} << 30;
constexpr char kConfigFile[] = "tokenizer_config.json: ";

absl::Status Of(const char* file, const absl::Status& status) {
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(file, status.message()));
}

// tokenizer_config.json; an empty object where there is none.
absl::StatusOr<json> ParseConfig(const std::string& text) {
  if (text.empty()) return json::object();
  return ParseStrictJson(text);
}

// Keeps tokens [begin, end).
void Cut(TextTokens& tokens, size_t begin, size_t end) {
  auto cut = [&](auto& values) {
    values.erase(values.begin() + end, values.end());
    values.erase(values.begin(), values.begin() + begin);
  };
  cut(tokens.ids);
  cut(tokens.offsets);
  cut(tokens.words);
  cut(tokens.spaces);
}

// Cuts texts until they have at most `most` tokens. Returns how many were cut off.
size_t Truncate(std::vector<TextTokens>& texts, size_t most, bool left) {
  std::vector<size_t> keep;
  size_t all = 0;
  for (const TextTokens& text : texts) {
    keep.push_back(text.ids.size());
    all += keep.back();
  }
  if (all <= most) return 0;
  if (keep.size() == 1) {
    keep[0] = most;
  } else {  // the shorter one stays whole where it fits beside as much of the longer one; else both have half
    const size_t shorter = keep[0] > keep[1] ? 1 : 0;
    const size_t longer = 1 - shorter;
    keep[longer] = keep[shorter] > most ? keep[shorter] : std::max(keep[shorter], most - keep[shorter]);
    if (keep[0] + keep[1] > most) {
      keep[shorter] = most / 2;
      keep[longer] = most - keep[shorter];
    }
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    const size_t size = texts[i].ids.size();
    if (keep[i] < size) Cut(texts[i], left ? size - keep[i] : 0, left ? size : keep[i]);
  }
  return all - most;
}

}  // namespace

struct HfTokenizer::Parts {
  std::unique_ptr<Normalizer> normalizer;       // null: none
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // null: none
  std::unique_ptr<WordModel> model;
  PostProcessor post_processor;
  Decoder decoder;
  AddedTokens added;
  SpecialTokens special;
  size_t longest = 0;  // bytes of a token

  static absl::StatusOr<std::unique_ptr<Parts>> Read(const json& file);
  // The tokens of one text, as yet without the template.
  absl::StatusOr<TextTokens> Tokenize(const std::string& text) const;

  int32_t Id(std::string_view token) const {
    const int32_t id = added.Id(token);
    return id >= 0 ? id : model->vocabulary().Id(token);
  }
};

absl::StatusOr<std::unique_ptr<HfTokenizer::Parts>> HfTokenizer::Parts::Read(const json& file) {
  auto parts = std::make_unique<Parts>();
  JsonObject fields(file, "");
  const json& version = fields.Value("version", false);
  if (!version.is_null() && version != "1.0") fields.FailAt("version", version, "served is \"1.0\"");
  fields.Value("truncation", false);  // the caller says how long
  fields.Value("padding", false);
  const json& added = fields.Value("added_tokens", false);
  const json& normalizer = fields.Value("normalizer", false);
  const json& pre_tokenizer = fields.Value("pre_tokenizer", false);
  const json& post_processor = fields.Value("post_processor", false);
  const json& decoder = fields.Value("decoder", false);
  const json& model = fields.Value("model", true);
  RETURN_IF_ERROR(fields.Finish());
  if (!normalizer.is_null()) {
    ASSIGN_OR_RETURN(parts->normalizer, tokenizers::ReadNormalizer(normalizer, "normalizer"));
  }
  if (!pre_tokenizer.is_null()) {
    ASSIGN_OR_RETURN(parts->pre_tokenizer, tokenizers::ReadPreTokenizer(pre_tokenizer, "pre_tokenizer"));
  }
  ASSIGN_OR_RETURN(parts->model, tokenizers::ReadWordModel(model, "model"));
  if (!post_processor.is_null()) {
    ASSIGN_OR_RETURN(parts->post_processor, PostProcessor::Read(post_processor, "post_processor"));
  }
  if (!decoder.is_null()) {
    ASSIGN_OR_RETURN(parts->decoder, Decoder::Read(decoder, "decoder"));
  }
  ASSIGN_OR_RETURN(parts->added, AddedTokens::Read(added, parts->model->vocabulary(), parts->normalizer.get()));
  return parts;
}

absl::StatusOr<TextTokens> HfTokenizer::Parts::Tokenize(const std::string& text) const {
  ASSIGN_OR_RETURN(std::vector<Piece> pieces, added.Extract(AlignedText(text), normalizer.get()));
  if (pre_tokenizer != nullptr) RETURN_IF_ERROR(pre_tokenizer->Cut(pieces));
  TextTokens all;
  auto push = [&](int32_t id, tokenizers::Span offset, size_t word, std::string_view token) {
    all.ids.push_back(id);
    all.offsets.push_back(offset);
    all.words.push_back(static_cast<int32_t>(word));
    all.spaces.push_back(tokenizers::CountSpaces(token));
  };
  std::vector<tokenizers::Token> tokens;
  for (size_t word = 0; word < pieces.size(); ++word) {
    const Piece& piece = pieces[word];
    const std::string& spelled = piece.text.text();
    if (piece.added_token >= 0) {
      push(piece.added_token, piece.text.Origin(0, static_cast<uint32_t>(spelled.size())), word, spelled);
      continue;
    }
    tokens.clear();
    RETURN_IF_ERROR(model->Tokenize(spelled, tokens));
    for (const tokenizers::Token& token : tokens) {
      push(token.id, piece.text.Origin(token.begin, token.end), word, model->Text(token, spelled));
    }
  }
  return all;
}

HfTokenizer::HfTokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
HfTokenizer::~HfTokenizer() = default;

absl::StatusOr<std::unique_ptr<HfTokenizer>> HfTokenizer::Read(const std::string& tokenizer_json,
                                                               const std::string& tokenizer_config_json) {
  constexpr char kFile[] = "tokenizer.json: ";
  const absl::StatusOr<json> file = ParseStrictJson(tokenizer_json);
  if (!file.ok()) return Of(kFile, file.status());
  absl::StatusOr<std::unique_ptr<Parts>> parts = Parts::Read(*file);
  if (!parts.ok()) return Of(kFile, parts.status());
  const absl::StatusOr<json> config = ParseConfig(tokenizer_config_json);
  if (!config.ok()) return Of(kConfigFile, config.status());
  RETURN_IF_ERROR(Of(kConfigFile, tokenizers::CheckAgainstConfig(*file, *config)));
  const absl::StatusOr<SpecialTokens> special =
      tokenizers::ReadSpecialTokens(*config, [&](const std::string& token) { return (*parts)->Id(token); });
  if (!special.ok()) return Of(kConfigFile, special.status());
  (*parts)->special = *special;
  (*parts)->longest = (*parts)->model->vocabulary().longest();
  for (int32_t id = 0; id <= (*parts)->added.most_id(); ++id) {
    const std::string* added = (*parts)->added.Text(id);
    if (added != nullptr) (*parts)->longest = std::max((*parts)->longest, added->size());
  }
  return std::unique_ptr<HfTokenizer>(new HfTokenizer(*std::move(parts)));
}

absl::StatusOr<std::unique_ptr<HfTokenizer>> HfTokenizer::ReadVocabTxt(const std::string& vocab_txt,
                                                                       const std::string& tokenizer_config_json) {
  const size_t invalid = tokenizers::FirstInvalidByte(vocab_txt);
  if (invalid != vocab_txt.size()) {
    return absl::InvalidArgumentError(absl::StrCat("vocab.txt: byte ", invalid, " is not valid UTF-8"));
  }
  const absl::StatusOr<json> config = ParseConfig(tokenizer_config_json);
  if (!config.ok()) return Of(kConfigFile, config.status());
  const absl::StatusOr<json> file = tokenizers::BertTokenizerJson(vocab_txt, *config);
  if (!file.ok()) {
    return absl::StartsWith(file.status().message(), "vocab.txt") ? file.status() : Of(kConfigFile, file.status());
  }
  return Read(file->dump(), tokenizer_config_json);
}

absl::StatusOr<Encoding> HfTokenizer::Encode(const std::string& text, const EncodeOptions& options,
                                             WorkBounds& bounds) const {
  return EncodeTexts({&text}, options, bounds);
}

absl::StatusOr<Encoding> HfTokenizer::Encode(const std::string& text, const std::string& second,
                                             const EncodeOptions& options, WorkBounds& bounds) const {
  return EncodeTexts({&text, &second}, options, bounds);
}

absl::StatusOr<Encoding> HfTokenizer::EncodeTexts(const std::vector<const std::string*>& texts,
                                                  const EncodeOptions& options, WorkBounds&) const {
  std::vector<TextTokens> tokens;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string field = i == 0 ? "text" : "second";
    const size_t invalid = tokenizers::FirstInvalidByte(*texts[i]);
    REFUSE_IF(invalid != texts[i]->size(), field, ": byte ", invalid, " is not valid UTF-8");
    REFUSE_IF(texts[i]->size() >= kMostBytes, field, "has ", texts[i]->size(), " bytes; allowed are less than ",
              kMostBytes);
    absl::StatusOr<TextTokens> one = parts_->Tokenize(*texts[i]);
    if (!one.ok()) return FieldError(field, absl::StrCat(": ", one.status().message()));
    tokens.push_back(*std::move(one));
  }
  const size_t framing = options.add_special_tokens ? parts_->post_processor.AddedTokens(texts.size() == 2) : 0;
  size_t truncated = 0;
  if (options.max_tokens > 0) {
    REFUSE_IF(options.max_tokens < framing, "text", "may have ", options.max_tokens,
              " tokens, but the tokenizer's template alone has ", framing);
    truncated = Truncate(tokens, options.max_tokens - framing, options.truncate_left);
  }
  for (size_t i = 0; i < texts.size(); ++i) parts_->post_processor.TrimOffsets(*texts[i], tokens[i]);
  Encoding encoding = parts_->post_processor.Join(tokens, options.add_special_tokens);
  encoding.truncated = truncated;
  return encoding;
}

std::string HfTokenizer::Decode(const std::vector<int32_t>& ids, bool skip_special) const {
  std::string text;
  const auto chain = parts_->decoder.Start(&text, tokenizers::ByteRuns::kWhole);
  for (const int32_t id : ids) {
    const std::string* token = Token(id);
    if (token != nullptr && !(skip_special && IsSpecial(id))) chain->Take(*token, true);
  }
  chain->End();
  return text;
}

TextStream HfTokenizer::Stream(bool skip_special) const { return TextStream(*this, parts_->decoder, skip_special); }

int32_t HfTokenizer::Id(std::string_view token) const { return parts_->Id(token); }

const std::string* HfTokenizer::Token(int32_t id) const {
  const std::string* added = parts_->added.Text(id);
  return added != nullptr ? added : parts_->model->vocabulary().Token(id);
}

bool HfTokenizer::IsSpecial(int32_t id) const {
  const std::string* token = Token(id);
  return token != nullptr && parts_->added.IsSpecial(*token);
}

int32_t HfTokenizer::vocabulary_size() const {
  return std::max(parts_->added.most_id(), parts_->model->vocabulary().most_id()) + 1;
}

int32_t HfTokenizer::word_vocabulary_size() const { return parts_->model->vocabulary().most_id() + 1; }

int32_t HfTokenizer::most_template_id() const { return parts_->post_processor.most_id(); }

int32_t HfTokenizer::most_template_type() const { return parts_->post_processor.most_type(false); }

size_t HfTokenizer::longest_token() const { return parts_->longest; }

const SpecialTokens& HfTokenizer::special_tokens() const { return parts_->special; }

}  // namespace edgewise
