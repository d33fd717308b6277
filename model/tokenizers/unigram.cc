// Unigram: the tokens whose log probabilities have the greatest sum.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "model/tokenizers/byte_trie.h"
#include "model/tokenizers/fields.h"
#include "model/tokenizers/word_model.h"

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

  absl::Status Tokenize(std::string_view word, Work& work, TokenSink& sink) const override {
    Path path(*this, word, work, sink);
    return path.Run();
  }

  std::string_view Text(const Token& token, std::string_view word) const override {
    return token.id == unknown_ ? word.substr(token.begin, token.end - token.begin) : WordModel::Text(token, word);
  }

 private:
  // Viterbi, left to right; of equal sums the one found first stays. A place that no token reaches over parts the word:
  // what is before it is settled there, and held no longer.
  class Path {
   public:
    Path(const Unigram& model, std::string_view word, Work& work, TokenSink& sink)
        : model_(model), word_(word), work_(work), sink_(sink), nodes_(work.bounds()), settled_(work.bounds()) {}

    absl::Status Run() {
      RETURN_IF_ERROR(nodes_.Reserve(std::min(word_.size() + 1, kUncounted / sizeof(Node))));
      RETURN_IF_ERROR(Reach(0, 0, 0.0, kStart));
      size_t known = 0;  // bytes since base_ of characters that are tokens: no token has more than the longest one
      for (size_t begin = 0; begin < word_.size();) {
        const double before = nodes_.values()[begin - base_].score;
        const uint32_t bytes = CharacterAt(word_, begin).bytes;
        bool single = false;  // whether the character is a token
        absl::Status status;
        const size_t read = model_.trie_.Prefixes(word_.substr(begin), [&](size_t length, int32_t id) {
          if (status.ok()) status = Reach(begin, begin + length, model_.scores_[id] + before, id);
          single |= length == bytes;
          names_unknown_ |= id == model_.unknown_;
        });
        RETURN_IF_ERROR(status);
        RETURN_IF_ERROR(work_.Charge(8 * read + 8));
        if (!single) {
          if (model_.unknown_ < 0) {
            return absl::InvalidArgumentError(absl::StrCat("the tokenizer's vocabulary lacks the character at byte ",
                                                           begin, " of a word, and model.unk_id is null"));
          }
          RETURN_IF_ERROR(Reach(begin, begin + bytes, model_.unknown_score_ + before, model_.unknown_));
        }
        known += single ? bytes : 0;
        begin += bytes;
        if (begin == base_ + nodes_.values().size() - 1) {
          RETURN_IF_ERROR(Settle());
          known = 0;
        } else if (!names_unknown_ && known > kUncounted) {  // unknown characters are fused, in any number
          RETURN_IF_ERROR(sink_.AtLeast(known / model_.vocabulary().longest()));
        }
      }
      return HandOn();
    }

   private:
    static constexpr int32_t kStart = -2, kNever = -1;
    struct Node {  // the best path that ends before this byte
      double score = 0.0;
      int32_t id = kNever;
      uint32_t begin = 0;
    };

    absl::Status Reach(size_t begin, size_t end, double score, int32_t id) {
      std::vector<Node>& nodes = nodes_.values();
      if (end - base_ >= nodes.size()) {
        RETURN_IF_ERROR(nodes_.Reserve(end - base_ + 1));
        nodes.resize(end - base_ + 1);
      }
      Node& node = nodes[end - base_];
      if (node.id == kNever || score > node.score) node = {score, id, static_cast<uint32_t>(begin)};
      return absl::OkStatus();
    }

    // Pushes the tokens between base_ and the last node, which then is the first one.
    absl::Status Settle() {
      std::vector<Node>& nodes = nodes_.values();
      settled_.values().clear();
      for (size_t end = base_ + nodes.size() - 1; end > base_; end = nodes[end - base_].begin) {
        const Node& node = nodes[end - base_];
        RETURN_IF_ERROR(settled_.Push({node.id, node.begin, static_cast<uint32_t>(end)}));
      }
      for (auto token = settled_.values().rbegin(); token != settled_.values().rend(); ++token) {
        // Unknown characters side by side are one token.
        if (token->id == model_.unknown_ && unknown_.end > unknown_.begin) {
          unknown_.end = token->end;
          continue;
        }
        RETURN_IF_ERROR(HandOn());
        if (token->id == model_.unknown_) {
          unknown_ = *token;
        } else {
          RETURN_IF_ERROR(sink_.Push(*token));
        }
      }
      base_ += nodes.size() - 1;
      nodes[0] = nodes.back();
      nodes.resize(1);
      return absl::OkStatus();
    }

    // Pushes what is unknown so far.
    absl::Status HandOn() {
      const Token token = std::exchange(unknown_, Token());
      if (token.begin == token.end) return absl::OkStatus();
      const std::string_view text = word_.substr(token.begin, token.end - token.begin);
      const int32_t id = model_.vocabulary().Id(text);
      if (id >= 0) return sink_.Push({id, token.begin, token.end});
      if (!model_.byte_fallback_ || !model_.HasBytes(text))
        return sink_.Push({model_.unknown_, token.begin, token.end});
      for (const char byte : text) {
        RETURN_IF_ERROR(sink_.Push({model_.bytes_[static_cast<uint8_t>(byte)], token.begin, token.end}));
      }
      return absl::OkStatus();
    }

    const Unigram& model_;
    const std::string_view word_;
    Work& work_;
    TokenSink& sink_;
    Counted<Node> nodes_;  // from byte base_ of the word on
    size_t base_ = 0;
    Counted<Token> settled_;
    Token unknown_;
    bool names_unknown_ = false;  // whether the word spells the unknown token
  };

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
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number() ||
        !std::isfinite(entry[1].get<double>())) {
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
