#include "client/cli/request/inputs.h"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/json_text.h"

namespace edgewise::cli {

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

namespace {

using nlohmann::json;

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

absl::Status NotAnInput(const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, "; expected a JSON object a line, such as {\"text\": \"a warm film\"}"));
}

// A list of rows of numbers, all of one length; `add` takes them one by one and says what is wrong with one.
struct Shape {
  size_t rows = 0;
  size_t columns = 0;
};
template <typename AddNumber>
absl::StatusOr<Shape> ReadRows(const std::string& field, const json& value, AddNumber add) {
  if (!value.is_array()) return FieldError(field, "is not a list of rows");
  Shape shape{value.size(), 0};
  for (size_t r = 0; r < value.size(); ++r) {
    const std::string row = absl::StrCat(field, "[", r, "]");
    if (!value[r].is_array()) return FieldError(row, "is not a list of numbers");
    if (r == 0) shape.columns = value[r].size();
    if (value[r].size() != shape.columns) {
      return FieldError(row, absl::StrCat("has ", value[r].size(), " numbers; ", field, "[0] has ", shape.columns));
    }
    for (size_t c = 0; c < value[r].size(); ++c) {
      if (absl::Status status = add(absl::StrCat(row, "[", c, "]"), value[r][c]); !status.ok()) return status;
    }
  }
  return shape;
}

absl::Status AddFloat(const std::string& field, const json& value, google::protobuf::RepeatedField<float>* to) {
  if (!value.is_number()) return FieldError(field, absl::StrCat("is ", value.dump(), "; expected a number"));
  to->Add(value.get<float>());
  return absl::OkStatus();
}

absl::Status ReadFeatures(const std::string& field, const json& value, v1::Features& features) {
  absl::StatusOr<Shape> shape = ReadRows(field, value, [&](const std::string& at, const json& number) {
    return AddFloat(at, number, features.mutable_values());
  });
  if (!shape.ok()) return shape.status();
  features.set_rows(static_cast<uint32_t>(shape->rows));
  features.set_columns(static_cast<uint32_t>(shape->columns));
  return absl::OkStatus();
}

// The fields bias_values and bias_buckets, with `prefix` in front; at most one may be there.
absl::Status ReadBias(const json& object, const std::string& prefix, v1::Sequence& sequence) {
  const std::string values = prefix + "bias_values", buckets = prefix + "bias_buckets";
  if (object.contains(values) && object.contains(buckets)) {
    return FieldError(values, absl::StrCat("and ", buckets, " exclude each other"));
  }
  if (object.contains(values)) {
    return ReadRows(values, object[values],
                    [&](const std::string& at, const json& number) {
                      return AddFloat(at, number, sequence.mutable_bias()->mutable_values());
                    })
        .status();
  }
  if (!object.contains(buckets)) return absl::OkStatus();
  return ReadRows(buckets, object[buckets],
                  [&](const std::string& at, const json& number) {
                    absl::StatusOr<int32_t> bucket = ToInt32(at, number);
                    if (!bucket.ok()) return bucket.status();
                    if (*bucket < 0 || *bucket > 255)
                      return FieldError(at, absl::StrCat("is ", *bucket, "; expected 0 to 255"));
                    sequence.mutable_bias()->mutable_buckets()->push_back(static_cast<char>(*bucket));
                    return absl::OkStatus();
                  })
      .status();
}

// The fields text, token_ids, features and image of a line, with `prefix` in front, a bias and the name of a prompt. At
// most one of the four.
absl::StatusOr<std::optional<v1::Sequence>> ReadSequence(const json& object, const std::string& prefix) {
  const std::string fields[] = {prefix + "text", prefix + "token_ids", prefix + "features", prefix + "image"};
  const std::string* found = nullptr;
  for (const std::string& field : fields) {
    if (!object.contains(field)) continue;
    if (found) return FieldError(*found, absl::StrCat("and ", field, " exclude each other"));
    found = &field;
  }
  v1::Sequence sequence;
  if (absl::Status status = ReadBias(object, prefix, sequence); !status.ok()) return status;
  const std::string prompt = prefix + "prompt_name";
  if (object.contains(prompt)) {
    if (!object[prompt].is_string()) return FieldError(prompt, "is not a string");
    sequence.set_prompt_name(object[prompt].get<std::string>());
  }
  if (!found) {
    if (sequence.has_bias()) return FieldError(prefix + "bias", "stands without a sequence");
    if (sequence.has_prompt_name()) return FieldError(prompt, "stands without a sequence");
    return std::optional<v1::Sequence>();
  }
  const json& value = object[*found];
  if (found == &fields[0]) {
    if (!value.is_string()) return FieldError(*found, "is not a string");
    sequence.set_text(value.get<std::string>());
  } else if (found == &fields[1]) {
    if (!value.is_array()) return FieldError(*found, "is not a list of integers");
    sequence.mutable_token_ids();
    for (size_t i = 0; i < value.size(); ++i) {
      absl::StatusOr<int32_t> id = ToInt32(absl::StrCat(*found, "[", i, "]"), value[i]);
      if (!id.ok()) return id.status();
      sequence.mutable_token_ids()->add_values(*id);
    }
  } else if (found == &fields[3]) {
    if (!value.is_string()) return FieldError(*found, "is not the path of a file");
    absl::StatusOr<v1::Sequence> image = ReadImage(*found, value.get<std::string>());
    if (!image.ok()) return image.status();
    sequence.set_image(std::move(*image->mutable_image()));
  } else {
    absl::Status status = ReadFeatures(*found, value, *sequence.mutable_features());
    if (!status.ok()) return status;
  }
  return std::optional<v1::Sequence>(std::move(sequence));
}

