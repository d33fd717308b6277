#include "model/tokenizers/special_tokens.h"

#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "model/checkpoint/json_object.h"
#include "text/status_macros.h"

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

// The token of a field that is a string or an object with "content"; empty where it is null or absent.
absl::StatusOr<std::string> TokenOf(const json& config, const std::string& field) {
  const auto found = config.find(field);
  if (found == config.end() || found->is_null()) return std::string();
  const json& token = found->is_object() && found->contains("content") ? (*found)["content"] : *found;
  if (!token.is_string()) return Wrong(field, *found, "a token is expected");
  return token.get<std::string>();
}

absl::StatusOr<bool> BooleanOf(const json& config, const std::string& field, bool fallback) {
  const auto found = config.find(field);
  if (found == config.end() || found->is_null()) return fallback;
  if (!found->is_boolean()) return Wrong(field, *found, "allowed: true, false");
  return found->get<bool>();
}

absl::Status CheckAddedTokens(const json& config, const std::function<int32_t(const std::string&)>& id_of) {
  const auto list = config.find("added_tokens_decoder");
  if (list == config.end()) return absl::OkStatus();
  if (!list->is_object()) return Wrong("added_tokens_decoder", *list, "an object is expected");
  for (const auto& [key, token] : list->items()) {
    const std::string path = absl::StrCat("added_tokens_decoder[", ShowJson(json(key)), "]");
    int32_t id = -1;
    if (!token.is_object() || !token.contains("content") || !token["content"].is_string() ||
        !absl::SimpleAtoi(key, &id)) {
      return Wrong(path, token, "a token under its id is expected");
    }
    const int32_t known = id_of(token["content"].get<std::string>());
    if (known == id) continue;
    return Wrong(path, token["content"],
                 known < 0 ? "tokenizer.json has no such token" : absl::StrCat("in tokenizer.json its id is ", known));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SpecialTokens> ReadSpecialTokens(const json& config,
                                                const std::function<int32_t(const std::string&)>& id_of) {
  SpecialTokens tokens;
  if (!config.is_object()) return Wrong("the file", config, "an object is expected");
  for (const Role& role : kRoles) {
    ASSIGN_OR_RETURN(const std::string token, TokenOf(config, role.field));
    if (token.empty()) continue;
    tokens.*role.id = id_of(token);
    if (tokens.*role.id < 0) return Wrong(role.field, json(token), "the tokenizer has no such token");
  }
  RETURN_IF_ERROR(CheckAddedTokens(config, id_of));
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

absl::StatusOr<json> BertTokenizerJson(const std::string& vocab_txt, const json& config) {
  if (!config.is_object()) return Wrong("the file", config, "an object is expected");
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
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string line(absl::StripSuffix(lines[i], "\r"));
    if (vocab.contains(line)) {
      return absl::InvalidArgumentError(
          absl::StrCat("vocab.txt: line ", i + 1, " is ", ShowJson(json(line)), " again; every token has one line"));
    }
    vocab[line] = i;
  }
  json special = json::object(), added = json::array();
  std::array<std::string, 2> frame;  // cls, sep
  std::string unknown;
  constexpr std::pair<const char*, const char*> kDefaults[] = {{"unk_token", "[UNK]"},
                                                               {"sep_token", "[SEP]"},
                                                               {"pad_token", "[PAD]"},
                                                               {"cls_token", "[CLS]"},
                                                               {"mask_token", "[MASK]"}};
  for (const auto& [field, fallback] : kDefaults) {
    ASSIGN_OR_RETURN(std::string token, TokenOf(config, field));
    if (token.empty()) token = fallback;
    if (!vocab.contains(token)) return Wrong(field, json(token), "vocab.txt has no such line");
    const json id = vocab[token];
    added.push_back({{"id", id},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    if (field == std::string("unk_token")) unknown = token;
    const int place = field == std::string("cls_token") ? 0 : field == std::string("sep_token") ? 1 : -1;
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
