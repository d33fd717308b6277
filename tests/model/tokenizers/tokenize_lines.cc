// tokenize_lines FOLDER: what the tokenizer of a Hugging Face folder makes of texts. One JSON object a line on stdin,
// with "text" and perhaps "second", "special", "max", "left"; one on stdout: {"ids", "type_ids", "offsets", "words",
// "sequences", "decoded", "plain", "streamed"} or {"error"}. tests/reference/compare_tokenizers.py asks it.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "model/tokenizers/hf_tokenizer.h"

namespace {

using nlohmann::json;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

json Answer(const edgewise::HfTokenizer& tokenizer, const json& request) {
  edgewise::EncodeOptions options;
  options.add_special_tokens = request.value("special", true);
  options.max_tokens = request.value("max", 0);
  options.truncate_left = request.value("left", false);
  const auto encoding = request.contains("second") ? tokenizer.Encode(request["text"].get<std::string>(),
                                                                      request["second"].get<std::string>(), options)
                                                   : tokenizer.Encode(request["text"].get<std::string>(), options);
  if (!encoding.ok()) return {{"error", std::string(encoding.status().message())}};
  json offsets = json::array();
  for (const auto& offset : encoding->offsets) offsets.push_back({offset.begin, offset.end});
  auto stream = tokenizer.Stream(false);
  std::string streamed;
  for (const int32_t id : encoding->ids) streamed += stream.Push(id);
  streamed += stream.Finish();
  return {{"ids", encoding->ids},
          {"type_ids", encoding->type_ids},
          {"offsets", offsets},
          {"words", encoding->words},
          {"sequences", encoding->sequences},
          {"decoded", tokenizer.Decode(encoding->ids, false)},
          {"plain", tokenizer.Decode(encoding->ids, true)},
          {"streamed", streamed}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenize_lines FOLDER <requests >answers\n";
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  const edgewise::TokenFiles files = {ReadFile(folder / "tokenizer_config.json"),
                                      ReadFile(folder / "special_tokens_map.json"),
                                      ReadFile(folder / "added_tokens.json")};
  const auto tokenizer = std::filesystem::exists(folder / "tokenizer.json")
                             ? edgewise::HfTokenizer::Read(ReadFile(folder / "tokenizer.json"), files)
                             : edgewise::HfTokenizer::ReadVocabTxt(ReadFile(folder / "vocab.txt"), files);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().message() << "\n";
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << Answer(**tokenizer, json::parse(line)).dump(-1, ' ', true) << "\n";
  }
  return 0;
}
