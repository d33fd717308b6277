// Fuzz target of chat templates.
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/utf8.h"
#include "model/chat/chat_template.h"
#include "tests/fuzz/targets.h"

namespace edgewise::fuzz {

void FuzzChat(const std::string& bytes) {
  std::vector<std::string> parts = absl::StrSplit(bytes, '\0');
  const auto read = chat::ChatTemplate::Read(parts[0], {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  if (!read.ok()) return RequireReadable(std::string(read.status().message()));
  constexpr const char* kRoles[] = {"system", "user", "assistant", "tool"};
  const absl::CivilSecond kNow(2026, 2, 3, 4, 5, 6);
  std::vector<chat::Message> messages;
  chat::Arguments arguments;
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].empty() || FirstInvalidByte(parts[i]) < parts[i].size()) continue;  // no message has it
    if (parts[i][0] == '{') {
      absl::StatusOr<chat::Arguments> given = chat::Arguments::Read(parts[i]);
      if (!given.ok()) return RequireReadable(std::string(given.status().message()));
      arguments = *std::move(given);
      continue;
    }
    messages.push_back({kRoles[static_cast<uint8_t>(parts[i][0]) % 4], parts[i].substr(1)});
    if ((static_cast<uint8_t>(parts[i][0]) & 0x80) != 0) messages.pop_back();  // it began a character
  }
  const absl::StatusOr<std::string> prompt = read->Render(messages, kNow, NoBounds(), arguments);
  if (prompt.ok()) {
    RequireUtf8(*prompt);
    Require(prompt->size() <= chat::kMaxText, "a prompt is bounded");
  } else if (!prompt.status().message().empty()) {  // raise_exception('')
    RequireReadable(std::string(prompt.status().message()));
  }
  const absl::StatusOr<std::string> again = read->Render(messages, kNow, NoBounds(), arguments);
  Require(again.status() == prompt.status() && (!prompt.ok() || *again == *prompt), "a prompt is the same each time");
}

}  // namespace edgewise::fuzz
