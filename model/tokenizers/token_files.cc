#include "model/tokenizers/token_files.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/json_object.h"
#include "base/json_text.h"
#include "base/status_macros.h"

namespace edgewise::tokenizers {
namespace {

using nlohmann::json;

constexpr const char* kRoles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};
constexpr char kConfig[] = "tokenizer_config.json", kMap[] = "special_tokens_map.json", kAdded[] = "added_tokens.json";
constexpr char kDecoder[] = "added_tokens_decoder", kExtra[] = "extra_special_tokens",
               kAdditional[] = "additional_special_tokens";

absl::Status Wrong(const char* file, const std::string& field, const json& found, const std::string& expected) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", field, " is ", ShowJson(found), "; ", expected));
}

absl::StatusOr<json> ReadObject(const char* file, const std::string& text) {
  if (text.empty()) return json::object();
  const absl::StatusOr<json> read = ParsePythonJson(text);
  if (!read.ok()) return absl::InvalidArgumentError(absl::StrCat(file, ": ", std::string(read.status().message())));
  if (!read->is_object()) return Wrong(file, "the file", *read, "an object is expected");
  return *read;
}

// The text of a token: a string, or an object with "content".
const json* TextOf(const json& token) {
  const json* text = &token;
  if (token.is_object()) {
    const auto content = token.find("content");
    text = content == token.end() ? nullptr : &*content;
  }
  return text != nullptr && text->is_string() ? text : nullptr;
}

// `special`: where the token does not say it itself.
json EntryOf(const json& token, bool special) {
  const auto field = [&](const char* name, bool fallback) {
    return token.is_object() && token.contains(name) ? token[name] : json(fallback);
  };
  const json is_special = field("special", special);
  return {{"content", *TextOf(token)},
          {"single_word", field("single_word", false)},
          {"lstrip", field("lstrip", false)},
          {"rstrip", field("rstrip", false)},
          {"normalized", field("normalized", is_special != json(true))},
          {"special", is_special}};
}

// The token of a role, a name of its own, or null.
absl::Status Name(const char* file, const std::string& name, const json& token, std::map<std::string, json>& named) {
  if (!token.is_null() && TextOf(token) == nullptr) return Wrong(file, name, token, "a token is expected");
  named[name] = token;
  return absl::OkStatus();
}

// Reads the fields of both files: the roles, other fields that end with _token, and the extra tokens, which have names
// or not.
class Joiner {
 public:
  absl::Status Take(const char* file, const json& fields) {
    for (const auto& [name, token] : fields.items()) {
      const bool role =
          std::any_of(std::begin(kRoles), std::end(kRoles), [&field = name](const char* one) { return field == one; });
      if (role) RETURN_IF_ERROR(Name(file, name, token, roles));
      // Others may be switches, such as add_bos_token. Those of tokenizer_config.json, which is taken first, stay.
      if (!role && absl::EndsWith(name, "_token") && TextOf(token) != nullptr && !own.contains(name)) {
        RETURN_IF_ERROR(Name(file, name, token, own));
      }
    }
    // The older name counts where nothing has the newer one.
    const auto newer = fields.find(kExtra);
    const bool older = extra.empty() && (newer == fields.end() || newer->is_null() || newer->empty());
    const auto list = older && fields.contains(kAdditional) ? fields.find(kAdditional) : newer;
    if (list == fields.end() || list->is_null()) return absl::OkStatus();
    if (!list->is_structured()) return Wrong(file, list.key(), *list, "a list of tokens, or an object, is expected");
    for (const auto& [name, token] : list->items()) {
      if (TextOf(token) == nullptr)
        return Wrong(file, absl::StrCat(list.key(), "[", name, "]"), token, "a token is expected");
      if (list->is_object()) RETURN_IF_ERROR(Name(file, name, token, own));
      if (list->is_array()) extra.push_back(token);
    }
    return absl::OkStatus();
  }

  std::map<std::string, json> roles, own;
  std::vector<json> extra;
};

// Tokens under their ids, in the order of these.
absl::StatusOr<std::vector<json>> ById(const json& decoder) {
  if (!decoder.is_object()) return Wrong(kConfig, kDecoder, decoder, "an object is expected");
  std::map<int32_t, json> tokens;
  for (const auto& [key, token] : decoder.items()) {
    int32_t id = -1;
    if (!token.is_object() || TextOf(token) == nullptr || !absl::SimpleAtoi(key, &id)) {
      return Wrong(kConfig, absl::StrCat(kDecoder, "[", ShowJson(json(key)), "]"), token,
                   "a token under its id is expected");
    }
    tokens[id] = token;
  }
  std::vector<json> list;
  for (auto& [id, token] : tokens) list.push_back(std::move(token));
  return list;
}

