#include "client/cli/format.h"

#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace edgewise::cli {
namespace {

size_t Columns(const std::string& text) {
  size_t columns = 0;
  for (char c : text) columns += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return columns;
}

}  // namespace

std::string WithCommas(uint64_t value) {
  const std::string digits = absl::StrCat(value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string MeanWithCommas(double value) {
  const double tenths = std::round(value * 10.0);
  const auto whole = static_cast<uint64_t>(tenths / 10.0);
  if (value == std::floor(value)) return WithCommas(static_cast<uint64_t>(value));
  return absl::StrCat(WithCommas(whole), ".", static_cast<int>(tenths - 10.0 * static_cast<double>(whole)));
}

std::string Percent(double share) { return absl::StrFormat("%.2f %%", 100.0 * share); }

std::string Milliseconds(double microseconds) { return absl::StrFormat("%.2f ms", microseconds / 1000.0); }

std::string Plural(uint64_t count, const std::string& noun) {
  return absl::StrCat(WithCommas(count), " ", noun, count == 1 ? "" : "s");
}

std::string PadRight(const std::string& text, size_t width) {
  const size_t columns = Columns(text);
  return columns >= width ? text : text + std::string(width - columns, ' ');
}

std::string PadLeft(const std::string& text, size_t width) {
  const size_t columns = Columns(text);
  return columns >= width ? text : std::string(width - columns, ' ') + text;
}

std::vector<std::string> AlignColumns(const std::vector<std::vector<std::string>>& rows, const std::string& alignment) {
  std::vector<size_t> widths(alignment.size());
  for (const std::vector<std::string>& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], Columns(row[c]));
  }
  std::vector<std::string> lines;
  for (const std::vector<std::string>& row : rows) {
    std::string& line = lines.emplace_back();
    for (size_t c = 0; c < row.size(); ++c) {
      absl::StrAppend(&line, c == 0 ? "" : "  ",
                      alignment[c] == 'r' ? PadLeft(row[c], widths[c]) : PadRight(row[c], widths[c]));
    }
  }
  return lines;
}

std::string ToJson(const google::protobuf::Message& message, bool indent) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = indent;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return StatusToJson(absl::InternalError("the answer cannot be printed as JSON"));
  return json;
}

std::string CodeName(absl::StatusCode code) { return absl::StatusCodeToString(code); }

std::string StatusToJson(const absl::Status& status) {
  const nlohmann::json json = {{"code", CodeName(status.code())}, {"message", std::string(status.message())}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace edgewise::cli
