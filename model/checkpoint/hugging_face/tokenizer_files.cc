#include "model/checkpoint/hugging_face/tokenizer_files.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json_object.h"
#include "base/json_text.h"
#include "base/status_macros.h"

namespace edgewise::hugging_face {
namespace {

constexpr uint64_t kMaxBytes = 256 << 20;

// NOT_FOUND: there is no such file.
absl::StatusOr<std::string> ReadText(ModelFolder& files, const char* file) {
  absl::StatusOr<std::string> text = files.Read(file, kMaxBytes);
  if (text.ok() && text->empty()) return absl::InvalidArgumentError(absl::StrCat(file, ": is empty"));
  if (text.ok() || absl::IsNotFound(text.status())) return text;
  return absl::Status(text.status().code(), absl::StrCat(file, ": ", std::string(text.status().message())));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const HfTokenizer>> ReadTokenizer(ModelFolder& files, bool lower_case) {
  const absl::StatusOr<std::string> file = ReadText(files, "tokenizer.json");
  if (!file.ok() && !absl::IsNotFound(file.status())) return file.status();
  const absl::StatusOr<std::string> vocabulary = file.ok() ? file : ReadText(files, "vocab.txt");
  if (absl::IsNotFound(vocabulary.status())) return nullptr;
  RETURN_IF_ERROR(vocabulary.status());
  TokenFiles others;
  for (const auto& [name, text] : {std::pair("tokenizer_config.json", &others.tokenizer_config),
                                   std::pair("special_tokens_map.json", &others.special_tokens_map),
                                   std::pair("added_tokens.json", &others.added_tokens)}) {
    absl::StatusOr<std::string> found = ReadText(files, name);
    if (absl::IsNotFound(found.status())) continue;
    RETURN_IF_ERROR(found.status());
    *text = *std::move(found);
  }
  if (file.ok()) return HfTokenizer::Read(*file, others, lower_case);
  return HfTokenizer::ReadVocabTxt(*vocabulary, others, lower_case);
}

std::string UnreadTokenizer(ModelFolder& files) {
  std::string found;
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer.model", "sentencepiece.bpe.model", "spiece.model",
                           "spm.model", "tiktoken.model", "tekken.json"}) {
    if (files.Has(name)) absl::StrAppend(&found, found.empty() ? "" : ", ", name);
  }
  if (found.empty()) return found;
  return absl::StrCat("texts are read by tokenizer.json, which the folder lacks (it has ", found,
                      "); AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers writes it");
}

absl::StatusOr<bool> GivesTypes(ModelFolder& files) {
  const absl::StatusOr<std::string> text = ReadText(files, "tokenizer_config.json");
  if (absl::IsNotFound(text.status())) return true;
  RETURN_IF_ERROR(text.status());
  const absl::StatusOr<nlohmann::json> config = ParsePythonJson(*text);
  if (!config.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer_config.json: ", std::string(config.status().message())));
  }
  const auto names = config->is_object() ? config->find("model_input_names") : config->end();
  if (names == config->end() || names->is_null()) return true;
  bool gives = false, strings = names->is_array();
  for (const nlohmann::json& name : *names) {
    strings = strings && name.is_string();
    gives = gives || name == "token_type_ids";
  }
  if (strings) return gives;
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer_config.json: model_input_names is ", ShowJson(*names), "; a list of names is expected"));
}

absl::Status CheckTokenizer(const HfTokenizer& tokenizer, const nlohmann::json& config, const ModelConfig& model) {
  if (tokenizer.template_tokens() >= static_cast<size_t>(model.max_position_embeddings)) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: post_processor: its template adds ",
                                                   tokenizer.template_tokens(), " tokens; the model takes ",
                                                   model.max_position_embeddings, ", so there is no room for a text"));
  }
  const SpecialTokens& special = tokenizer.special_tokens();
  const int32_t most = tokenizer.most_template_id();
  if (most >= model.vocab_size) {
    const std::string* token = tokenizer.Token(most);
    return absl::InvalidArgumentError(absl::StrCat(
        "tokenizer: post_processor: the id of ", token == nullptr ? "a token" : ShowJson(nlohmann::json(*token)),
        " is ", most, "; in config.json vocab_size is ", model.vocab_size, ", so ids end at ", model.vocab_size - 1,
        ", and every text would have it; resize the model's embeddings (resize_token_embeddings) or save the tokenizer "
        "that it was trained with"));
  }
  const int32_t type = tokenizer.most_template_type();
  if (model.text_types && model.token_types > 0 && type > 0 && type >= model.token_types) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer: post_processor: a text gets tokens of type ", type,
                                                   "; in config.json type_vocab_size is ", model.token_types,
                                                   ", so types end at ", model.token_types - 1,
                                                   "; save the tokenizer that the model was trained with"));
  }
  const auto same = [&](const char* role, int32_t id, int32_t in_config) {
    if (id < 0 || in_config < 0 || id == in_config) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("tokenizer_config.json: ", role, "_token is ", *tokenizer.Token(id),
                                                   ", whose id is ", id, "; in config.json ", role, "_token_id is ",
                                                   in_config));
  };
  const auto in_config = [&](const char* field) {
    const auto found = config.find(field);
    return found != config.end() && IsInteger(*found, 0, kMaxIds) ? found->get<int32_t>() : -1;
  };
  RETURN_IF_ERROR(same("pad", special.pad, model.pad_token_id));
  RETURN_IF_ERROR(same("mask", special.mask, in_config("mask_token_id")));
  return same("cls", special.cls, in_config("cls_token_id"));
}

