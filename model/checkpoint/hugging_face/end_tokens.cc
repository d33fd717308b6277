#include "model/checkpoint/hugging_face/end_tokens.h"

#include "absl/strings/str_cat.h"
#include "base/json_object.h"
#include "base/json_text.h"
#include "base/status_macros.h"
#include "model/config/config.h"

namespace edgewise::hugging_face {
namespace {

using nlohmann::json;

constexpr char kField[] = "eos_token_id", kFile[] = "generation_config.json";
constexpr size_t kMostIds = 1024;

absl::StatusOr<std::vector<int32_t>> ReadIds(const std::string& file, const json& value, int32_t vocab_size) {
  const json list = value.is_array() ? value : json::array({value});
  std::vector<int32_t> ids;
  bool valid = list.size() <= kMostIds;
  for (const json& id : list) {
    valid = valid && IsInteger(id, 0, kMaxIds);
    if (valid && id.get<int32_t>() < vocab_size) ids.push_back(id.get<int32_t>());  // others never come
  }
  if (valid) return ids;
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", kField, " is ", ShowJson(value),
                                                 "; an id or a list of at most ", kMostIds,
                                                 " ids is expected, each from 0 to ", kMaxIds));
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ReadEndTokens(ModelFolder& files, const json& config, int32_t vocab_size) {
  const absl::StatusOr<std::string> text = files.Read(kFile, 1 << 20);
  if (!text.ok() && !absl::IsNotFound(text.status())) {
    return absl::Status(text.status().code(), absl::StrCat(kFile, ": ", std::string(text.status().message())));
  }
  if (text.ok()) {
    const absl::StatusOr<json> generation = ParsePythonJson(*text);
    if (!generation.ok() || !generation->is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(
          kFile, ": ", generation.ok() ? "an object is expected" : std::string(generation.status().message())));
    }
    const auto found = generation->find(kField);
    if (found != generation->end() && !found->is_null()) return ReadIds(kFile, *found, vocab_size);
  }
  const auto found = config.find(kField);
  return found == config.end() ? std::vector<int32_t>() : ReadIds("config.json", *found, vocab_size);
}

}  // namespace edgewise::hugging_face
