#include "server/status_details.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace edgewise::server {
namespace {

constexpr uint64_t kNanosPerSecond = 1000000000;

void AppendVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void AppendNumber(std::string& out, int field, uint64_t value) {
  AppendVarint(out, static_cast<uint64_t>(field) << 3);
  AppendVarint(out, value);
}

void AppendBytes(std::string& out, int field, const std::string& value) {
  AppendVarint(out, static_cast<uint64_t>(field) << 3 | 2);
  AppendVarint(out, value.size());
  out += value;
}

uint64_t ReadVarint(const std::string& in, size_t& at) {
  uint64_t value = 0;
  for (int shift = 0; at < in.size() && shift < 64; shift += 7) {
    const uint8_t byte = static_cast<uint8_t>(in[at++]);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) break;
  }
  return value;
}

}  // namespace

void SetRetryDelay(absl::Status& status, double seconds) {
  const uint64_t nanos = static_cast<uint64_t>(std::clamp(seconds, 0.0, 3600.0) * 1e9);
  std::string duration;  // google.protobuf.Duration
  AppendNumber(duration, 1, nanos / kNanosPerSecond);
  AppendNumber(duration, 2, nanos % kNanosPerSecond);
  std::string retry;
  AppendBytes(retry, 1, duration);
  status.SetPayload(kRetryInfoUrl, absl::Cord(retry));
}

double RetryDelay(const absl::Status& status) {
  absl::optional<absl::Cord> payload = status.GetPayload(kRetryInfoUrl);
  if (!payload) return -1.0;
  const std::string bytes(*payload);
  size_t at = 2;  // past the tag and length of retry_delay
  double seconds = 0.0;
  while (at < bytes.size()) {
    const uint64_t tag = ReadVarint(bytes, at);
    const uint64_t value = ReadVarint(bytes, at);
    seconds += (tag >> 3) == 1 ? static_cast<double>(value) : static_cast<double>(value) / kNanosPerSecond;
  }
  return seconds;
}

absl::Status ShuttingDown() {
  absl::Status status = absl::UnavailableError("the server is shutting down");
  SetRetryDelay(status, 1.0);
  return status;
}

absl::Status InvalidField(const std::string& field, const std::string& what) {
  return InvalidFieldMessage(field, absl::StrCat(field, " ", what));
}

absl::Status InvalidFieldMessage(const std::string& field, const std::string& message) {
  absl::Status status = absl::InvalidArgumentError(message);
  std::string violation;
  AppendBytes(violation, 1, field);
  AppendBytes(violation, 2, message);
  std::string bad_request;
  AppendBytes(bad_request, 1, violation);
  status.SetPayload(kBadRequestUrl, absl::Cord(bad_request));
  return status;
}

std::string EncodeStatus(const absl::Status& status) {
  std::string details;
  status.ForEachPayload([&details](absl::string_view url, const absl::Cord& value) {
    std::string any;  // google.protobuf.Any
    AppendBytes(any, 1, std::string(url));
    AppendBytes(any, 2, std::string(value));
    AppendBytes(details, 3, any);
  });
  if (details.empty()) return "";
  std::string out;
  AppendNumber(out, 1, static_cast<uint64_t>(status.code()));
  AppendBytes(out, 2, std::string(status.message()));
  return out + details;
}

}  // namespace edgewise::server