absl::StatusOr<chat::ChatTemplate> ReadChatTemplate(ModelFolder& files, const HfTokenizer& tokenizer) {
  std::string place = "chat_template.jinja";
  absl::StatusOr<std::string> source = ReadText(files, place.c_str());
  std::optional<std::string> tool_use;
  if (source.ok()) {
    absl::StatusOr<std::string> more = ReadText(files, "additional_chat_templates/tool_use.jinja");
    if (!absl::IsNotFound(more.status())) {
      RETURN_IF_ERROR(more.status());
      tool_use = *std::move(more);
    }
  } else if (absl::IsNotFound(source.status())) {
    place = "tokenizer_config.json: chat_template";
    const absl::StatusOr<std::string> text = ReadText(files, "tokenizer_config.json");
    if (absl::IsNotFound(text.status())) return chat::NoTemplate();
    RETURN_IF_ERROR(text.status());
    const absl::StatusOr<nlohmann::json> config = ParsePythonJson(*text);
    if (!config.ok() || !config->is_object())
      return absl::InvalidArgumentError("tokenizer_config.json: no JSON object");
    nlohmann::json found = config->value("chat_template", nlohmann::json());
    if (found.is_null()) return chat::NoTemplate();
    if (found.is_array()) {
      nlohmann::json named = nlohmann::json::object();
      for (const nlohmann::json& one : found) {
        const bool whole =
            one.is_object() && one.contains("template") && one.contains("name") && one["name"].is_string();
        if (whole) named[one["name"].get<std::string>()] = one["template"];
      }
      found = std::move(named);
    }
    if (found.is_object()) {
      const nlohmann::json for_tools = found.value("tool_use", nlohmann::json());
      if (for_tools.is_string()) tool_use = for_tools.get<std::string>();
      found = nlohmann::json(found.value("default", nlohmann::json()));
    }
    if (!found.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, " is neither a text nor a list of templates with one named \"default\""));
    }
    source = found.get<std::string>();
  }
  RETURN_IF_ERROR(source.status());
  absl::StatusOr<chat::ChatTemplate> read =
      chat::ChatTemplate::Read(*source, tokenizer.special_tokens().named, tool_use);
  if (read.ok()) return *std::move(read);
  return absl::InvalidArgumentError(absl::StrCat(place, ": ", std::string(read.status().message())));
}

absl::StatusOr<int32_t> MaskTokenOf(const HfTokenizer* tokenizer, const Family& family, const std::string& unread) {
  const std::string token(family.mask_token);
  if (tokenizer == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("neither tokenizer.json nor vocab.txt is in the folder; fill-mask "
                     "needs the id of the mask token ",
                     token, ": ", unread.empty() ? "save the tokenizer into the folder too" : unread));
  }
  if (tokenizer->special_tokens().mask >= 0) return tokenizer->special_tokens().mask;
  const int32_t id = tokenizer->Id(token);
  if (id >= 0) return id;
  return absl::InvalidArgumentError(absl::StrCat(
      "the tokenizer has no mask token, which fill-mask needs: tokenizer_config.json has no mask_token, and "
      "no token is ",
      token));
}

}  // namespace edgewise::hugging_face
