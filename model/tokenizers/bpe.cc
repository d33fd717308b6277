// Byte-pair encoding: characters, then the pair of neighbours whose merge comes first in the list, again and again.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "model/tokenizers/fields.h"
#include "model/tokenizers/word_model.h"

namespace edgewise::tokenizers {
namespace {

using nlohmann::json;

struct Merge {
  uint32_t rank = 0;
  int32_t merged = 0;  // the id of both together
};

uint64_t Pair(int32_t left, int32_t right) { return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right); }
constexpr size_t kMany = 64 << 10;  // symbols of a word
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

  absl::Status Tokenize(std::string_view word, Work& work, TokenSink& sink) const override {
    if (options_.ignore_merges) {
      const int32_t id = vocabulary().Id(word);
      if (id >= 0) return sink.Push({id, 0, static_cast<uint32_t>(word.size())});
    }
    Counted<Symbol> symbols(work.bounds());
    RETURN_IF_ERROR(Symbols(word, work, sink, symbols));
    RETURN_IF_ERROR(MergeAll(work, symbols.values()));
    uint32_t at = 0;
    for (const Symbol& symbol : symbols.values()) {
      if (symbol.bytes == 0) continue;
      RETURN_IF_ERROR(sink.Push({symbol.id, at, at + symbol.bytes}));
      at += symbol.bytes;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Symbols(std::string_view word, Work& work, TokenSink& sink, Counted<Symbol>& symbols) const {
    if (word.size() * sizeof(Symbol) <= kUncounted) RETURN_IF_ERROR(symbols.Reserve(word.size()));
    uint32_t unknown_bytes = 0;  // of unknown characters that have no symbol yet
    size_t next = kUncounted;    // where to ask whether the work goes on
    size_t known = 0;            // bytes of characters that are tokens: no token has more than the longest one
    auto add = [&](int32_t id, uint32_t bytes) { return symbols.Push({id, bytes}); };
    auto add_unknown = [&] {
      const uint32_t bytes = std::exchange(unknown_bytes, 0);
      return bytes > 0 ? add(unknown_, bytes) : absl::OkStatus();
    };
    for (size_t at = 0; at < word.size();) {
      const uint32_t bytes = CharacterAt(word, at).bytes;
      const std::string_view character = word.substr(at, bytes);
      at += bytes;
      const int32_t id = vocabulary().Id(character);
      if (id >= 0) {
        RETURN_IF_ERROR(add_unknown());
        RETURN_IF_ERROR(add(id, bytes));
        known += bytes;
      } else if (options_.byte_fallback && HasBytes(character)) {
        // A pending unknown character stays pending, as it does in `tokenizers`.
        for (const char byte : character) RETURN_IF_ERROR(add(bytes_[static_cast<uint8_t>(byte)], 1));
        known += bytes;
      } else if (!options_.unknown.empty()) {
        if (unknown_ < 0) {
          return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: model.unk_token is \"", options_.unknown,
                                                         "\", which model.vocab lacks; this text needs it"));
        }
        if (!options_.fuse_unknown) RETURN_IF_ERROR(add_unknown());
        unknown_bytes += bytes;
      }  // else the character is dropped, as `tokenizers` does
      if (at < next) continue;
      next = at + kUncounted;
      // Short of this a text that is too long is refused before it takes much; then growth would take twice as much.
      if (symbols.values().size() > kMany) {
        RETURN_IF_ERROR(symbols.Reserve(symbols.values().size() + word.size() - at));
      }
      RETURN_IF_ERROR(work.Charge(8 * kUncounted));
      RETURN_IF_ERROR(sink.AtLeast(known / std::max<size_t>(vocabulary().longest(), 1)));
    }
    return add_unknown();
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

  absl::Status MergeAll(Work& work, std::vector<Symbol>& symbols) const {
    Counted<Candidate> queue(work.bounds());  // a heap
    std::vector<Candidate>& candidates = queue.values();
    const auto count = static_cast<int32_t>(symbols.size());
    if (symbols.size() > kMany) RETURN_IF_ERROR(queue.Reserve(symbols.size()));
    for (int32_t i = 0; i < count; ++i) {
      symbols[i].before = i - 1;
      symbols[i].after = i + 1 < count ? i + 1 : -1;
      const Merge* merge = i + 1 < count ? Find(symbols[i], symbols[i + 1]) : nullptr;
      if (merge != nullptr) RETURN_IF_ERROR(queue.Push({merge->rank, i}));
    }
    std::make_heap(candidates.begin(), candidates.end());
    auto consider = [&](int32_t left, int32_t right) -> absl::Status {
      if (left < 0 || right < 0) return absl::OkStatus();
      const Merge* merge = Find(symbols[left], symbols[right]);
      if (merge == nullptr) return absl::OkStatus();
      RETURN_IF_ERROR(queue.Push({merge->rank, left}));
      std::push_heap(candidates.begin(), candidates.end());
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(work.Charge(8 * symbols.size()));
    while (!candidates.empty()) {
      RETURN_IF_ERROR(work.Charge(32));
      std::pop_heap(candidates.begin(), candidates.end());
      const Candidate next = candidates.back();
      candidates.pop_back();
      Symbol& left = symbols[next.at];
      if (left.bytes == 0 || left.after < 0) continue;
      Symbol& right = symbols[left.after];
      const Merge* merge = Find(left, right);
      if (merge == nullptr || merge->rank != next.rank) continue;  // a neighbour has changed since
      left.id = merge->merged;
      left.bytes += right.bytes;
      left.after = right.after;
      right.bytes = 0;
      if (left.after >= 0) symbols[left.after].before = next.at;
      RETURN_IF_ERROR(consider(left.before, next.at));
      RETURN_IF_ERROR(consider(next.at, left.after));
    }
    return absl::OkStatus();
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
