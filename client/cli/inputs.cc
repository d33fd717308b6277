#include "client/cli/inputs.h"

#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace edgewise::cli {
namespace {

using nlohmann::json;

// Protobuf strings are UTF-8; the server cannot even parse others.
bool IsUtf8(const std::string& text) {
  size_t i = 0;
  auto continues = [&](size_t at) { return at < text.size() && (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80; };
  while (i < text.size()) {
    const uint8_t lead = static_cast<uint8_t>(text[i]);
    const size_t length = lead < 0x80                   ? 1
                          : lead >= 0xc2 && lead < 0xe0 ? 2
                          : (lead & 0xf0) == 0xe0       ? 3
                          : lead >= 0xf0 && lead < 0xf5 ? 4
                                                        : 0;
    if (length == 0) return false;
    for (size_t k = 1; k < length; ++k) {
      if (!continues(i + k)) return false;
    }
    if (length > 2) {
      const uint8_t second = static_cast<uint8_t>(text[i + 1]);
      if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) || (lead == 0xf0 && second < 0x90) ||
          (lead == 0xf4 && second > 0x8f)) {
        return false;
      }
    }
    i += length;
  }
  return true;
}

absl::Status FieldError(const std::string& field, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(field, " ", what));
}

absl::StatusOr<int32_t> ToInt32(const std::string& field, const json& value) {
  if (!value.is_number_integer()) return FieldError(field, absl::StrCat("is ", value.dump(), "; expected an integer"));
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= std::numeric_limits<int32_t>::max()
                                               : value.get<int64_t>() >= std::numeric_limits<int32_t>::min();
  if (!fits) return FieldError(field, absl::StrCat("is ", value.dump(), "; expected a 32-bit integer"));
  return static_cast<int32_t>(value.get<int64_t>());
}

// The fields `text` and `ids` of a line; at most one may be there.
absl::StatusOr<std::optional<v1::Sequence>> ReadSequence(const json& object, const char* text, const char* ids) {
  const bool has_text = object.contains(text);
  const bool has_ids = object.contains(ids);
  if (has_text && has_ids) return FieldError(text, absl::StrCat("and ", ids, " exclude each other"));
  if (!has_text && !has_ids) return std::optional<v1::Sequence>();
  v1::Sequence sequence;
  if (has_text) {
    if (!object[text].is_string()) return FieldError(text, "is not a string");
    sequence.set_text(object[text].get<std::string>());
    return std::optional<v1::Sequence>(std::move(sequence));
  }
  if (!object[ids].is_array()) return FieldError(ids, "is not a list of integers");
  sequence.mutable_token_ids();
  for (size_t i = 0; i < object[ids].size(); ++i) {
    absl::StatusOr<int32_t> id = ToInt32(absl::StrCat(ids, "[", i, "]"), object[ids][i]);
    if (!id.ok()) return id.status();
    sequence.mutable_token_ids()->add_values(*id);
  }
  return std::optional<v1::Sequence>(std::move(sequence));
}

absl::Status ReadLabels(const json& object, LabelledInput& input) {
  if (object.contains("label")) {
    absl::StatusOr<int32_t> label = ToInt32("label", object["label"]);
    if (!label.ok()) return label.status();
    input.label = *label;
  }
  if (!object.contains("labels")) return absl::OkStatus();
  if (input.label) return FieldError("label", "and labels exclude each other");
  if (!object["labels"].is_array()) return FieldError("labels", "is not a list of integers");
  for (size_t i = 0; i < object["labels"].size(); ++i) {
    const json& value = object["labels"][i];
    if (value.is_null()) {
      input.labels.emplace_back();
      continue;
    }
    absl::StatusOr<int32_t> label = ToInt32(absl::StrCat("labels[", i, "]"), value);
    if (!label.ok()) return label.status();
    input.labels.emplace_back(*label);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ParseTokenIds(const std::string& text) {
  std::vector<int32_t> ids;
  size_t index = 0;
  for (const auto& piece : absl::StrSplit(text, ',')) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(piece, &id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token_ids[", index, "] is \"", absl::StripAsciiWhitespace(piece), "\"; expected an integer"));
    }
    ids.push_back(id);
    ++index;
  }
  return ids;
}

absl::StatusOr<v1::Sequence> MakeSequence(const std::optional<std::string>& text,
                                          const std::optional<std::string>& token_ids) {
  v1::Sequence sequence;
  if (text) {
    if (!IsUtf8(*text)) return absl::InvalidArgumentError("text is not valid UTF-8");
    sequence.set_text(*text);
    return sequence;
  }
  absl::StatusOr<std::vector<int32_t>> ids = ParseTokenIds(token_ids.value_or(""));
  if (!ids.ok()) return ids.status();
  sequence.mutable_token_ids()->mutable_values()->Add(ids->begin(), ids->end());
  return sequence;
}

absl::StatusOr<LabelledInput> ParseInputLine(const std::string& line) {
  if (!IsUtf8(line)) return absl::InvalidArgumentError("not valid UTF-8");
  const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) return absl::InvalidArgumentError("not valid JSON");
  if (!object.is_object()) return absl::InvalidArgumentError("not a JSON object");
  constexpr const char* kFields[] = {"text", "token_ids", "second_text", "second_token_ids", "label", "labels"};
  for (const auto& [name, value] : object.items()) {
    bool known = false;
    for (const char* field : kFields) known = known || name == field;
    if (!known) {
      return FieldError(name, "is no field; expected text, token_ids, second_text, second_token_ids, label or labels");
    }
  }
  LabelledInput input;
  absl::StatusOr<std::optional<v1::Sequence>> first = ReadSequence(object, "text", "token_ids");
  if (!first.ok()) return first.status();
  if (!*first) return absl::InvalidArgumentError("neither text nor token_ids");
  *input.input.mutable_sequence() = **std::move(first);
  absl::StatusOr<std::optional<v1::Sequence>> second = ReadSequence(object, "second_text", "second_token_ids");
  if (!second.ok()) return second.status();
  if (*second) *input.input.mutable_second() = **std::move(second);
  if (absl::Status status = ReadLabels(object, input); !status.ok()) return status;
  return input;
}

absl::StatusOr<std::vector<LabelledInput>> ReadInputFile(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    file.open(path);
    if (!file) return absl::NotFoundError(absl::StrCat("--input: cannot read \"", path, "\""));
  }
  std::istream& stream = path == "-" ? std::cin : file;
  std::vector<LabelledInput> inputs;
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::StatusOr<LabelledInput> input = ParseInputLine(line);
    if (!input.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": ", input.status().message()));
    }
    inputs.push_back(*std::move(input));
  }
  if (stream.bad()) return absl::NotFoundError(absl::StrCat("--input: cannot read \"", path, "\""));
  if (inputs.empty()) return absl::InvalidArgumentError(absl::StrCat("--input: no input in \"", path, "\""));
  return inputs;
}

}  // namespace edgewise::cli