// A number, or a name, which is not empty.
absl::Status ReadLabel(const std::string& field, const json& value, std::optional<int32_t>& label, std::string& name) {
  if (value.is_string() && !value.get_ref<const std::string&>().empty()) {
    name = value.get<std::string>();
    return absl::OkStatus();
  }
  if (!value.is_number_integer()) {
    return FieldError(field, absl::StrCat("is ", value.dump(), "; expected an integer or a name"));
  }
  const absl::StatusOr<int32_t> number = ToInt32(field, value);
  if (number.ok()) label = *number;
  return number.status();
}

// The right answer: label, labels or value.
absl::Status ReadLabels(const json& object, LabelledInput& input) {
  if (object.contains("value")) {
    if (object.contains("label") || object.contains("labels")) {
      return FieldError("value", "excludes label and labels");
    }
    if (!object["value"].is_number()) {
      return FieldError("value", absl::StrCat("is ", object["value"].dump(), "; expected a number"));
    }
    input.value = object["value"].get<double>();
  }
  if (object.contains("label")) {
    const absl::Status status = ReadLabel("label", object["label"], input.label, input.label_name);
    if (!status.ok()) return status;
  }
  if (!object.contains("labels")) return absl::OkStatus();
  if (object.contains("label")) return FieldError("label", "and labels exclude each other");
  if (!object["labels"].is_array()) return FieldError("labels", "is not a list of integers or names");
  std::vector<std::optional<int32_t>>& labels = input.labels.emplace();
  for (size_t i = 0; i < object["labels"].size(); ++i) {
    const json& value = object["labels"][i];
    labels.emplace_back();
    if (value.is_null()) continue;
    std::string name;
    const absl::Status status = ReadLabel(absl::StrCat("labels[", i, "]"), value, labels.back(), name);
    if (!status.ok()) return status;
    if (name.empty()) continue;
    input.label_names.resize(object["labels"].size());
    input.label_names[i] = std::move(name);
  }
  return absl::OkStatus();
}

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

absl::StatusOr<v1::Sequence> ReadImage(const std::string& field, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();  // fails on a folder, and where there is nothing to read
  if (!file || !bytes) return absl::NotFoundError(absl::StrCat(field, ": cannot read \"", path, "\", or it is empty"));
  v1::Sequence sequence;
  sequence.set_image(std::move(bytes).str());
  return sequence;
}

absl::StatusOr<LabelledInput> ParseInputLine(const std::string& line) {
  if (!IsUtf8(line)) return absl::InvalidArgumentError("not valid UTF-8");
  const absl::StatusOr<json> parsed = ParseStrictJson(line);
  if (!parsed.ok()) return NotAnInput(absl::StrReplaceAll(parsed.status().message(), {{"line 1, ", ""}}));
  const json& object = *parsed;
  if (!object.is_object()) return NotAnInput("not a JSON object");
  constexpr const char* kFields[] = {"text",        "token_ids",    "features",   "image",
                                     "bias_values", "bias_buckets", "prompt_name"};
  for (const auto& [name, value] : object.items()) {
    bool known = name == "label" || name == "labels" || name == "value";
    for (const char* field : kFields) known = known || name == field || name == absl::StrCat("second_", field);
    if (!known) {
      return FieldError(
          name,
          "is no field; expected text, token_ids, features, image, bias_values, bias_buckets, prompt_name, the same "
          "with second_ in front, label, labels or value");
    }
  }
  LabelledInput input;
  absl::StatusOr<std::optional<v1::Sequence>> first = ReadSequence(object, "");
  if (!first.ok()) return first.status();
  if (!*first) return absl::InvalidArgumentError("none of text, token_ids, features and image");
  *input.input.mutable_sequence() = **std::move(first);
  absl::StatusOr<std::optional<v1::Sequence>> second = ReadSequence(object, "second_");
  if (!second.ok()) return second.status();
  if (*second) *input.input.mutable_second() = **std::move(second);
  if (absl::Status status = ReadLabels(object, input); !status.ok()) return status;
  return input;
}

absl::StatusOr<std::vector<LabelledInput>> ReadInputFile(const std::string& path, const std::string& flag) {
  std::ifstream file;
  if (path != "-") {
    file.open(path);
    if (!file) return absl::NotFoundError(absl::StrCat(flag, ": cannot read \"", path, "\""));
  }
  std::istream& stream = path == "-" ? std::cin : file;
  std::vector<LabelledInput> inputs;
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const std::string place = absl::StrCat(path, ":", number);
    absl::StatusOr<LabelledInput> input = ParseInputLine(line);
    if (!input.ok()) return absl::InvalidArgumentError(absl::StrCat(place, ": ", input.status().message()));
    input->place = place;
    inputs.push_back(*std::move(input));
  }
  if (stream.bad()) return absl::NotFoundError(absl::StrCat(flag, ": cannot read \"", path, "\""));
  if (inputs.empty()) return absl::InvalidArgumentError(absl::StrCat(flag, ": no input in \"", path, "\""));
  return inputs;
}

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
