#include "model/tokenizers/hf_tokenizer.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/json_object.h"
#include "base/json_text.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "model/tokenizers/added_tokens.h"
#include "model/tokenizers/decoders.h"
#include "model/tokenizers/normalizers.h"
#include "model/tokenizers/post_processor.h"
#include "model/tokenizers/pre_tokenizers.h"
#include "model/tokenizers/word_model.h"

namespace edgewise {

using nlohmann::json;
using tokenizers::AddedTokens;
using tokenizers::AlignedText;
using tokenizers::Counted;
using tokenizers::Decoder;
using tokenizers::Normalizer;
using tokenizers::PostProcessor;
using tokenizers::PreTokenizer;
using tokenizers::Span;
using tokenizers::Steps;
using tokenizers::TextTokens;
using tokenizers::Token;
using tokenizers::TokenSink;
using tokenizers::WordModel;
using tokenizers::Work;

namespace {

constexpr size_t kMostBytes = size_t{1} << 30;
constexpr size_t kMostDecoded = 64 << 10;  // bytes of text that one token may become
// Most copies of the text while it grows, and of a token on its way through the steps of the decoder.
constexpr uint64_t kCopiesOfText = 3, kCopiesOfToken = 8;
// Bytes of a token that stays: its id in TextTokens, its id and type in Encoding; and with everything else.
constexpr size_t kBytesOfId = 13, kBytesOfToken = 48;
constexpr char kFile[] = "tokenizer.json: ", kConfigFile[] = "tokenizer_config.json: ";

absl::Status Of(const char* file, const absl::Status& status) {
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(file, status.message()));
}

// How many of a text's tokens stay where `counts` are those of one text or of two, and `most` are allowed.
std::vector<size_t> Kept(const std::vector<size_t>& counts, size_t most) {
  std::vector<size_t> keep = counts;
  if (keep.size() == 1) {
    keep[0] = std::min(keep[0], most);
  } else if (keep[0] + keep[1] > most) {
    // The shorter one stays whole where it fits beside as much of the longer one; else both have half.
    const size_t shorter = keep[0] > keep[1] ? 1 : 0;
    const size_t longer = 1 - shorter;
    keep[longer] = keep[shorter] > most ? keep[shorter] : std::max(keep[shorter], most - keep[shorter]);
    if (keep[0] + keep[1] > most) {
      keep[shorter] = most / 2;
      keep[longer] = most - keep[shorter];
    }
  }
  return keep;
}

// The tokens of one text: all, or those that a cut may leave, the others are only counted.
class Collector : public TokenSink {
 public:
  // `most`: of the tokens that are kept, or allowed.
  Collector(const EncodeOptions& options, size_t most, bool trims, WorkBounds& bounds)
      : options_(options),
        most_(most),
        wants_offsets_(!options.only_ids),
        wants_spaces_(wants_offsets_ && trims),
        ids_(bounds),
        details_(bounds) {}

  // The tokens that follow are those of this word.
  void Begin(const AlignedText& word, const WordModel& model) {
    word_ = &word;
    model_ = &model;
    ++words_;
  }
  absl::Status Push(const Token& token) override { return Add(token, model_); }
  absl::Status PushAdded(int32_t id, const AlignedText& text) {
    word_ = &text;
    ++words_;
    return Add({id, 0, static_cast<uint32_t>(text.text().size())}, nullptr);
  }
  absl::Status AtLeast(size_t tokens) override {
    if (!options_.refuse_longer || tokens <= most_ - count_) return absl::OkStatus();
    too_many_ = true;
    return absl::OutOfRangeError("more tokens than allowed");  // nobody reads it
  }

  size_t count() const { return count_; }
  bool too_many() const { return too_many_; }
  // The last or the first `size` tokens.
  TextTokens Take(size_t size) {
    const size_t begin = options_.truncate_left ? ids_.values().size() - size : 0;
    TextTokens taken;
    const auto ids = ids_.values().begin() + static_cast<int64_t>(begin);
    taken.ids.assign(ids, ids + static_cast<int64_t>(size));
    if (!wants_offsets_) return taken;
    taken.offsets.reserve(size);
    taken.words.reserve(size);
    taken.spaces.reserve(size);
    for (size_t i = begin; i < begin + size; ++i) {
      taken.offsets.push_back(details_.values()[i].offset);
      taken.words.push_back(details_.values()[i].word);
      taken.spaces.push_back(details_.values()[i].spaces);
    }
    return taken;
  }

 private:
  struct Detail {
    Span offset, spaces;
    int32_t word;
  };

