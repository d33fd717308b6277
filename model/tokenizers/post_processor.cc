#include "model/tokenizers/post_processor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "model/tokenizers/byte_alphabet.h"
#include "model/tokenizers/fields.h"
#include "model/tokenizers/unicode.h"

namespace edgewise::tokenizers {
namespace {

using nlohmann::json;

bool Continues(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// The place `characters` characters after `at`, at most `end`.
uint32_t Forward(std::string_view text, uint32_t at, uint32_t end, uint32_t characters) {
  for (; characters > 0 && at < end; --characters) at += CharacterAt(text, at).bytes;
  return std::min(at, end);
}

// The place `characters` characters before `at`, at least `begin`; `at` itself where the text has fewer.
uint32_t Back(std::string_view text, uint32_t begin, uint32_t at, uint32_t characters) {
  uint32_t to = at;
  for (; characters > 0; --characters) {
    if (to == 0) return at;
    do --to;
    while (to > 0 && Continues(text[to]));
  }
  return std::max(to, begin);
}

// The pair ["[SEP]", 102] of a field: its id.
int32_t ReadTokenPair(JsonObject& fields, const std::string& field) {
  const json& pair = fields.Value(field, true);
  if (pair.is_array() && pair.size() == 2 && pair[0].is_string() && IsInteger(pair[1], 0, kMostIds - 1)) {
    return pair[1].get<int32_t>();
  }
  if (!pair.is_null()) fields.FailAt(field, pair, "a pair of token and id is expected");
  return 0;
}

// The ids of the special token `id` of a template.
std::vector<int32_t> SpecialIds(JsonObject& fields, const std::string& id) {
  const json& all = fields.Value("special_tokens", true);
  if (!all.is_object() || !all.contains(id)) {
    fields.Fail(absl::StrCat(fields.Path("special_tokens"), " lacks ", ShowJson(json(id)), ", which a template names"));
    return {};
  }
  JsonObject token(all[id], absl::StrCat(fields.Path("special_tokens"), "[", ShowJson(json(id)), "]"));
  RequiredString(token, "id");
  const json& tokens = token.Value("tokens", true);
  const json& list = token.Value("ids", true);
  std::vector<int32_t> ids;
  if (!list.is_array() || !tokens.is_array() || list.size() != tokens.size()) {
    token.FailAt("ids", list, "a list is expected, as long as that of the tokens");
  }
  for (size_t i = 0; list.is_array() && i < list.size(); ++i) {
    if (!IsInteger(list[i], 0, kMostIds - 1)) {
      token.FailAt("ids", list, absl::StrCat("allowed: integers from 0 to ", kMostIds - 1));
      break;
    }
    ids.push_back(list[i].get<int32_t>());
  }
  token.FinishInto(fields);
  return ids;
}

}  // namespace

Span CountSpaces(std::string_view token) {
  const std::vector<char32_t> characters = ToCharacters(token);
  auto is_space = [](char32_t c) { return c == kByteSpace || IsWhitespace(c); };
  const auto first = std::find_if_not(characters.begin(), characters.end(), is_space);
  const auto last = std::find_if_not(characters.rbegin(), characters.rend(), is_space);
  return {static_cast<uint32_t>(first - characters.begin()), static_cast<uint32_t>(last - characters.rbegin())};
}

PostProcessor::PostProcessor() : single_{{0, 0, {}}}, pair_{{0, 0, {}}, {1, 1, {}}} {}

absl::StatusOr<PostProcessor> PostProcessor::Read(const json& object, const std::string& path) {
  PostProcessor processor;
  Steps steps;
  RETURN_IF_ERROR(processor.Add(object, path, steps));
  return processor;
}

absl::Status PostProcessor::Add(const json& object, const std::string& path, Steps& steps) {
  RETURN_IF_ERROR(steps.Add(path));
  enum { kTemplate, kBert, kRoberta, kByteLevel, kSequence };
  JsonObject fields(object, path);
  const int type =
      ReadType(fields, {"TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel", "Sequence"});
  if (has_template_ && type != kSequence) {
    fields.FailAt("type", fields.Value("type", true), "nothing is served after a template");
  }
  if (type == kTemplate) {
    single_ = ReadTemplate(fields, "single", 1);
    pair_ = ReadTemplate(fields, "pair", 2);
    fields.Value("special_tokens", true);
    has_template_ = true;
  } else if (type == kBert || type == kRoberta) {
    const int32_t sep = ReadTokenPair(fields, "sep"), cls = ReadTokenPair(fields, "cls");
    if (type == kRoberta) {
      const bool prefix = RequiredBoolean(fields, "add_prefix_space");
      if (RequiredBoolean(fields, "trim_offsets")) trims_.push_back(prefix);
    }
    Surround(cls, sep, type == kRoberta);
  } else if (type == kByteLevel) {
    const bool prefix = RequiredBoolean(fields, "add_prefix_space");
    if (RequiredBoolean(fields, "trim_offsets")) trims_.push_back(prefix);
    fields.Boolean("use_regex", true);  // belongs to the pre-tokenizer of the same name
  } else if (type == kSequence) {
    const json& list = fields.Value("processors", true);
    if (!list.is_array()) fields.FailAt("processors", list, "a list is expected");
    for (size_t i = 0; list.is_array() && i < list.size(); ++i) {
      RETURN_IF_ERROR(Add(list[i], absl::StrCat(fields.Path("processors"), "[", i, "]"), steps));
    }
  }
  return fields.Finish();
}

void PostProcessor::Surround(int32_t cls, int32_t sep, bool roberta) {
  single_ = {{-1, 0, {cls}}, {0, 0, {}}, {-1, 0, {sep}}};
  const int32_t second = roberta ? 0 : 1;
  pair_ = single_;
  if (roberta) pair_.push_back({-1, 0, {sep}});
  pair_.push_back({1, second, {}});
  pair_.push_back({-1, second, {sep}});
  has_template_ = true;
}

PostProcessor::Template PostProcessor::ReadTemplate(JsonObject& fields, const std::string& name, int texts) {
  constexpr int32_t kMostTypes = 1 << 16;
  Template steps;
  const json& list = fields.Value(name, true);
  if (!list.is_null() && !list.is_array()) fields.FailAt(name, list, "a list is expected");
  int uses[2] = {0, 0};
  size_t added = 0;
  for (size_t i = 0; list.is_array() && i < list.size(); ++i) {
    const std::string path = absl::StrCat(fields.Path(name), "[", i, "]");
    JsonObject piece(list[i], path);
    const bool sequence = list[i].is_object() && list[i].contains("Sequence");
    const std::string kind = sequence ? "Sequence" : "SpecialToken";
    JsonObject inside(piece.Value(kind, true), absl::StrCat(path, ".", kind));
    Step step;
    step.type_id = inside.Integer("type_id", 0, kMostTypes);
    if (sequence) {
      step.text = inside.Choice("id", {"A", "B"});
      if (step.text >= texts || ++uses[step.text] > 1) {
        inside.FailAt("id", inside.Value("id", true),
                      absl::StrCat("once each are served: ", texts == 1 ? "A" : "A, B"));
      }
    } else {
      const std::string id = RequiredString(inside, "id");
      if (!id.empty()) step.ids = SpecialIds(fields, id);
    }
    if (piece.Has(kind)) inside.FinishInto(piece);
    piece.FinishInto(fields);
    added += step.ids.size();
    steps.push_back(std::move(step));
    if (steps.size() <= kMostAdded && added <= kMostAdded) continue;
    fields.Fail(absl::StrCat(path, " makes the template too long; allowed are ", kMostAdded,
                             " pieces and as many special tokens"));
    break;
  }
  return steps;
}

size_t PostProcessor::AddedTokens(bool two) const {
  size_t added = 0;
  for (const Step& step : two ? pair_ : single_) added += step.ids.size();
  return added;
}

int32_t PostProcessor::most_id() const {
  int32_t most = -1;
  for (const Template* steps : {&single_, &pair_}) {
    for (const Step& step : *steps) {
      for (const int32_t id : step.ids) most = std::max(most, id);
    }
  }
  return most;
}

int32_t PostProcessor::most_type(bool two) const {
  int32_t most = 0;
  for (const Step& step : two ? pair_ : single_) {
    if (step.text >= 0 || !step.ids.empty()) most = std::max(most, step.type_id);
  }
  return most;
}

void PostProcessor::TrimOffsets(std::string_view text, TextTokens& tokens) const {
  for (const bool prefix : trims_) {
    for (size_t i = 0; i < tokens.ids.size(); ++i) {
      Span& offset = tokens.offsets[i];
      const Span& spaces = tokens.spaces[i];
      const bool put_there = prefix && spaces.begin == 1 && (i == 0 || offset.begin == 0);
      if (!put_there) offset.begin = Forward(text, offset.begin, offset.end, spaces.begin);
      offset.end = Back(text, offset.begin, offset.end, spaces.end);
    }
  }
}

Encoding PostProcessor::Join(const std::vector<TextTokens>& texts, bool special, bool only_ids) const {
  Encoding joined;
  size_t size = AddedTokens(texts.size() == 2);
  for (const TextTokens& text : texts) size += text.ids.size();
  joined.ids.reserve(size);
  joined.type_ids.reserve(size);
  joined.sequences.reserve(size);
  if (!only_ids) {
    joined.offsets.reserve(size);
    joined.words.reserve(size);
  }
  auto push = [&](int32_t id, int32_t type_id, Span offset, int sequence, int32_t word) {
    joined.ids.push_back(id);
    joined.type_ids.push_back(type_id);
    joined.sequences.push_back(static_cast<int8_t>(sequence));
    if (only_ids) return;
    joined.offsets.push_back(offset);
    joined.words.push_back(word);
  };
  for (const Step& step : texts.size() == 2 ? pair_ : single_) {
    if (step.text < 0) {
      for (size_t i = 0; special && i < step.ids.size(); ++i) push(step.ids[i], step.type_id, {}, -1, -1);
      continue;
    }
    const TextTokens& tokens = texts[step.text];
    for (size_t i = 0; i < tokens.ids.size(); ++i) {
      push(tokens.ids[i], step.type_id, only_ids ? Span() : tokens.offsets[i], step.text,
           only_ids ? 0 : tokens.words[i]);
    }
  }
  return joined;
}

}  // namespace edgewise::tokenizers
