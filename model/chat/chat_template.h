// The chat template of a Hugging Face folder: what was said becomes a prompt, as transformers' apply_chat_template
// makes it. docs/tokenizers.md lists the part of Jinja that is served.
#ifndef EDGEWISE_MODEL_CHAT_CHAT_TEMPLATE_H_
#define EDGEWISE_MODEL_CHAT_CHAT_TEMPLATE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "model/chat/parser.h"
#include "model/input/work_bounds.h"

namespace edgewise::chat {

struct Message {
  std::string role, content;  // UTF-8
};

// NOT_FOUND: where a model has no template.
absl::Status NoTemplate();

// Immutable; may be used from any thread.
class ChatTemplate {
 public:
  // `source` is UTF-8; `tokens` are the texts of special tokens by the names that templates know: bos_token, ...
  // INVALID_ARGUMENT: what is not served or not well formed, with its line; more than kMaxSource bytes.
  static absl::StatusOr<ChatTemplate> Read(const std::string& source, std::map<std::string, std::string> tokens);

  // The prompt, after which the next message is written (add_generation_prompt); `now` is what strftime_now tells, in
  // the time zone of whoever asks. INVALID_ARGUMENT: the template refuses the messages (raise_exception: its words), or
  // they make it compute what has no meaning; it takes more than kMaxWork, or makes a text of more than kMaxText. Time
  // and memory are bounded so, whatever template and messages are. What `bounds` say ends it as it is; what is held is
  // reserved from them.
  absl::StatusOr<std::string> Render(const std::vector<Message>& messages, absl::CivilSecond now,
                                     WorkBounds& bounds = NoBounds()) const;

  static constexpr size_t kMaxSource = size_t{128} << 10;  // bytes of a template
  // Steps; 64 bytes of text, or an entry of a list, that a step reads or makes are one more.
  static constexpr int64_t kMaxWork = 1 << 22;

 private:
  ChatTemplate() = default;

  std::vector<Statement> statements_;
  std::map<std::string, std::string> tokens_;
};

}  // namespace edgewise::chat

#endif  // EDGEWISE_MODEL_CHAT_CHAT_TEMPLATE_H_
