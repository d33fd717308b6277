#include "model/tokenizers/special_tokens.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/json_object.h"
#include "base/status_macros.h"
#include "model/tokenizers/unicode.h"

namespace edgewise::tokenizers {
namespace {

using nlohmann::json;

struct Role {
  const char* field;
  int32_t SpecialTokens::*id;
};
constexpr std::array<Role, 7> kRoles = {{{"bos_token", &SpecialTokens::bos},
                                         {"eos_token", &SpecialTokens::eos},
                                         {"unk_token", &SpecialTokens::unk},
                                         {"sep_token", &SpecialTokens::sep},
                                         {"pad_token", &SpecialTokens::pad},
                                         {"cls_token", &SpecialTokens::cls},
                                         {"mask_token", &SpecialTokens::mask}}};

absl::Status Wrong(const std::string& field, const json& found, const std::string& expected) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", ShowJson(found), "; ", expected));
}

absl::StatusOr<bool> BooleanOf(const json& config, const std::string& field, bool fallback) {
  const auto found = config.find(field);
  if (found == config.end() || found->is_null()) return fallback;
  if (!found->is_boolean()) return Wrong(field, *found, "allowed: true, false");
  return found->get<bool>();
}

}  // namespace

absl::StatusOr<SpecialTokens> ReadSpecialTokens(const GivenTokens& given,
                                                const std::function<int32_t(const std::string&)>& id_of) {
  SpecialTokens tokens;
  for (const auto& [name, token] : given.named) {
    tokens.named[name] = token.is_null() ? std::nullopt : std::make_optional(token.get<std::string>());
  }
  for (const Role& role : kRoles) {
    const auto found = tokens.named.find(role.field);
    if (found != tokens.named.end() && found->second.has_value()) tokens.*role.id = id_of(*found->second);
  }
  const json decoder = given.config.value("added_tokens_decoder", json::object());
  for (const auto& [key, token] : decoder.items()) {
    const int32_t known = id_of(token["content"].get<std::string>());
    if (key == absl::StrCat(known)) continue;
    return Wrong(absl::StrCat("added_tokens_decoder[", ShowJson(json(key)), "]"), token["content"],
                 absl::StrCat("by tokenizer.json its id is ", known));
  }
  return tokens;
}

absl::Status CheckAgainstConfig(const json& tokenizer, const json& config) {
  const auto normalizer = tokenizer.find("normalizer");
  if (!config.is_object() || normalizer == tokenizer.end() || !normalizer->is_object() ||
      normalizer->value("type", json()) != "BertNormalizer") {
    return absl::OkStatus();
  }
  constexpr std::pair<const char*, const char*> kSame[] = {{"do_lower_case", "lowercase"},
                                                           {"tokenize_chinese_chars", "handle_chinese_chars"},
                                                           {"strip_accents", "strip_accents"}};
  for (const auto& [field, in_normalizer] : kSame) {
    if (!config.contains(field) || !normalizer->contains(in_normalizer)) continue;
    if (config[field] == (*normalizer)[in_normalizer]) continue;
    return Wrong(
        field, config[field],
        absl::StrCat("in tokenizer.json normalizer.", in_normalizer, " is ", ShowJson((*normalizer)[in_normalizer])));
  }
  return absl::OkStatus();
}

const std::map<std::string, std::string>& BertTokens() {
  static const auto& tokens = *new std::map<std::string, std::string>{{"unk_token", "[UNK]"},
                                                                      {"sep_token", "[SEP]"},
                                                                      {"pad_token", "[PAD]"},
                                                                      {"cls_token", "[CLS]"},
                                                                      {"mask_token", "[MASK]"}};
  return tokens;
}

absl::StatusOr<json> BertTokenizerJson(const std::string& vocab_txt, const GivenTokens& given) {
  const json& config = given.config;
  const json made_for = config.value("tokenizer_class", json("BertTokenizer"));
  if (made_for != "BertTokenizer" && made_for != "BertTokenizerFast" && made_for != "DistilBertTokenizer" &&
      made_for != "DistilBertTokenizerFast") {
    return Wrong("tokenizer_class", made_for,
                 "of vocab.txt alone BertTokenizer and DistilBertTokenizer are served; save the folder with "
                 "tokenizer.json");
  }
  json vocab = json::object();
  std::vector<std::string> lines = absl::StrSplit(vocab_txt, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  // As `tokenizers` reads the file: without the spaces at the ends of lines; of equal lines the last one counts.
  for (size_t i = 0; i < lines.size(); ++i) vocab[lines[i].substr(0, SpacesAtEnd(lines[i]))] = i;
  json special = json::object(), added = json::array();
  std::array<std::string, 2> frame;  // cls, sep
  std::string unknown;
  for (const auto& [field, fallback] : BertTokens()) {
    const auto named = given.named.find(field);
    const std::string token =
        named == given.named.end() || named->second.is_null() ? fallback : named->second.get<std::string>();
    const int place = field == "cls_token" ? 0 : field == "sep_token" ? 1 : -1;
    if (field == "unk_token") unknown = token;
    if (!vocab.contains(token)) {  // others come behind the vocabulary
      if (field == "unk_token" || place >= 0) return Wrong(field, json(token), "vocab.txt has no such line");
      continue;
    }
    const json id = vocab[token];
    added.push_back({{"id", id},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    if (place < 0) continue;
    frame[place] = token;
    special[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
  }
  ASSIGN_OR_RETURN(const bool lowercase, BooleanOf(config, "do_lower_case", true));
  ASSIGN_OR_RETURN(const bool ideographs, BooleanOf(config, "tokenize_chinese_chars", true));
  const json accents = config.value("strip_accents", json());
  auto token = [&](int place, int type) { return json{{"SpecialToken", {{"id", frame[place]}, {"type_id", type}}}}; };
  auto text = [](const char* id, int type) { return json{{"Sequence", {{"id", id}, {"type_id", type}}}}; };
  return json{{"version", "1.0"},
              {"added_tokens", added},
              {"normalizer",
               {{"type", "BertNormalizer"},
                {"clean_text", true},
                {"handle_chinese_chars", ideographs},
                {"strip_accents", accents},
                {"lowercase", lowercase}}},
              {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
              {"post_processor",
               {{"type", "TemplateProcessing"},
                {"single", json::array({token(0, 0), text("A", 0), token(1, 0)})},
                {"pair", json::array({token(0, 0), text("A", 0), token(1, 0), text("B", 1), token(1, 1)})},
                {"special_tokens", special}}},
              {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
              {"model",
               {{"type", "WordPiece"},
                {"unk_token", unknown},
                {"continuing_subword_prefix", "##"},
                {"max_input_chars_per_word", 100},
                {"vocab", vocab}}}};
}

}  // namespace edgewise::tokenizers
