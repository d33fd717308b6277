// The names that chat templates and requests use beside those that a template binds itself.
#ifndef EDGEWISE_MODEL_CHAT_NAMES_H_
#define EDGEWISE_MODEL_CHAT_NAMES_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/chat/arguments.h"
#include "model/chat/parser.h"

namespace edgewise::chat {

// Texts of special tokens by the names that templates know: bos_token, image_token, ... Nothing: the folder says that
// there is no such token, so the name is undefined in the template.
using Tokens = std::map<std::string, std::optional<std::string>>;

// INVALID_ARGUMENT: the template uses a name that ends with _token and that neither it binds nor `tokens` have, and
// never asks whether it is defined (by a test, or by default).
absl::Status CheckTokens(const std::vector<Statement>& statements, const Tokens& tokens);

// INVALID_ARGUMENT, of the field template_arguments: one has a name that means something else in a template.
absl::Status CheckArguments(const Arguments& arguments, const Tokens& tokens);

}  // namespace edgewise::chat

#endif  // EDGEWISE_MODEL_CHAT_NAMES_H_