// The tokens of added_tokens.json in the order of their ids; those in `special` are special.
absl::StatusOr<std::vector<json>> FromAdded(const json& ids, const std::set<json>& special) {
  std::multimap<int64_t, json> tokens;
  for (const auto& [token, id] : ids.items()) {
    if (!IsInteger(id, 0, INT32_MAX)) return Wrong(kAdded, ShowJson(json(token)), id, "an id is expected");
    tokens.emplace(id.get<int64_t>(), json{{"content", token}, {"special", special.contains(json(token))}});
  }
  std::vector<json> list;
  for (auto& [id, token] : tokens) list.push_back(std::move(token));
  return list;
}

}  // namespace

absl::StatusOr<GivenTokens> ReadTokenFiles(const TokenFiles& files,
                                           const std::map<std::string, std::string>& defaults) {
  GivenTokens given;
  ASSIGN_OR_RETURN(given.config, ReadObject(kConfig, files.tokenizer_config));
  Joiner joiner;
  RETURN_IF_ERROR(joiner.Take(kConfig, given.config));
  const auto decoder = given.config.find(kDecoder);
  std::vector<json> added;
  if (decoder != given.config.end()) {
    ASSIGN_OR_RETURN(added, ById(*decoder));
  } else {
    ASSIGN_OR_RETURN(const json map, ReadObject(kMap, files.special_tokens_map));
    RETURN_IF_ERROR(joiner.Take(kMap, map));
    ASSIGN_OR_RETURN(const json ids, ReadObject(kAdded, files.added_tokens));
    std::set<json> special;
    for (const auto& [name, token] : joiner.roles) {
      if (!token.is_null()) special.insert(*TextOf(token));
    }
    for (const json& token : joiner.extra) special.insert(*TextOf(token));
    ASSIGN_OR_RETURN(added, FromAdded(ids, special));
  }
  for (const auto* names : {&joiner.own, &joiner.roles}) {
    for (const auto& [name, token] : *names) given.named[name] = token.is_null() ? token : *TextOf(token);
  }
  for (const json& token : added) {
    given.tokens.push_back({EntryOf(token, false), false});
    json& entry = given.tokens.back().entry;
    for (const auto& [name, text] : given.named) {
      if (text == entry["content"]) entry["special"] = true;
    }
  }
  for (const char* role : kRoles) {
    if (role == std::string("pad_token")) given.before_pad = given.tokens.size();
    const auto token = joiner.roles.find(role);
    const auto otherwise = defaults.find(role);
    if (token != joiner.roles.end() && !token->second.is_null()) {
      given.tokens.push_back({EntryOf(token->second, true), false});
    } else if (token == joiner.roles.end() && otherwise != defaults.end()) {
      given.tokens.push_back({EntryOf(json(otherwise->second), true), false});
    }
  }
  for (const auto& [name, token] : joiner.own) given.tokens.push_back({EntryOf(token, true), true});
  for (const json& token : joiner.extra) given.tokens.push_back({EntryOf(token, true), false});
  return given;
}

json TakePad(const json& tokenizer_json, GivenTokens& given) {
  const json padding = tokenizer_json.is_object() ? tokenizer_json.value("padding", json()) : json();
  const json pad = padding.is_object() ? padding.value("pad_token", json()) : json();
  if (!pad.is_string() || given.named.contains("pad_token")) return json();
  given.tokens.insert(given.tokens.begin() + static_cast<int64_t>(given.before_pad), {EntryOf(pad, true), false});
  return pad;
}

absl::StatusOr<std::vector<json>> LackingTokens(const json& list, const GivenTokens& given,
                                                const Vocabulary& vocabulary) {
  std::vector<json> lacking;
  if (!list.is_array() && !list.is_null()) return lacking;
  std::set<std::string> known;
  auto next = static_cast<int32_t>(vocabulary.size());
  for (const json& entry : list) {
    const json* text = entry.is_object() ? TextOf(entry) : nullptr;
    if (text == nullptr) return lacking;
    const auto content = text->get<std::string>();
    if (!content.empty() && known.insert(content).second && vocabulary.Id(content) < 0) ++next;
  }
  const json* own = nullptr;  // the one with a name of its own that got an id here
  for (const GivenToken& token : given.tokens) {
    const auto content = token.entry["content"].get<std::string>();
    if (content.empty() || !known.insert(content).second) continue;
    int32_t id = vocabulary.Id(content);
    if (id < 0) {
      if (token.own_name && own != nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(
            "added_tokens lacks ", ShowJson(*own), " and ", ShowJson(token.entry["content"]),
            ", which tokenizer_config.json names; which id each has is not known: save the tokenizer again, with "
            "save_pretrained"));
      }
      if (token.own_name) own = &token.entry["content"];
      id = next++;
    }
    json entry = token.entry;
    entry["id"] = id;
    lacking.push_back(std::move(entry));
  }
  return lacking;
}

}  // namespace edgewise::tokenizers
