#include "client/cli/split_text.h"

#include <algorithm>

namespace edgewise::cli {
namespace {

// The end of the first piece of `text`, which has at most `bytes`.
size_t EndOfPiece(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text.size();
  const size_t earliest = bytes - bytes / 4;
  for (const std::string_view separators : {std::string_view("\n"), std::string_view(" \t\n")}) {
    const size_t found = text.find_last_of(separators, bytes - 1);
    if (found != std::string_view::npos && found + 1 >= earliest) return found + 1;
  }
  size_t end = bytes;
  while (end > 1 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return end;
}

}  // namespace

std::vector<std::string_view> SplitText(std::string_view text, size_t bytes) {
  std::vector<std::string_view> pieces;
  bytes = std::max<size_t>(bytes, 4);
  while (!text.empty()) {
    // Alike in size: a short last piece would have little context, and an edge budget may be too small for it.
    const size_t left = (text.size() + bytes - 1) / bytes;
    const size_t end = EndOfPiece(text, std::max<size_t>((text.size() + left - 1) / left, 4));
    pieces.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return pieces;
}

}  // namespace edgewise::cli
