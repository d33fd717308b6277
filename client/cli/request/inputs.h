// Inputs as people write them: flags and JSON lines.
#ifndef EDGEWISE_CLIENT_CLI_REQUEST_INPUTS_H_
#define EDGEWISE_CLIENT_CLI_REQUEST_INPUTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::cli {

// One input, and the answer that it should have where that is known.
struct LabelledInput {
  v1::Input input;
  std::string place;  // "FILE:LINE", for errors; empty where it came from a flag
  std::optional<int32_t> label;
  // token-classification: by position; null: not counted. Multi-label: those that hold. Absent: not known.
  std::optional<std::vector<std::optional<int32_t>>> labels;
  std::optional<double> value;  // regression; of a pair for an embedding model, how alike they are
  // Names in the places of `label` and `labels`, which ResolveLabelNames (label_names.h) fills; "": there is a number.
  std::string label_name;
  std::vector<std::string> label_names;  // empty: none is a name
};

// Protobuf strings are UTF-8; the server cannot even parse others.
bool IsUtf8(const std::string& text);

// "1, 2,3". InvalidArgument names the entry.
absl::StatusOr<std::vector<int32_t>> ParseTokenIds(const std::string& text);

// From --text or --token_ids, whichever is there.
absl::StatusOr<v1::Sequence> MakeSequence(const std::optional<std::string>& text,
                                          const std::optional<std::string>& token_ids);

// The bytes of a PNG or JPEG file, which the server checks. NotFound: it cannot be read; the message names `field`.
absl::StatusOr<v1::Sequence> ReadImage(const std::string& field, const std::string& path);

// One line of a JSONL file; the file of an image is read. InvalidArgument names the field.
absl::StatusOr<LabelledInput> ParseInputLine(const std::string& line);

// All lines; blank ones are skipped. path "-": standard input. NotFound, or InvalidArgument with "FILE:LINE: ". `flag`
// is the one that named the file.
absl::StatusOr<std::vector<LabelledInput>> ReadInputFile(const std::string& path, const std::string& flag = "--input");

// A long text in pieces that are each a request: of at most `bytes` (>= 4), and `text` when put together. They end
// after a line or a word where the last quarter of a piece has one, and never inside a UTF-8 character.
std::vector<std::string_view> SplitText(std::string_view text, size_t bytes);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_REQUEST_INPUTS_H_
