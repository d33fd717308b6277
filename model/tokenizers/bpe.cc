// Byte-pair encoding: characters, then the pair of neighbours whose merge comes first in the list, again and again.
#include <queue>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/tokenizers/fields.h"
#include "model/tokenizers/utf8.h"
#include "model/tokenizers/word_model.h"
#include "text/status_macros.h"

namespace edgewise::tokenizers {
namespace {

using nlohmann::json;

struct Merge {
  uint32_t rank = 0;
  int32_t merged = 0;  // the id of both together
};

uint64_t Pair(int32_t left, int32_t right) { return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right); }
using Merges = absl::flat_hash_map<uint64_t, Merge>;

// A part of the word; -1: there is no neighbour.
struct Symbol {
  int32_t id;
  uint32_t bytes;  // 0: it has become a part of the one before
  int32_t before = -1, after = -1;
};

// A merge that may be made of symbols[at] and the one after it.
struct Candidate {
  uint32_t rank;
  int32_t at;
  int32_t merged;
  bool operator<(const Candidate& other) const {  // the queue gives the greatest first
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

struct Options {
  std::string unknown;  // the token; empty: none
  bool fuse_unknown = false, byte_fallback = false, ignore_merges = false;
};

class Bpe : public WordModel {
 public:
  Bpe(Vocabulary vocabulary, Merges merges, Options options)
      : WordModel(std::move(vocabulary)), merges_(std::move(merges)), options_(std::move(options)) {
    unknown_ = options_.unknown.empty() ? -1 : this->vocabulary().Id(options_.unknown);
    for (int byte = 0; byte < 256; ++byte) bytes_[byte] = this->vocabulary().Id(absl::StrFormat("<0x%02X>", byte));
  }

  absl::Status Tokenize(std::string_view word, std::vector<Token>& tokens) const override {
    if (options_.ignore_merges) {
      const int32_t id = vocabulary().Id(word);
      if (id >= 0) {
        tokens.push_back({id, 0, static_cast<uint32_t>(word.size())});
        return absl::OkStatus();
      }
    }
    std::vector<Symbol> symbols;
    RETURN_IF_ERROR(Symbols(word, symbols));
    MergeAll(symbols);
    uint32_t at = 0;
    for (const Symbol& symbol : symbols) {
      if (symbol.bytes == 0) continue;
      tokens.push_back({symbol.id, at, at + symbol.bytes});
      at += symbol.bytes;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Symbols(std::string_view word, std::vector<Symbol>& symbols) const {
    symbols.reserve(word.size());
    uint32_t unknown_bytes = 0;  // of unknown characters that have no symbol yet
    auto add = [&](int32_t id, uint32_t bytes) { symbols.push_back({id, bytes}); };
    auto add_unknown = [&] {
      if (unknown_bytes > 0) add(unknown_, unknown_bytes);
      unknown_bytes = 0;
    };
    for (size_t at = 0; at < word.size();) {
      const uint32_t bytes = CharacterAt(word, at).bytes;
      const std::string_view character = word.substr(at, bytes);
      at += bytes;
      const int32_t id = vocabulary().Id(character);
      if (id >= 0) {
        add_unknown();
        add(id, bytes);
      } else if (options_.byte_fallback && HasBytes(character)) {
        // A pending unknown character stays pending, as it does in `tokenizers`.
        for (const char byte : character) add(bytes_[static_cast<uint8_t>(byte)], 1);
      } else if (!options_.unknown.empty()) {
        if (unknown_ < 0) {
          return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: model.unk_token is \"", options_.unknown,
                                                         "\", which model.vocab lacks; this text needs it"));
        }
        if (!options_.fuse_unknown) add_unknown();
        unknown_bytes += bytes;
      }  // else the character is dropped, as `tokenizers` does
    }
    add_unknown();
    return absl::OkStatus();
  }

  bool HasBytes(std::string_view character) const {
    for (const char byte : character) {
      if (bytes_[static_cast<uint8_t>(byte)] < 0) return false;
    }
    return true;
  }

  const Merge* Find(const Symbol& left, const Symbol& right) const {
    const auto found = merges_.find(Pair(left.id, right.id));
    return found == merges_.end() ? nullptr : &found->second;
  }

  void MergeAll(std::vector<Symbol>& symbols) const {
    std::vector<Candidate> candidates;
    const auto count = static_cast<int32_t>(symbols.size());
    for (int32_t i = 0; i < count; ++i) {
      symbols[i].before = i - 1;
      symbols[i].after = i + 1 < count ? i + 1 : -1;
      const Merge* merge = i + 1 < count ? Find(symbols[i], symbols[i + 1]) : nullptr;
      if (merge != nullptr) candidates.push_back({merge->rank, i, merge->merged});
    }
    std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(candidates));
    auto consider = [&](int32_t left, int32_t right) {
      if (left < 0 || right < 0) return;
      const Merge* merge = Find(symbols[left], symbols[right]);
      if (merge != nullptr) queue.push({merge->rank, left, merge->merged});
    };
    while (!queue.empty()) {
      const Candidate next = queue.top();
      queue.pop();
      Symbol& left = symbols[next.at];
      if (left.bytes == 0 || left.after < 0) continue;
      Symbol& right = symbols[left.after];
      const Merge* merge = Find(left, right);
      if (merge == nullptr || merge->merged != next.merged) continue;  // a neighbour has changed since
      left.id = next.merged;
      left.bytes += right.bytes;
      left.after = right.after;
      right.bytes = 0;
      if (left.after >= 0) symbols[left.after].before = next.at;
      consider(left.before, next.at);
      consider(next.at, left.after);
    }
  }

  const Merges merges_;
  const Options options_;
  int32_t unknown_ = -1;
  int32_t bytes_[256];  // the tokens <0x00> to <0xFF>; -1: there is none
};

// The two tokens of one entry of "merges". Whether it has exactly two.
bool ReadPair(const json& entry, std::string& left, std::string& right) {
  if (entry.is_array()) {
    if (entry.size() != 2 || !entry[0].is_string() || !entry[1].is_string()) return false;
    left = entry[0].get<std::string>();
    right = entry[1].get<std::string>();
    return true;
  }
  if (!entry.is_string()) return false;
  const std::string& both = entry.get_ref<const std::string&>();
  const size_t space = both.find(' ');
  if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) return false;
  left = both.substr(0, space);
  right = both.substr(space + 1);
  return true;
}

Merges ReadMerges(JsonObject& fields, const Vocabulary& vocabulary) {
  Merges merges;
  const json& list = fields.Value("merges", true);
  if (list.is_null()) return merges;
  if (!list.is_array()) fields.FailAt("merges", list, "a list is expected");
  std::string left, right;
  uint32_t rank = 0;
  for (size_t i = 0; list.is_array() && i < list.size(); ++i) {
    const std::string path = absl::StrCat("merges[", i, "]");
    if (list[i].is_string() && absl::StartsWith(list[i].get_ref<const std::string&>(), "#version")) continue;
    if (list[i].is_array() != list[0].is_array() || !ReadPair(list[i], left, right)) {
      fields.FailAt(path, list[i], "two tokens are expected, in one form for all merges");
      return merges;
    }
    for (const std::string& token : {left, right, left + right}) {
      if (vocabulary.Id(token) >= 0) continue;
      fields.FailAt(path, list[i], absl::StrCat("vocab lacks ", ShowJson(json(token))));
      return merges;
    }
    merges[Pair(vocabulary.Id(left), vocabulary.Id(right))] = {rank++, vocabulary.Id(left + right)};
  }
  return merges;
}

// A field that may be there, but only as a value without effect.
void RefuseValue(JsonObject& fields, const std::string& field, const json& idle) {
  const json& value = fields.Value(field, false);
  if (!value.is_null() && value != idle) {
    fields.FailAt(field, value, absl::StrCat("served are null and ", ShowJson(idle)));
  }
}

bool OptionalBoolean(JsonObject& fields, const std::string& field) {
  return !fields.Value(field, false).is_null() && fields.Boolean(field, false);
}

}  // namespace

absl::StatusOr<std::unique_ptr<WordModel>> ReadBpe(JsonObject& fields) {
  Options options;
  RefuseValue(fields, "dropout", 0.0);
  RefuseValue(fields, "continuing_subword_prefix", "");
  RefuseValue(fields, "end_of_word_suffix", "");
  options.unknown = OptionalString(fields, "unk_token").value_or("");
  options.fuse_unknown = OptionalBoolean(fields, "fuse_unk");
  options.byte_fallback = OptionalBoolean(fields, "byte_fallback");
  options.ignore_merges = OptionalBoolean(fields, "ignore_merges");
  Vocabulary vocabulary = ReadVocabulary(fields);
  Merges merges = ReadMerges(fields, vocabulary);
  RETURN_IF_ERROR(fields.Finish());
  return std::make_unique<Bpe>(std::move(vocabulary), std::move(merges), std::move(options));
}

}  // namespace edgewise::tokenizers
