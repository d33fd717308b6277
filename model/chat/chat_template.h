// The chat template of a Hugging Face folder: what was said becomes a prompt, as transformers' apply_chat_template
// makes it. docs/tokenizers.md lists the part of Jinja that is served.
#ifndef EDGEWISE_MODEL_CHAT_CHAT_TEMPLATE_H_
#define EDGEWISE_MODEL_CHAT_CHAT_TEMPLATE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "base/work_bounds.h"
#include "model/chat/arguments.h"
#include "model/chat/names.h"
#include "model/chat/parser.h"

namespace edgewise::chat {

struct Message {
  std::string role, content;  // UTF-8
};

// NOT_FOUND: where a model has no template.
absl::Status NoTemplate();

// Immutable; may be used from any thread.
class ChatTemplate {
 public:
  // `source` is UTF-8; `tool_use`, where there is one, is the template for requests with tools, which may be one that
  // is not served: then these are refused. INVALID_ARGUMENT: what is not served or not well formed, with its line; more
  // than kMaxSource bytes; CheckTokens.
  static absl::StatusOr<ChatTemplate> Read(const std::string& source, Tokens tokens,
                                           const std::optional<std::string>& tool_use = std::nullopt);

  // The prompt, after which the next message is written (add_generation_prompt). `now`: the time that strftime_now
  // gives, in the caller's time zone. INVALID_ARGUMENT: the template refuses the messages (raise_exception: its words),
  // or they make it compute something that has no meaning; it takes more than kMaxWork, or makes a text of more than
  // kMaxText; or CheckArguments or a tool_use that is not served, the errors with a field. So time and memory are
  // bounded, whatever template, messages and arguments are. A status of `bounds` ends it as it is; memory is reserved
  // from them.
  absl::StatusOr<std::string> Render(const std::vector<Message>& messages, absl::CivilSecond now,
                                     WorkBounds& bounds = NoBounds(), const Arguments& arguments = Arguments()) const;

  static constexpr size_t kMaxSource = size_t{128} << 10;  // bytes of a template
  // Steps; 64 bytes of text, or an entry of a list, that a step reads or makes are one more.
  static constexpr int64_t kMaxWork = 1 << 22;

 private:
  ChatTemplate() = default;

  std::vector<Statement> statements_;
  std::optional<absl::StatusOr<std::vector<Statement>>> tool_use_;
  Tokens tokens_;
};

}  // namespace edgewise::chat

#endif  // EDGEWISE_MODEL_CHAT_CHAT_TEMPLATE_H_
