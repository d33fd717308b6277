// The tokens of a text, or of two.
#ifndef EDGEWISE_MODEL_TOKENIZERS_ENCODING_H_
#define EDGEWISE_MODEL_TOKENIZERS_ENCODING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/tokenizers/aligned_text.h"

namespace edgewise {

// All vectors have one element per token; where only ids are wanted, `offsets` and `words` are empty.
struct Encoding {
  std::vector<int32_t> ids;
  std::vector<int32_t> type_ids;  // segments, as the template says: 0 or 1 in BERT, all 0 in RoBERTa
  // Bytes [begin, end) of the UTF-8 text as it was given (the first or the second one), at the beginnings and ends of
  // characters. Tokens that are parts of one character all have the whole character. [0, 0) of the template's tokens.
  std::vector<tokenizers::Span> offsets;
  std::vector<int8_t> sequences;  // 0: the first text; 1: the second; -1: a special token of the template
  // Which word of its text the token is a part of, as the pre-tokenizer cuts it, counted from 0; -1 of the template's
  // tokens.
  std::vector<int32_t> words;
  size_t truncated = 0;   // tokens of the texts that were cut off
  bool too_long = false;  // there are more tokens than EncodeOptions allow; then it holds none

  size_t size() const { return ids.size(); }
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_TOKENIZERS_ENCODING_H_
