// The date in chat templates: strftime_now.
#ifndef EDGEWISE_MODEL_CHAT_DATE_H_
#define EDGEWISE_MODEL_CHAT_DATE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"

namespace edgewise::chat {

// `time` as Python's strftime writes it in the locale "C". INVALID_ARGUMENT: a conversion that is not served, or a
// format of more than 256 bytes.
absl::StatusOr<std::string> DateText(const std::string& format, absl::CivilSecond time);

}  // namespace edgewise::chat

#endif  // EDGEWISE_MODEL_CHAT_DATE_H_
