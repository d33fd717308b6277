#include "model/checkpoint/hugging_face/mask_token.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "model/checkpoint/json_object.h"
#include "model/checkpoint/safetensors.h"

namespace edgewise::hugging_face {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxBytes = 256 << 20;

absl::Status In(const char* file, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", std::string(status.message())));
}

// -1: it is not there.
absl::StatusOr<int32_t> FromTokenizer(const std::string& text, std::string_view token, int32_t vocab_size) {
  const absl::StatusOr<json> tokenizer = ParseStrictJson(text);
  if (!tokenizer.ok()) return tokenizer.status();
  if (!tokenizer->is_object() || !tokenizer->contains("added_tokens")) return -1;
  for (const json& added : (*tokenizer)["added_tokens"]) {
    if (!added.is_object() || !added.contains("content") || added["content"] != token) continue;
    if (added.contains("id") && IsInteger(added["id"], 0, vocab_size - 1)) return added["id"].get<int32_t>();
    return absl::InvalidArgumentError(absl::StrCat("the id of ", std::string(token), " is no integer from 0 to ",
                                                   vocab_size - 1, ", the vocabulary of config.json"));
  }
  return -1;
}

}  // namespace

absl::StatusOr<int32_t> ReadMaskToken(const std::string& directory, std::string_view token, int32_t vocab_size) {
  const absl::StatusOr<std::string> tokenizer = ReadSmallFile(directory + "/tokenizer.json", kMaxBytes);
  if (tokenizer.ok()) {
    const absl::StatusOr<int32_t> id = FromTokenizer(*tokenizer, token, vocab_size);
    if (!id.ok()) return In("tokenizer.json", id.status());
    if (*id >= 0) return *id;
  } else if (!absl::IsNotFound(tokenizer.status())) {
    return In("tokenizer.json", tokenizer.status());
  }
  const absl::StatusOr<std::string> vocabulary = ReadSmallFile(directory + "/vocab.txt", kMaxBytes);
  if (vocabulary.ok()) {
    int32_t id = 0;
    for (absl::string_view line : absl::StrSplit(*vocabulary, '\n')) {
      if (id >= vocab_size) break;
      if (absl::StripSuffix(line, "\r") == absl::string_view(token.data(), token.size())) return id;
      ++id;
    }
  } else if (!absl::IsNotFound(vocabulary.status())) {
    return In("vocab.txt", vocabulary.status());
  }
  return absl::InvalidArgumentError(absl::StrCat("neither tokenizer.json nor vocab.txt has the mask token ",
                                                 std::string(token),
                                                 ", whose id fill-mask needs; save the tokenizer "
                                                 "into the folder too"));
}

}  // namespace edgewise::hugging_face
