// Operations of chat templates on texts, as Python's str has them. All texts are UTF-8; each function takes time at
// most in proportion to their lengths.
#ifndef EDGEWISE_MODEL_CHAT_TEXTS_H_
#define EDGEWISE_MODEL_CHAT_TEXTS_H_

#include <string>
#include <string_view>
#include <vector>

namespace edgewise::chat {

// The characters of a text, as views of it.
std::vector<std::string_view> CharactersOf(std::string_view text);

// The first place of `part` in `text` from `from` on; npos: there is none.
size_t FindText(std::string_view text, std::string_view part, size_t from = 0);

// The text without the characters at its ends that are in `set`; null: without white space.
std::string_view Strip(std::string_view text, const std::string* set, bool left, bool right);

// `separator` is not empty.
std::vector<std::string> Split(std::string_view text, std::string_view separator);

// Every `part`, which is not empty, replaced. It stops soon after `most` bytes.
std::string Replace(std::string_view text, std::string_view part, std::string_view by, size_t most);

// In another case by ICU; `name` is that of Python's method: upper, lower, capitalize.
std::string InCase(std::string_view name, const std::string& text);

}  // namespace edgewise::chat

#endif  // EDGEWISE_MODEL_CHAT_TEXTS_H_
