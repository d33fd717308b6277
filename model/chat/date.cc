#include "model/chat/date.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace edgewise::chat {
namespace {

constexpr size_t kMaxFormat = 256;  // bytes
constexpr std::string_view kConversions = "aAbBdeHIjmMpSyY%";
constexpr std::string_view kUnpadded = "dHIjmMS";  // served with "-" too

std::string Listed(std::string_view letters, const char* sign) {
  std::string all;
  for (const char letter : letters) absl::StrAppend(&all, all.empty() ? "" : ", ", sign, std::string(1, letter));
  return all;
}

}  // namespace

absl::StatusOr<std::string> DateText(const std::string& format, absl::CivilSecond time) {
  if (format.size() > kMaxFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("the format of strftime_now has ", format.size(), " bytes; served are at most ", kMaxFormat));
  }
  const absl::Time moment = absl::FromCivil(time, absl::UTCTimeZone());
  std::string text;
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      text += format[at];
      continue;
    }
    std::string conversion = format.substr(at, format.compare(at, 2, "%-") == 0 ? 3 : 2);
    const std::string_view served = conversion.size() == 3 || conversion == "%-" ? kUnpadded : kConversions;
    if (conversion.size() < 2 || served.find(conversion.back()) == std::string_view::npos) {
      if ((static_cast<unsigned char>(conversion.back()) & 0x80) != 0) conversion.pop_back();  // part of a character
      return absl::InvalidArgumentError(absl::StrCat(
          "strftime_now has ", conversion, "; served: ", Listed(kConversions, "%"), ", ", Listed(kUnpadded, "%-")));
    }
    text += absl::FormatTime(conversion, moment, absl::UTCTimeZone());
    at += conversion.size() - 1;
  }
  return text;
}

}  // namespace edgewise::chat
