// Unigram: the tokens whose log probabilities have the greatest sum.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/tokenizers/byte_trie.h"
#include "model/tokenizers/fields.h"
#include "model/tokenizers/utf8.h"
#include "model/tokenizers/word_model.h"
#include "text/status_macros.h"

namespace edgewise::tokenizers {
namespace {

using nlohmann::json;

constexpr double kUnknownPenalty = 10.0;  // below the least probable token

class Unigram : public WordModel {
 public:
  // `scores`: of each id. `unknown` -1: there is none.
  Unigram(Vocabulary vocabulary, std::vector<double> scores, int32_t unknown, bool byte_fallback)
      : WordModel(std::move(vocabulary)), scores_(std::move(scores)), unknown_(unknown), byte_fallback_(byte_fallback) {
    unknown_score_ = std::numeric_limits<double>::infinity();
    for (const double score : scores_) unknown_score_ = std::min(unknown_score_, score);
    unknown_score_ -= kUnknownPenalty;
    for (int32_t id = 0; id <= this->vocabulary().most_id(); ++id) {
      const std::string& token = *this->vocabulary().Token(id);
      if (!token.empty()) trie_.Add(token, this->vocabulary().Id(token));
    }
    for (int byte = 0; byte < 256; ++byte) bytes_[byte] = this->vocabulary().Id(absl::StrFormat("<0x%02X>", byte));
  }

  absl::Status Tokenize(std::string_view word, std::vector<Token>& tokens) const override {
    ASSIGN_OR_RETURN(const std::vector<Token> path, BestPath(word));
    for (size_t i = 0; i < path.size();) {
      const size_t first = i++;
      // Unknown characters side by side are one token.
      while (path[first].id == unknown_ && i < path.size() && path[i].id == unknown_) ++i;
      const uint32_t begin = path[first].begin, end = path[i - 1].end;
      const std::string_view text = word.substr(begin, end - begin);
      const int32_t id = vocabulary().Id(text);
      if (id >= 0) {
        tokens.push_back({id, begin, end});
      } else if (byte_fallback_ && HasBytes(text)) {
        for (const char byte : text) tokens.push_back({bytes_[static_cast<uint8_t>(byte)], begin, end});
      } else {
        tokens.push_back({unknown_, begin, end});
      }
    }
    return absl::OkStatus();
  }

  std::string_view Text(const Token& token, std::string_view word) const override {
    return token.id == unknown_ ? word.substr(token.begin, token.end - token.begin) : WordModel::Text(token, word);
  }

 private:
  // Viterbi, left to right; of equal sums the one found first stays.
  absl::StatusOr<std::vector<Token>> BestPath(std::string_view word) const {
    struct Node {  // the best path that ends before this byte
      double score = 0.0;
      int32_t id = -1;
      uint32_t begin = 0;
      bool reached = false;
    };
    std::vector<Node> nodes(word.size() + 1);
    auto reach = [&](size_t begin, size_t end, double score, int32_t id) {
      Node& node = nodes[end];
      if (!node.reached || score > node.score) node = {score, id, static_cast<uint32_t>(begin), true};
    };
    for (size_t begin = 0; begin < word.size();) {
      const double before = nodes[begin].score;
      const uint32_t bytes = CharacterAt(word, begin).bytes;
      bool single = false;  // whether the character is a token
      trie_.Prefixes(word.substr(begin), [&](size_t length, int32_t id) {
        reach(begin, begin + length, scores_[id] + before, id);
        single |= length == bytes;
      });
      if (!single) {
        if (unknown_ < 0) {
          return absl::InvalidArgumentError(absl::StrCat("the tokenizer's vocabulary lacks the character at byte ",
                                                         begin, " of a word, and model.unk_id is null"));
        }
        reach(begin, begin + bytes, unknown_score_ + before, unknown_);
      }
      begin += bytes;
    }
    std::vector<Token> path;
    for (auto end = static_cast<uint32_t>(word.size()); end > 0; end = nodes[end].begin) {
      path.push_back({nodes[end].id, nodes[end].begin, end});
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

  bool HasBytes(std::string_view text) const {
    return std::all_of(text.begin(), text.end(), [&](char byte) { return bytes_[static_cast<uint8_t>(byte)] >= 0; });
  }

  const std::vector<double> scores_;
  const int32_t unknown_;
  const bool byte_fallback_;
  double unknown_score_;
  ByteTrie trie_;
  int32_t bytes_[256];  // the tokens <0x00> to <0xFF>; -1: there is none
};

}  // namespace

absl::StatusOr<std::unique_ptr<WordModel>> ReadUnigram(JsonObject& fields) {
  Vocabulary vocabulary;
  std::vector<double> scores;
  const json& list = fields.Value("vocab", true);
  if (!list.is_null() && (!list.is_array() || list.empty() || list.size() > static_cast<size_t>(kMostIds))) {
    fields.FailAt("vocab", list, absl::StrCat("a list of 1 to ", kMostIds, " pairs of token and score is expected"));
  }
  for (size_t i = 0; list.is_array() && i < list.size() && i < static_cast<size_t>(kMostIds); ++i) {
    const json& entry = list[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      fields.FailAt(absl::StrCat("vocab[", i, "]"), entry, "a pair of token and score is expected");
      break;
    }
    vocabulary.Add(entry[0].get<std::string>(), static_cast<int32_t>(i));
    scores.push_back(entry[1].get<double>());
  }
  int32_t unknown = -1;
  if (!fields.Value("unk_id", false).is_null() && !scores.empty()) {
    unknown = fields.Integer("unk_id", 0, static_cast<int32_t>(scores.size()) - 1);
  }
  const bool byte_fallback = fields.Boolean("byte_fallback", false);
  RETURN_IF_ERROR(fields.Finish());
  return std::make_unique<Unigram>(std::move(vocabulary), std::move(scores), unknown, byte_fallback);
}

}  // namespace edgewise::tokenizers
