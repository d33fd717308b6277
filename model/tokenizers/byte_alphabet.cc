#include "model/tokenizers/byte_alphabet.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"

namespace edgewise::tokenizers {
namespace {

constexpr char32_t kFirstShifted = 0x100;

// Bytes that are printable characters of Latin-1 stand for themselves; the others are counted from U+0100.
constexpr bool Printable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<char32_t, 256> characters{};
  std::array<int, 0x200> bytes{};
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int& byte : alphabet.bytes) byte = -1;
  char32_t next = kFirstShifted;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t c = Printable(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.characters[byte] = c;
    alphabet.bytes[c] = byte;
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

absl::StatusOr<bool> ChangePiece(AlignedText& piece) {
  const std::string& text = piece.text();
  if (std::all_of(text.begin(), text.end(), [](char c) { return c >= '!' && c <= '~'; })) return false;
  std::vector<Change> changes;
  changes.reserve(text.size());
  for (const char c : text) changes.push_back({ByteCharacter(static_cast<uint8_t>(c)), ContinuesCharacter(c)});
  piece.Transform(changes);
  return true;
}

}  // namespace

char32_t ByteCharacter(uint8_t byte) { return kAlphabet.characters[byte]; }

int ByteOf(char32_t c) { return c < kAlphabet.bytes.size() ? kAlphabet.bytes[c] : -1; }

absl::Status ToByteAlphabet(AlignedText& text, Work& work) {
  const auto anywhere = [](char32_t, char32_t) { return true; };
  return ChangeInPieces(text, work, anywhere, ChangePiece);
}

}  // namespace edgewise::tokenizers