  absl::Status Add(const Token& token, const WordModel* model) {
    RETURN_IF_ERROR(AtLeast(1));
    ++count_;
    if (ids_.values().size() >= most_) {
      if (!options_.truncate_left || most_ == 0) return absl::OkStatus();
      if (ids_.values().size() >= 2 * most_ + kSpare) {  // the front is dropped many at a time
        Drop(ids_.values(), ids_.values().size() - most_ + 1);
        if (wants_offsets_) Drop(details_.values(), details_.values().size() - most_ + 1);
      }
    }
    RETURN_IF_ERROR(ids_.Push(token.id));
    if (!wants_offsets_) return absl::OkStatus();
    Detail detail{word_->Origin(token.begin, token.end), {}, words_ - 1};
    if (wants_spaces_) {
      const std::string& spelled = word_->text();
      detail.spaces = tokenizers::CountSpaces(model == nullptr ? spelled : model->Text(token, spelled));
    }
    return details_.Push(detail);
  }
  template <typename Value>
  static void Drop(std::vector<Value>& values, size_t count) {
    values.erase(values.begin(), values.begin() + static_cast<int64_t>(count));
  }

  static constexpr size_t kSpare = 1024;
  const EncodeOptions& options_;
  const size_t most_;
  const bool wants_offsets_, wants_spaces_;
  const AlignedText* word_ = nullptr;
  const WordModel* model_ = nullptr;
  int32_t words_ = 0;
  size_t count_ = 0;
  bool too_many_ = false;
  Counted<int32_t> ids_;
  Counted<Detail> details_;
};

// The normalizer behind a step that lowers case; as it is where it has that step already.
json LowerCaseFirst(const json& normalizer) {
  const json lower = {{"type", "Lowercase"}};
  const bool sequence = normalizer.is_object() && normalizer.value("type", json()) == "Sequence";
  const json steps = sequence ? normalizer.value("normalizers", json()) : json::array({normalizer});
  json all = json::array({lower});
  for (const json& step : steps) {
    if (step == lower) return normalizer;
    if (!step.is_null()) all.push_back(step);
  }
  return {{"type", "Sequence"}, {"normalizers", all}};
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

  static absl::StatusOr<std::unique_ptr<Parts>> Read(const json& file, const tokenizers::GivenTokens& given,
                                                     bool lower_case);
  // The result of Read, with the special tokens. The message begins with the name of the file.
  static absl::StatusOr<std::unique_ptr<Parts>> ReadAll(const json& file, tokenizers::GivenTokens given,
                                                        bool lower_case);
  // The tokens of one text, as yet without the template.
  absl::Status Tokenize(std::string_view text, Work& work, Collector& tokens) const;

  int32_t Id(std::string_view token) const {
    const int32_t id = added.Id(token);
    return id >= 0 ? id : model->vocabulary().Id(token);
  }
};

absl::StatusOr<std::unique_ptr<HfTokenizer::Parts>> HfTokenizer::Parts::Read(const json& file,
                                                                             const tokenizers::GivenTokens& given,
                                                                             bool lower_case) {
  auto parts = std::make_unique<Parts>();
  JsonObject fields(file, "");
  const json& version = fields.Value("version", false);
  if (!version.is_null() && version != "1.0") fields.FailAt("version", version, "served is \"1.0\"");
  fields.Value("truncation", false);  // the caller says how long
  fields.Value("padding", false);
  const json& added = fields.Value("added_tokens", false);
  const json& own_normalizer = fields.Value("normalizer", false);
  const json normalizer = lower_case ? LowerCaseFirst(own_normalizer) : own_normalizer;
  const json& pre_tokenizer = fields.Value("pre_tokenizer", false);
  const json& post_processor = fields.Value("post_processor", false);
  const json& decoder = fields.Value("decoder", false);
  const json& model = fields.Value("model", true);
  RETURN_IF_ERROR(fields.Finish());
  Steps normalizing, cutting;
  if (!normalizer.is_null()) {
    ASSIGN_OR_RETURN(parts->normalizer, tokenizers::ReadNormalizer(normalizer, "normalizer", normalizing));
  }
  if (!pre_tokenizer.is_null()) {
    ASSIGN_OR_RETURN(parts->pre_tokenizer, tokenizers::ReadPreTokenizer(pre_tokenizer, "pre_tokenizer", cutting));
  }
  ASSIGN_OR_RETURN(parts->model, tokenizers::ReadWordModel(model, "model"));
  if (!post_processor.is_null()) {
    ASSIGN_OR_RETURN(parts->post_processor, PostProcessor::Read(post_processor, "post_processor"));
  }
  if (!decoder.is_null()) {
    ASSIGN_OR_RETURN(parts->decoder, Decoder::Read(decoder, "decoder"));
  }
  ASSIGN_OR_RETURN(const std::vector<json> more, tokenizers::LackingTokens(added, given, parts->model->vocabulary()));
  ASSIGN_OR_RETURN(parts->added, AddedTokens::Read(added, more, parts->model->vocabulary(), parts->normalizer.get()));
  return parts;
}

absl::Status HfTokenizer::Parts::Tokenize(std::string_view text, Work& work, Collector& tokens) const {
  auto take_word = [&](AlignedText word) -> absl::Status {
    tokens.Begin(word, *model);
    return model->Tokenize(word.text(), work, tokens);
  };
  return added.Extract(text, normalizer.get(), work, [&](AlignedText part, int32_t id) -> absl::Status {
    if (id >= 0) return tokens.PushAdded(id, part);
    return pre_tokenizer == nullptr ? take_word(std::move(part)) : pre_tokenizer->Cut(std::move(part), work, take_word);
  });
}

HfTokenizer::HfTokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
HfTokenizer::~HfTokenizer() = default;

absl::StatusOr<std::unique_ptr<HfTokenizer::Parts>> HfTokenizer::Parts::ReadAll(const json& file,
                                                                                tokenizers::GivenTokens given,
                                                                                bool lower_case) {
  const json pad = tokenizers::TakePad(file, given);
  absl::StatusOr<std::unique_ptr<Parts>> read = Read(file, given, lower_case);
  if (!read.ok()) return Of(kFile, read.status());
  Parts& parts = **read;
  RETURN_IF_ERROR(Of(kConfigFile, tokenizers::CheckAgainstConfig(file, given.config)));
  absl::StatusOr<SpecialTokens> special =
      tokenizers::ReadSpecialTokens(given, [&](const std::string& token) { return parts.Id(token); });
  if (!special.ok()) return Of(kConfigFile, special.status());
  parts.special = *std::move(special);
  if (!pad.is_null()) parts.special.named["pad_token"] = pad.get<std::string>();
  parts.longest = parts.model->vocabulary().longest();
  for (int32_t id = 0; id <= parts.added.most_id(); ++id) {
    const std::string* added = parts.added.Text(id);
    if (added != nullptr) parts.longest = std::max(parts.longest, added->size());
  }
  if (parts.longest > kMostDecoded / parts.decoder.growth()) {
    return absl::InvalidArgumentError(absl::StrCat(
        kFile, "decoder: its Replace steps make up to ", parts.decoder.growth(), " bytes of one, and a token has ",
        parts.longest, " bytes; a token may become at most ", kMostDecoded, " bytes of text"));
  }
  return read;
}

absl::StatusOr<std::unique_ptr<HfTokenizer>> HfTokenizer::Read(const std::string& tokenizer_json,
                                                               const TokenFiles& files, bool lower_case) {
  const absl::StatusOr<json> file = ParsePythonJson(tokenizer_json);
  if (!file.ok()) return Of(kFile, file.status());
  ASSIGN_OR_RETURN(tokenizers::GivenTokens given, tokenizers::ReadTokenFiles(files));
  ASSIGN_OR_RETURN(std::unique_ptr<Parts> parts, Parts::ReadAll(*file, std::move(given), lower_case));
  return std::unique_ptr<HfTokenizer>(new HfTokenizer(std::move(parts)));
}

absl::StatusOr<std::unique_ptr<HfTokenizer>> HfTokenizer::ReadVocabTxt(const std::string& vocab_txt,
                                                                       const TokenFiles& files, bool lower_case) {
  const size_t invalid = FirstInvalidByte(vocab_txt);
  if (invalid != vocab_txt.size()) {
    return absl::InvalidArgumentError(absl::StrCat("vocab.txt: byte ", invalid, " is not valid UTF-8"));
  }
  ASSIGN_OR_RETURN(tokenizers::GivenTokens given, tokenizers::ReadTokenFiles(files, tokenizers::BertTokens()));
  const absl::StatusOr<json> file = tokenizers::BertTokenizerJson(vocab_txt, given);
  if (!file.ok()) return Of(kConfigFile, file.status());
  ASSIGN_OR_RETURN(std::unique_ptr<Parts> parts, Parts::ReadAll(*file, std::move(given), lower_case));
  return std::unique_ptr<HfTokenizer>(new HfTokenizer(std::move(parts)));
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
                                                  const EncodeOptions& options, WorkBounds& bounds) const {
  const PostProcessor& post = parts_->post_processor;
  Work work(bounds);
  Encoding too_long;
  too_long.too_long = true;
  const size_t framing = options.add_special_tokens ? post.AddedTokens(texts.size() == 2) : 0;
  size_t most = SIZE_MAX;  // tokens of the texts
  if (options.max_tokens > 0) {
    if (options.max_tokens < framing) {
      REFUSE_IF(!options.refuse_longer, "text", "may have ", options.max_tokens,
                " tokens, but the tokenizer's template alone has ", framing);
      return too_long;
    }
    most = options.max_tokens - framing;
  }
  std::deque<Collector> collectors;
  std::vector<size_t> counts;
  size_t all = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string field = i == 0 ? "text" : "second";
    const std::string& text = *texts[i];
    REFUSE_IF(text.size() >= kMostBytes, field, "has ", text.size(), " bytes; allowed are less than ", kMostBytes);
    const size_t invalid = FirstInvalidByte(text);
    REFUSE_IF(invalid != text.size(), field, ": byte ", invalid, " is not valid UTF-8");
    RETURN_IF_ERROR(work.Charge(text.size()));
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    Collector& tokens =
        collectors.emplace_back(options, options.refuse_longer ? most - all : most, post.trims(), bounds);
    const absl::Status status = parts_->Tokenize(*texts[i], work, tokens);
    if (tokens.too_many()) return too_long;
    if (absl::IsInvalidArgument(status)) {
      return FieldError(i == 0 ? "text" : "second", absl::StrCat(": ", std::string(status.message())));
    }
    RETURN_IF_ERROR(status);
    counts.push_back(tokens.count());
    all += tokens.count();
  }
  const std::vector<size_t> kept = Kept(counts, most);
  ReservedBytes held(bounds);
  std::vector<TextTokens> tokens;
  size_t left = 0;
  for (const size_t count : kept) left += count;
  const size_t bytes = (left + framing) * (options.only_ids ? kBytesOfId : kBytesOfToken);
  if (bytes > tokenizers::kUncounted) RETURN_IF_ERROR(held.Resize(bytes));
  for (size_t i = 0; i < texts.size(); ++i) {
    tokens.push_back(collectors[i].Take(kept[i]));
    if (!options.only_ids) post.TrimOffsets(*texts[i], tokens[i]);
  }
  collectors.clear();
  Encoding encoding = post.Join(tokens, options.add_special_tokens, options.only_ids);
  encoding.truncated = all - left;
  return encoding;
}

