#include "model/tokenizers/text_stream.h"

#include <utility>

#include "model/tokenizers/decoders.h"
#include "model/tokenizers/hf_tokenizer.h"

namespace edgewise {

TextStream::TextStream(const HfTokenizer& tokenizer, const tokenizers::Decoder& decoder, bool skip_special)
    : tokenizer_(tokenizer),
      skip_special_(skip_special),
      text_(std::make_unique<std::string>()),
      chain_(decoder.Start(text_.get(), tokenizers::ByteRuns::kEager)) {}

TextStream::TextStream(TextStream&&) noexcept = default;
TextStream::~TextStream() = default;

std::string TextStream::Push(int32_t id) {
  const std::string* token = tokenizer_.Token(id);
  if (token != nullptr && !(skip_special_ && tokenizer_.IsSpecial(id))) chain_->Take(*token, true);
  return std::exchange(*text_, "");
}

std::string TextStream::Finish() {
  chain_->End();
  return std::exchange(*text_, "");
}

}  // namespace edgewise
