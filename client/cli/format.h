// Small text helpers of the commands.
#ifndef EDGEWISE_CLIENT_CLI_FORMAT_H_
#define EDGEWISE_CLIENT_CLI_FORMAT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace google::protobuf {
class Message;
}

namespace edgewise::cli {

// 1234567 -> "1,234,567".
std::string WithCommas(uint64_t value);
// As WithCommas, with one decimal unless the value is whole.
std::string MeanWithCommas(double value);
// 0.1507 -> "15.07 %".
std::string Percent(double share);
// Microseconds -> "3.10 ms".
std::string Milliseconds(double microseconds);
// "1 input", "2 inputs".
std::string Plural(uint64_t count, const std::string& noun);
// Left- or right-aligned to `width` columns; UTF-8 characters count one.
std::string PadRight(const std::string& text, size_t width);
std::string PadLeft(const std::string& text, size_t width);
// One line for every row, without line ends; the columns are as wide as their widest cell, two blanks apart.
// `alignment` has 'l' or 'r' for every column.
std::vector<std::string> AlignColumns(const std::vector<std::vector<std::string>>& rows, const std::string& alignment);

// JSON with the field names of the .proto file, defaults included.
std::string ToJson(const google::protobuf::Message& message, bool indent);
// {"code": "INVALID_ARGUMENT", "message": "..."}
std::string StatusToJson(const absl::Status& status);
// "INVALID_ARGUMENT"
std::string CodeName(absl::StatusCode code);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_FORMAT_H_
