#include "model/chat/names.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/field_error.h"
#include "model/chat/lexer.h"

namespace edgewise::chat {
namespace {

// Arguments of transformers' apply_chat_template, functions of a template, and words of Jinja; after them the special
// tokens that have a name everywhere.
constexpr const char* kReserved[] = {"messages",
                                     "add_generation_prompt",
                                     "continue_final_message",
                                     "conversation",
                                     "chat_template",
                                     "tokenize",
                                     "tokenizer_kwargs",
                                     "padding",
                                     "truncation",
                                     "max_length",
                                     "return_tensors",
                                     "return_dict",
                                     "return_assistant_tokens_mask",
                                     "sanitize_control_tokens",
                                     "raise_exception",
                                     "strftime_now",
                                     "range",
                                     "namespace",
                                     "dict",
                                     "lipsum",
                                     "cycler",
                                     "joiner",
                                     "loop",
                                     "self",
                                     "true",
                                     "false",
                                     "none",
                                     "True",
                                     "False",
                                     "None"};
constexpr const char* kTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                   "pad_token", "cls_token", "mask_token"};

struct Names {
  std::map<std::string, size_t> used;    // with the first line
  std::set<std::string> bound, checked;  // checked: the template asks whether it is defined
};

void Collect(const Node& node, size_t line, Names& names) {
  if (node.kind == Node::kName) names.used.try_emplace(node.name, line);
  const bool checks = node.kind == Node::kTest ? node.name == "defined" || node.name == "undefined"
                                               : node.kind == Node::kFilter && node.name == "default";
  if (checks && node.parts[0]->kind == Node::kName) names.checked.insert(node.parts[0]->name);
  for (const auto& part : node.parts) {
    if (part != nullptr) Collect(*part, line, names);
  }
  for (const auto& [name, part] : node.named) Collect(*part, line, names);
}

void Collect(const std::vector<Statement>& statements, Names& names) {
  for (const Statement& statement : statements) {
    for (const Node* node : {statement.value.get(), statement.condition.get()}) {
      if (node != nullptr) Collect(*node, statement.line, names);
    }
    if (!statement.attribute) names.bound.insert(statement.names.begin(), statement.names.end());
    Collect(statement.body, names);
    Collect(statement.otherwise, names);
  }
}

template <size_t count>
bool Has(const char* const (&list)[count], const std::string& name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

}  // namespace

absl::Status CheckTokens(const std::vector<Statement>& statements, const Tokens& tokens) {
  Names names;
  Collect(statements, names);
  for (const auto& [name, line] : names.used) {
    if (!absl::EndsWith(name, "_token") || tokens.contains(name) || names.bound.contains(name) ||
        names.checked.contains(name)) {
      continue;
    }
    return ErrorAt(line, absl::StrCat("it writes ", name,
                                      ", which no file of the folder gives; set it in tokenizer_config.json (to null "
                                      "where it stands for no text)"));
  }
  return absl::OkStatus();
}

absl::Status CheckArguments(const Arguments& arguments, const Tokens& tokens) {
  for (const auto& [name, value] : arguments.values()) {
    REFUSE_IF(Has(kReserved, name) || Has(kTokens, name) || tokens.contains(name),
              absl::StrCat("template_arguments.", name),
              "is a name that chat templates have already; reserved are the special tokens of the tokenizer and ",
              absl::StrJoin(kReserved, ", "));
  }
  return absl::OkStatus();
}

}  // namespace edgewise::chat
