// The tokenizer of a Hugging Face folder: what PyPI's `tokenizers` makes of tokenizer.json, id for id. A part or an
// option that is not served is refused when the file is read; nothing is approximated. docs/tokenizers.md lists what is
// served.
#ifndef EDGEWISE_MODEL_TOKENIZERS_HF_TOKENIZER_H_
#define EDGEWISE_MODEL_TOKENIZERS_HF_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/work_bounds.h"
#include "model/tokenizers/encoding.h"
#include "model/tokenizers/special_tokens.h"
#include "model/tokenizers/text_stream.h"
#include "model/tokenizers/token_files.h"

namespace edgewise {

struct EncodeOptions {
  bool add_special_tokens = true;  // those of the template
  // The most tokens, those of the template included; 0: any number. Further ones are cut off the end of a text, or of
  // its beginning; of two texts the longer one is cut first (longest_first). The sections truncation and padding of
  // tokenizer.json state a caller's wishes, and are not read.
  size_t max_tokens = 0;
  bool truncate_left = false;
  // Ends at the first token beyond max_tokens instead, with Encoding::too_long. Faults of the text behind it are not
  // found then, but that it is not UTF-8.
  bool refuse_longer = false;
  bool only_ids = false;  // and their types and sequences
};

// Immutable; may be used from any thread.
class HfTokenizer {
 public:
  // `tokenizer_json` is the text of the file. The other files give only the special tokens. Those that tokenizer.json
  // lacks are added as transformers adds them, and they must not contradict it. `lower_case`: texts become lower-case
  // before the file's normalizer, which do_lower_case of sentence-transformers asks for. INVALID_ARGUMENT names the
  // file and the field that is missing, wrong or not served.
  static absl::StatusOr<std::unique_ptr<HfTokenizer>> Read(const std::string& tokenizer_json,
                                                           const TokenFiles& files = {}, bool lower_case = false);
  // For a folder of BERT or DistilBERT that has a vocab.txt and no tokenizer.json: WordPiece as transformers makes it.
  static absl::StatusOr<std::unique_ptr<HfTokenizer>> ReadVocabTxt(const std::string& vocab_txt,
                                                                   const TokenFiles& files = {},
                                                                   bool lower_case = false);
  ~HfTokenizer();

  // `text` and `second` are UTF-8 of less than 1 GiB. The time is n log n in their lengths. INVALID_ARGUMENT: one is
  // not valid UTF-8 (the message names the byte), the vocabulary cannot spell it, max_tokens leaves no room for the
  // template, a regular expression of the file takes too long, or its normalizer makes the text too long. The error's
  // field is "text" or "second". A status of `bounds` ends the work as it is; memory is reserved from them before it is
  // used.
  absl::StatusOr<Encoding> Encode(const std::string& text, const EncodeOptions& options = {},
                                  WorkBounds& bounds = NoBounds()) const;
  absl::StatusOr<Encoding> Encode(const std::string& text, const std::string& second, const EncodeOptions& options = {},
                                  WorkBounds& bounds = NoBounds()) const;

  // The text of `ids`, valid UTF-8. Ids that no token has are left out, and so are special tokens where `skip_special`.
  std::string Decode(const std::vector<int32_t>& ids, bool skip_special) const;
  // The same within `bounds`, which count the text while it grows. RESOURCE_EXHAUSTED: it is too long; or an error of
  // `bounds`, as it is.
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids, bool skip_special, WorkBounds& bounds) const;
  // The same, one id at a time. The stream uses the tokenizer, which must outlive it.
  TextStream Stream(bool skip_special) const;

  // The bytes that the token adds to a text, which may be a part of a character; of a special token its spelling.
  std::string Bytes(int32_t id) const;

  // As the vocabulary or the file's added tokens spell it. -1: there is no such token.
  int32_t Id(std::string_view token) const;
  // Null: no token has the id. Added tokens that are normalised are so here.
  const std::string* Token(int32_t id) const;
  bool IsSpecial(int32_t id) const;
  // One more than the greatest id.
  int32_t vocabulary_size() const;
  // The greatest id that the template puts around texts (-1: none), and the greatest type that it gives one text's.
  int32_t most_template_id() const;
  int32_t most_template_type() const;
  size_t longest_token() const;    // bytes
  size_t template_tokens() const;  // that the template adds to one text
  const SpecialTokens& special_tokens() const;

 private:
  struct Parts;
  explicit HfTokenizer(std::unique_ptr<const Parts> parts);
  absl::StatusOr<Encoding> EncodeTexts(const std::vector<const std::string*>& texts, const EncodeOptions& options,
                                       WorkBounds& bounds) const;

  const std::unique_ptr<const Parts> parts_;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_TOKENIZERS_HF_TOKENIZER_H_
