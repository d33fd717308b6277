#include "base/field_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

namespace edgewise {
namespace {

constexpr char kFieldUrl[] = "edgewise/field";
constexpr size_t kMaxQuoted = 64;

absl::Status WithField(absl::Status status, const std::string& field) {
  status.SetPayload(kFieldUrl, absl::Cord(field));
  return status;
}

}  // namespace

absl::Status FieldError(const std::string& field, const std::string& what) {
  const bool colon = !what.empty() && what[0] == ':';
  return WithField(absl::InvalidArgumentError(absl::StrCat(field, colon ? "" : " ", what)), field);
}

std::string FieldOf(const absl::Status& status) {
  const absl::optional<absl::Cord> field = status.GetPayload(kFieldUrl);
  return field ? std::string(*field) : "";
}

absl::Status Within(const std::string& parent, const absl::Status& status) {
  const std::string field = FieldOf(status);
  if (field.empty()) return absl::Status(status.code(), absl::StrCat(parent, ": ", status.message()));
  return WithField(absl::Status(status.code(), absl::StrCat(parent, ".", status.message())),
                   absl::StrCat(parent, ".", field));
}

absl::Status Renamed(const absl::Status& status, absl::FunctionRef<std::string(const std::string&)> name) {
  const std::string field = FieldOf(status), message(status.message());
  if (field.empty() || !absl::StartsWith(message, field)) return status;
  const std::string renamed = name(field);
  return WithField(absl::Status(status.code(), absl::StrCat(renamed, message.substr(field.size()))), renamed);
}

std::string Quoted(const std::string& text) {
  const std::string shown = absl::CHexEscape(text.substr(0, kMaxQuoted));
  return text.size() > kMaxQuoted ? absl::StrCat("\"", shown, "\"... (", text.size(), " bytes)")
                                  : absl::StrCat("\"", shown, "\"");
}

}  // namespace edgewise
