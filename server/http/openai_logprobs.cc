#include "server/http/openai_logprobs.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/utf8.h"

namespace edgewise::server {
namespace {

void Append(std::string& list, const std::string& value) { absl::StrAppend(&list, list.empty() ? "" : ",", value); }

std::string Quote(const std::string& text) {
  JsonOut json;
  json.String(text);
  return json.Take();
}

std::string Number(double value) {
  JsonOut json;
  json.Number(value);
  return json.Take();
}

// The members that a token and its alternatives have in common, of a chat.
void WriteToken(int32_t id, const std::string& bytes, double log_probability, JsonOut& json) {
  json.Key("token").String(TokenName(id, bytes)).Key("logprob").Number(log_probability).Key("bytes");
  if (bytes.empty()) {
    json.Null();
    return;
  }
  json.BeginArray();
  for (const char byte : bytes) json.Unsigned(static_cast<uint8_t>(byte));
  json.EndArray();
}

}  // namespace

std::string TokenName(int32_t token_id, const std::string& bytes) {
  if (bytes.empty()) return absl::StrCat("token_id:", token_id);
  if (FirstInvalidByte(bytes) == bytes.size()) return bytes;
  std::string name = "bytes:";
  for (const char byte : bytes) absl::StrAppendFormat(&name, "\\x%02x", static_cast<uint8_t>(byte));
  return name;
}

void Logprobs::Add(const v1::GenerateResponse& token) {
  if (wanted_) chat_ ? AddOfChat(token) : AddOfText(token, true);
}

void Logprobs::Add(const v1::TokenScore& token) {
  if (wanted_) AddOfText(token, token.has_log_probability());
}

void Logprobs::AddOfChat(const v1::GenerateResponse& token) {
  JsonOut json;
  json.BeginObject();
  WriteToken(token.token_id(), token.token_bytes(), token.log_probability(), json);
  json.Key("top_logprobs").BeginArray();
  for (const v1::TokenAlternative& one : token.alternatives()) {
    json.BeginObject();
    WriteToken(one.token_id(), one.token_bytes(), one.log_probability(), json);
    json.EndObject();
  }
  json.EndArray().EndObject();
  Append(items_, json.text());
}

// `known`: whether it has a probability; the first token of a text has none.
template <typename Token>
void Logprobs::AddOfText(const Token& token, bool known) {
  const std::string& bytes = token.token_bytes();
  const std::string own = TokenName(token.token_id(), bytes);
  Append(items_, Quote(own));
  offsets_.push_back(characters_);
  characters_ += static_cast<uint64_t>(
      std::count_if(bytes.begin(), bytes.end(), [](char byte) { return !ContinuesCharacter(byte); }));
  Append(logprobs_, known ? Number(token.log_probability()) : "null");
  if (!known) return Append(tops_, "null");
  std::set<std::string> names;  // of several tokens of one name the most probable one
  JsonOut top;
  top.BeginObject();
  for (const v1::TokenAlternative& one : token.alternatives()) {
    const std::string name = TokenName(one.token_id(), one.token_bytes());
    if (names.insert(name).second) top.Key(name).Number(one.log_probability());
  }
  if (names.insert(own).second) top.Key(own).Number(token.log_probability());
  top.EndObject();
  Append(tops_, top.text());
}

void Logprobs::Prepend(const Logprobs& before) {
  const auto join = [](const std::string& first, std::string& list) {
    if (!first.empty()) list = absl::StrCat(first, list.empty() ? "" : ",", list);
  };
  join(before.items_, items_);
  join(before.logprobs_, logprobs_);
  join(before.tops_, tops_);
  for (uint64_t& offset : offsets_) offset += before.characters_;
  offsets_.insert(offsets_.begin(), before.offsets_.begin(), before.offsets_.end());
  characters_ += before.characters_;
}

void Logprobs::Write(JsonOut& json) {
  if (!wanted_) {
    json.Null();
    return;
  }
  const auto list = [](std::string& items) { return absl::StrCat("[", std::exchange(items, ""), "]"); };
  json.BeginObject();
  if (chat_) {
    json.Key("content").Raw(list(items_)).Key("refusal").Null();
  } else {
    json.Key("tokens").Raw(list(items_)).Key("token_logprobs").Raw(list(logprobs_));
    json.Key("top_logprobs").Raw(list(tops_)).Key("text_offset").BeginArray();
    for (const uint64_t offset : std::exchange(offsets_, {})) json.Unsigned(offset);
    json.EndArray();
  }
  json.EndObject();
}

}  // namespace edgewise::server
