// Generated tokens as text, as they come.
#ifndef EDGEWISE_MODEL_TOKENIZERS_TEXT_STREAM_H_
#define EDGEWISE_MODEL_TOKENIZERS_TEXT_STREAM_H_

#include <cstdint>
#include <memory>
#include <string>

namespace edgewise {

class HfTokenizer;
namespace tokenizers {
class Decoder;
class TextStage;
}  // namespace tokenizers

// One thread at a time. Made by HfTokenizer::Stream.
class TextStream {
 public:
  // The text that is certain with this token: whole characters of UTF-8; empty where the token only begins one, or
  // stands for none. All texts together are HfTokenizer::Decode of all ids, but that of bytes (<0x80>) that are no
  // UTF-8 each bad one becomes U+FFFD, and not their whole run.
  std::string Push(int32_t id);
  // The rest: U+FFFD for characters that were begun. Call nothing afterwards.
  std::string Finish();

  TextStream(TextStream&&) noexcept;
  ~TextStream();

 private:
  friend class HfTokenizer;
  TextStream(const HfTokenizer& tokenizer, const tokenizers::Decoder& decoder, bool skip_special);

  const HfTokenizer& tokenizer_;
  const bool skip_special_;
  std::unique_ptr<std::string> text_;  // what the chain has handed out and Push has not
  std::unique_ptr<tokenizers::TextStage> chain_;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_TOKENIZERS_TEXT_STREAM_H_
