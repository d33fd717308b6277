// Decoders of tokens that stand for bytes.
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/utf8.h"
#include "model/tokenizers/byte_alphabet.h"
#include "model/tokenizers/decoders.h"

namespace edgewise::tokenizers {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// All tokens are one text of bytes; what is not UTF-8 becomes U+FFFD.
class ByteLevelStage : public TextStage {
 public:
  ByteLevelStage(std::unique_ptr<TextStage> next, ByteRuns runs) : next_(std::move(next)), runs_(runs) {}

  void Take(std::string_view token, bool) override {
    std::string bytes;
    bool known = true;
    for (size_t at = 0; at < token.size() && known;) {
      const Character character = CharacterAt(token, at);
      const int byte = ByteOf(character.code);
      known = byte >= 0;
      bytes += static_cast<char>(byte);
      at += character.bytes;
    }
    pending_ += known ? bytes : token;
    if (runs_ == ByteRuns::kRaw) return next_->Take(std::exchange(pending_, ""), true);
    HandOn(false);
  }

  void End() override {
    HandOn(true);
    next_->End();
  }

 private:
  void HandOn(bool all) {
    std::string text;
    size_t at = 0;
    while (at < pending_.size()) {
      const std::string_view rest = std::string_view(pending_).substr(at);
      const Prefix prefix = FirstCharacter(rest);
      if (prefix.kind == Prefix::Kind::kUnfinished && !all) break;
      text += prefix.kind == Prefix::Kind::kWhole ? rest.substr(0, prefix.bytes) : kReplacement;
      at += prefix.bytes;
    }
    pending_.erase(0, at);
    if (text.empty()) return;
    next_->Take(text, begins_);
    begins_ = false;
  }

  const std::unique_ptr<TextStage> next_;
  const ByteRuns runs_;
  std::string pending_;
  bool begins_ = true;
};

// The byte of a token <0xNN>.
std::optional<char> NamedByte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int byte = 0;
  for (const char digit : token.substr(3, 2)) {
    if (!absl::ascii_isxdigit(digit)) return std::nullopt;
    byte = byte * 16 + (absl::ascii_isdigit(digit) ? digit - '0' : absl::ascii_tolower(digit) - 'a' + 10);
  }
  return static_cast<char>(byte);
}

// A run of tokens <0xNN> is one token of their bytes; where they are not UTF-8, as many U+FFFD.
class ByteFallbackStage : public TextStage {
 public:
  ByteFallbackStage(std::unique_ptr<TextStage> next, ByteRuns runs) : next_(std::move(next)), runs_(runs) {}

  void Take(std::string_view token, bool begins) override {
    const std::optional<char> byte = NamedByte(token);
    if (byte && runs_ == ByteRuns::kRaw) return next_->Take(std::string_view(&*byte, 1), true);
    if (byte) {
      pending_ += *byte;
      if (runs_ == ByteRuns::kEager) HandOnWhole();
      return;
    }
    EndRun();
    next_->Take(token, begins);
  }

  void End() override {
    EndRun();
    next_->End();
  }

 private:
  void EndRun() {
    if (runs_ == ByteRuns::kWhole && FirstInvalidByte(pending_) == pending_.size()) {
      if (!pending_.empty()) next_->Take(pending_, true);
    } else {
      for (size_t i = 0; i < pending_.size(); ++i) next_->Take(kReplacement, true);
    }
    pending_.clear();
    begins_ = true;
  }

  void HandOnWhole() {
    while (!pending_.empty()) {
      const Prefix prefix = FirstCharacter(pending_);
      if (prefix.kind == Prefix::Kind::kUnfinished) return;
      const bool whole = prefix.kind == Prefix::Kind::kWhole;
      for (size_t i = 0; i < (whole ? 1 : prefix.bytes); ++i) {
        next_->Take(whole ? std::string_view(pending_).substr(0, prefix.bytes) : kReplacement, begins_ || !whole);
      }
      begins_ = !whole;
      pending_.erase(0, prefix.bytes);
    }
  }

  const std::unique_ptr<TextStage> next_;
  const ByteRuns runs_;
  std::string pending_;
  bool begins_ = true;  // whether the next character begins a token
};

class ByteLevelStep : public DecoderStep {
 public:
  std::unique_ptr<TextStage> Start(std::unique_ptr<TextStage> next, ByteRuns runs) const override {
    return std::make_unique<ByteLevelStage>(std::move(next), runs);
  }
};

class ByteFallbackStep : public DecoderStep {
 public:
  std::unique_ptr<TextStage> Start(std::unique_ptr<TextStage> next, ByteRuns runs) const override {
    return std::make_unique<ByteFallbackStage>(std::move(next), runs);
  }
};

}  // namespace

std::unique_ptr<DecoderStep> MakeByteLevelStep() { return std::make_unique<ByteLevelStep>(); }
std::unique_ptr<DecoderStep> MakeByteFallbackStep() { return std::make_unique<ByteFallbackStep>(); }

}  // namespace edgewise::tokenizers
