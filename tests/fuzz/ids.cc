// Fuzz target of the ids and types that the files of a Hugging Face folder name: whatever they are, what is made of a
// text lies inside the model.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "model/checkpoint/hugging_face/folder.h"
#include "model/checkpoint/weights.h"
#include "tests/fuzz/targets.h"
#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"

namespace edgewise::fuzz {
namespace {

using nlohmann::json;

constexpr const char* kFolders[] = {"_hugging_face/bert_sequence", "_hugging_face/bert_masked",
                                    "_hugging_face/roberta_sequence", "_chat/qwen3"};
constexpr const char* kRoles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};

json ReadJson(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return file ? json::parse(std::string(std::istreambuf_iterator<char>(file), {})) : json::object();
}

// A folder as it is, its model, and a place for changed files.
struct Base {
  json config, tokenizer, tokenizer_config;
  testing::LoadedModel model;
  std::string folder;
};

const std::vector<Base>& Bases() {
  static const testing::TemporaryFolder& place = *new testing::TemporaryFolder;
  static const std::vector<Base>& bases = *[] {
    auto* made = new std::vector<Base>;
    for (const char* name : kFolders) {
      const std::string from = std::string(EDGEWISE_FUZZ_TESTDATA) + name + "/1";
      made->push_back({ReadJson(from + "/config.json"), ReadJson(from + "/tokenizer.json"),
                       ReadJson(from + "/tokenizer_config.json"), testing::LoadModel(from),
                       place.path() + "/" + std::to_string(made->size())});
      std::filesystem::create_directory(made->back().folder);
    }
    return made;
  }();
  return bases;
}

// Bytes as choices; at their end all are 0.
class Choices {
 public:
  explicit Choices(const std::string& bytes) : bytes_(bytes) {}
  uint8_t Next() { return at_ < bytes_.size() ? static_cast<uint8_t>(bytes_[at_++]) : 0; }
  // An id: a small one, one around the end of the vocabulary, or a far one.
  int64_t Id(int32_t vocab_size) {
    constexpr int64_t kFar[] = {-1, 1000000, (1 << 24) - 1, 1 << 24, (int64_t{1} << 31) - 1, int64_t{1} << 31};
    const uint8_t byte = Next();
    if (byte < 128) return byte;
    return byte < 192 ? vocab_size - 3 + byte % 6 : kFar[byte % std::size(kFar)];
  }
  std::string Rest() const { return bytes_.substr(std::min(at_, bytes_.size())); }

 private:
  const std::string& bytes_;
  size_t at_ = 0;
};

// Writes the files of the folder with other ids.
json Change(const Base& base, Choices& choices) {
  const int32_t vocab_size = base.config["vocab_size"];
  json config = base.config, tokenizer = base.tokenizer, tokenizer_config = base.tokenizer_config, map = json::object();
  const uint8_t what = choices.Next();
  const json first = choices.Id(vocab_size), last = choices.Id(vocab_size);
  const int type = choices.Next() % 4;
  if (what & 1) {
    tokenizer["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"last", last}}, {"cls", {"first", first}}};
  } else if (what & 2) {
    const auto special = [](const char* id, int of) { return json{{"SpecialToken", {{"id", id}, {"type_id", of}}}}; };
    const auto text = [](const char* id, int of) { return json{{"Sequence", {{"id", id}, {"type_id", of}}}}; };
    tokenizer["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", {special("first", 0), text("A", what & 4 ? type : 0), special("last", 0)}},
        {"pair", {special("first", 0), text("A", 0), special("last", 0), text("B", type), special("last", type)}},
        {"special_tokens",
         {{"first", {{"id", "first"}, {"ids", {first}}, {"tokens", {"first"}}}},
          {"last", {{"id", "last"}, {"ids", {last}}, {"tokens", {"last"}}}}}}};
  }
  json added = tokenizer["added_tokens"][0];
  added["content"] = "<extra>";
  added["id"] = base.model->tokenizer()->vocabulary_size();
  if (what & 8) tokenizer["added_tokens"].push_back(added);
  const uint8_t role = choices.Next();
  if (role & 8) (role & 16 ? map : tokenizer_config)[kRoles[role % 7]] = "<extra>";
  if (what & 16) config["pad_token_id"] = choices.Id(vocab_size);
  json generation = json::object();
  if (what & 32) (what & 64 ? config : generation)["eos_token_id"] = {choices.Id(vocab_size), 2};
  std::ofstream(base.folder + "/tokenizer.json", std::ios::binary) << tokenizer.dump();
  std::ofstream(base.folder + "/tokenizer_config.json", std::ios::binary) << tokenizer_config.dump();
  std::ofstream(base.folder + "/special_tokens_map.json", std::ios::binary) << map.dump();
  std::ofstream(base.folder + "/generation_config.json", std::ios::binary) << generation.dump();
  return config;
}

void CheckText(const Base& base, const Model& model, const std::string& text, bool twice) {
  const absl::StatusOr<ModelSequence> sequence = model.PrepareText(text, twice ? &text : nullptr, TruncateMode::kTail);
  if (!sequence.ok()) return RequireReadable(std::string(sequence.status().message()));
  const ModelConfig& config = model.config();
  for (const int32_t id : sequence->token_ids) Require(id >= 0 && id < config.vocab_size, "an id is in the vocabulary");
  for (const int32_t type : sequence->token_types)
    Require(type >= 0 && type < config.token_types, "the model has a type");
  Require(sequence->length() <= config.max_position_embeddings, "a text fits");
  // Other pads may move the positions, for which the file of weights has another shape.
  if (config.max_position_embeddings != base.model->config().max_position_embeddings) return;
  ModelInput input;
  input.sequences.push_back(*sequence);
  const InputResult result = testing::RunOne(*base.model, input);
  Require(result.status.ok(), "a text that is inside the model has an answer");
}

}  // namespace

void FuzzIds(const std::string& bytes) {
  Choices choices(bytes);
  const Base& base = Bases()[choices.Next() % Bases().size()];
  const json whole = Change(base, choices);
  ModelFolder files(base.folder);
  absl::StatusOr<hugging_face::Folder> folder = hugging_face::ReadFolder(files, whole);
  if (!folder.ok()) return RequireReadable(std::string(folder.status().message()));
  const ModelConfig& config = folder->config;
  for (const int32_t id : {config.pad_token_id, config.cls_token_id, config.mask_token_id}) {
    Require(id >= -1 && id < config.vocab_size, "what the server puts into a text is in the vocabulary");
  }
  for (const int32_t id : config.end_token_ids) Require(id >= 0 && id < config.vocab_size, "a text can end");
  const Model model(config, nullptr, "", 0, *base.model.backend, {}, std::move(folder->tokenizer),
                    std::move(folder->chat));
  std::string text = choices.Rest();
  for (size_t at = 0; (at = text.find('\0', at)) != std::string::npos;) text.replace(at, 1, "<extra>");
  CheckText(base, model, text, false);
  CheckText(base, model, text, true);
  if (!model.chat_template().ok()) return;
  const absl::StatusOr<ModelSequence> chat = model.PrepareChat({{"user", text}}, absl::CivilSecond(2026, 3, 4));
  if (!chat.ok()) return RequireReadable(std::string(chat.status().message()));
  for (const int32_t id : chat->token_ids) Require(id >= 0 && id < config.vocab_size, "a prompt is in the vocabulary");
}

}  // namespace edgewise::fuzz
