// A set of byte strings, each with a number, in which the beginnings of a text are found.
#ifndef EDGEWISE_MODEL_TOKENIZERS_BYTE_TRIE_H_
#define EDGEWISE_MODEL_TOKENIZERS_BYTE_TRIE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace edgewise::tokenizers {

// Immutable once it is filled; may then be used from any thread.
class ByteTrie {
 public:
  // `key` is not empty, `value` not negative. Whether the key was new; a later value takes the place of an earlier one.
  bool Add(std::string_view key, int32_t value) {
    uint32_t node = 0;
    begins_[static_cast<uint8_t>(key[0])] = true;
    for (const char byte : key) {
      const auto [child, added] = children_.try_emplace(Edge(node, byte), static_cast<uint32_t>(values_.size()));
      node = child->second;
      if (added) values_.push_back(-1);
    }
    const bool is_new = values_[node] < 0;
    values_[node] = value;
    return is_new;
  }

  // Calls `found(bytes, value)` for every key that `text` begins with, the shortest first. Returns the bytes read.
  template <typename Found>
  size_t Prefixes(std::string_view text, Found found) const {
    if (text.empty() || !begins_[static_cast<uint8_t>(text[0])]) return 0;
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto child = children_.find(Edge(node, text[i]));
      if (child == children_.end()) return i;
      node = child->second;
      if (values_[node] >= 0) found(i + 1, values_[node]);
    }
    return text.size();
  }

  bool empty() const { return children_.empty(); }

 private:
  static uint64_t Edge(uint32_t node, char byte) {
    return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte);
  }

  absl::flat_hash_map<uint64_t, uint32_t> children_;
  bool begins_[256] = {};               // whether a key begins with the byte
  std::vector<int32_t> values_ = {-1};  // of each node; -1: no key ends there
};

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_BYTE_TRIE_H_
