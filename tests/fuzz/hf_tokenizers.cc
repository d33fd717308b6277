// Fuzz targets of the tokenizers of Hugging Face folders.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "model/tokenizers/hf_tokenizer.h"
#include "tests/fuzz/targets.h"

namespace edgewise::fuzz {
namespace {

using Tokenizers = std::vector<std::unique_ptr<HfTokenizer>>;

// Those of tests/testdata_tokenizers, by name.
const Tokenizers& AllTokenizers() {
  static const Tokenizers& all = *[] {
    std::vector<std::filesystem::path> paths;
    for (const auto& file : std::filesystem::directory_iterator(EDGEWISE_TOKENIZERS)) paths.push_back(file.path());
    std::sort(paths.begin(), paths.end());
    auto* made = new Tokenizers;
    for (const std::filesystem::path& path : paths) {
      std::ifstream file(path, std::ios::binary);
      const auto golden = nlohmann::json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
      if (!golden.is_object()) continue;  // the requests
      auto tokenizer = HfTokenizer::Read(golden["tokenizer"].dump());
      Require(tokenizer.ok(), path.string() + " is a good file");
      made->push_back(*std::move(tokenizer));
    }
    return made;
  }();
  return all;
}

bool BeginsCharacter(const std::string& text, uint32_t at) {
  return at == text.size() || (static_cast<uint8_t>(text[at]) & 0xC0) != 0x80;
}

void CheckText(const HfTokenizer& tokenizer, const std::string& text, size_t most) {
  const absl::StatusOr<Encoding> encoding = tokenizer.Encode(text, text, {.max_tokens = most});
  if (!encoding.ok()) return RequireReadable(std::string(encoding.status().message()));
  Require(most == 0 || encoding->size() <= most, "there are at most as many tokens as asked for");
  const auto refused = tokenizer.Encode(text, text, {.max_tokens = most, .refuse_longer = true, .only_ids = true});
  Require(refused.ok(), "what can be cut can be refused");
  Require(refused->too_long == (encoding->truncated > 0), "what has tokens cut off is too long");
  Require(refused->too_long || refused->ids == encoding->ids, "what is not cut has the same ids");
  for (size_t i = 0; i < encoding->size(); ++i) {
    const auto& offset = encoding->offsets[i];
    Require(offset.begin <= offset.end && offset.end <= text.size(), "a token lies in the text");
    Require(BeginsCharacter(text, offset.begin) && BeginsCharacter(text, offset.end), "a token has whole characters");
  }
  const std::string decoded = tokenizer.Decode(encoding->ids, false);
  RequireUtf8(decoded);
  std::string streamed;
  TextStream stream = tokenizer.Stream(false);
  for (const int32_t id : encoding->ids) {
    const std::string part = stream.Push(id);
    RequireUtf8(part);
    streamed += part;
  }
  streamed += stream.Finish();
  RequireUtf8(streamed);
  Require(streamed == decoded || decoded.find("\uFFFD") != std::string::npos, "a stream says what Decode says");
}

}  // namespace

void FuzzHfText(const std::string& bytes) {
  if (bytes.size() < 2) return;
  const Tokenizers& all = AllTokenizers();
  const size_t most = static_cast<uint8_t>(bytes[1]) % 32;
  CheckText(*all[static_cast<uint8_t>(bytes[0]) % all.size()], bytes.substr(2), most);
}

void FuzzHfFile(const std::string& bytes) {
  const auto tokenizer = HfTokenizer::Read(bytes);
  if (!tokenizer.ok()) return RequireReadable(std::string(tokenizer.status().message()));
  CheckText(**tokenizer, "It's 12 é\u0301 東京 😀  <s> ab.", 0);
}

}  // namespace edgewise::fuzz