std::string HfTokenizer::Decode(const std::vector<int32_t>& ids, bool skip_special) const {
  return *Decode(ids, skip_special, NoBounds());
}

absl::StatusOr<std::string> HfTokenizer::Decode(const std::vector<int32_t>& ids, bool skip_special,
                                                WorkBounds& bounds) const {
  std::string text;
  const auto chain = parts_->decoder.Start(&text, tokenizers::ByteRuns::kWhole);
  ReservedBytes held(bounds);
  WorkMeter meter(bounds);
  uint64_t waiting = 0;  // bytes of tokens that the chain may not have handed on: a run that names bytes is one
  for (const int32_t id : ids) {
    RETURN_IF_ERROR(meter.Charge(1));
    const std::string* token = Token(id);
    if (token == nullptr || (skip_special && IsSpecial(id))) continue;
    waiting += 1 + token->size();
    const uint64_t needed = kCopiesOfText * text.size() + kCopiesOfToken * parts_->decoder.growth() * waiting;
    if (needed > held.bytes()) RETURN_IF_ERROR(held.Resize(needed));
    const size_t before = text.size();
    chain->Take(*token, true);
    if (text.size() > before) waiting = 0;
    RETURN_IF_ERROR(meter.Charge(text.size() - before));
  }
  chain->End();
  return text;
}

std::string HfTokenizer::Bytes(int32_t id) const {
  const std::string* token = Token(id);
  if (token == nullptr) return "";
  if (IsSpecial(id)) return *token;
  std::string text;
  const auto chain = parts_->decoder.Start(&text, tokenizers::ByteRuns::kRaw);
  chain->Take("a", true);  // the first token of a text may have other ones
  const size_t begin = text.size();
  chain->Take(*token, true);
  chain->End();
  return text.substr(begin);
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

int32_t HfTokenizer::most_template_id() const { return parts_->post_processor.most_id(); }

int32_t HfTokenizer::most_template_type() const { return parts_->post_processor.most_type(false); }

size_t HfTokenizer::template_tokens() const { return parts_->post_processor.AddedTokens(false); }

size_t HfTokenizer::longest_token() const { return parts_->longest; }

const SpecialTokens& HfTokenizer::special_tokens() const { return parts_->special; }

}  // namespace edgewise
