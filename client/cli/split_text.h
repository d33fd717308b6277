// Splits a long text into pieces, each of which is a request.
#ifndef EDGEWISE_CLIENT_CLI_SPLIT_TEXT_H_
#define EDGEWISE_CLIENT_CLI_SPLIT_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace edgewise::cli {

// Pieces of at most `bytes` (>= 4), whose concatenation is `text`. They end after a line or a word where the last
// quarter of a piece has one, and never inside a UTF-8 character.
std::vector<std::string_view> SplitText(std::string_view text, size_t bytes);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_SPLIT_TEXT_H_
