#include "model/tokenizers/aligned_text.h"

#include <algorithm>
#include <utility>

namespace edgewise::tokenizers {
namespace {

// The parts that stay after a split, each of neighbouring parts.
std::vector<Span> Kept(const std::vector<Part>& parts, SplitBehavior behavior) {
  std::vector<Span> kept;
  bool before = false;  // whether the part before was a match
  switch (behavior) {
    case SplitBehavior::kRemoved:
      for (const Part& part : parts) {
        if (!part.matched) kept.push_back({part.begin, part.end});
      }
      break;
    case SplitBehavior::kIsolated:
      for (const Part& part : parts) kept.push_back({part.begin, part.end});
      break;
    case SplitBehavior::kContiguous:
    case SplitBehavior::kMergedWithPrevious:
      for (const Part& part : parts) {
        const bool joins = behavior == SplitBehavior::kContiguous ? part.matched == before : part.matched && !before;
        if (joins && !kept.empty()) {
          kept.back().end = part.end;
        } else {
          kept.push_back({part.begin, part.end});
        }
        before = part.matched;
      }
      break;
    case SplitBehavior::kMergedWithNext:
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->matched && !before && !kept.empty()) {
          kept.back().begin = part->begin;
        } else {
          kept.push_back({part->begin, part->end});
        }
        before = part->matched;
      }
      std::reverse(kept.begin(), kept.end());
      break;
  }
  return kept;
}

}  // namespace

AlignedText::AlignedText(std::string text) : text_(std::move(text)) {
  origins_.reserve(text_.size());
  for (size_t at = 0; at < text_.size();) {
    const uint32_t begin = static_cast<uint32_t>(at);
    at += CharacterAt(text_, at).bytes;
    origins_.resize(at, {begin, static_cast<uint32_t>(at)});
  }
}

Span AlignedText::Origin(uint32_t begin, uint32_t end) const {
  if (origins_.empty()) return {begin_, begin_};
  const uint32_t last = static_cast<uint32_t>(origins_.size()) - 1;
  if (begin >= end) return {origins_[std::min(begin, last)].begin, origins_[std::min(begin, last)].begin};
  return {origins_[std::min(begin, last)].begin, origins_[std::min(end - 1, last)].end};
}

void AlignedText::Transform(const std::vector<Change>& changes, size_t skipped) {
  size_t from = 0;  // the byte of the old text that the next character replaces
  auto skip = [&](size_t characters) {
    for (; characters > 0 && from < text_.size(); --characters) from += CharacterAt(text_, from).bytes;
  };
  skip(skipped);
  std::string text;
  std::vector<Span> origins;
  text.reserve(text_.size());
  origins.reserve(text_.size());
  for (const Change& change : changes) {
    Span origin;
    if (!origins_.empty()) {
      const size_t at = change.kind <= 0 ? from : from - std::min<size_t>(from, 1);
      origin = origins_[std::min(at, origins_.size() - 1)];
    }
    if (change.kind <= 0) skip(1 + static_cast<size_t>(-change.kind));
    AppendCharacter(change.character, text);
    origins.resize(text.size(), origin);
  }
  text_ = std::move(text);
  origins_ = std::move(origins);
}

void AlignedText::FilterBy(const std::vector<char32_t>& characters, const std::vector<bool>& kept) {
  std::vector<Change> changes;
  size_t skipped = 0;
  for (size_t i = 0; i < characters.size(); ++i) {
    if (kept[i]) {
      changes.push_back({characters[i], 0});
    } else if (changes.empty()) {
      ++skipped;
    } else {
      --changes.back().kind;
    }
  }
  Transform(changes, skipped);
}

void AlignedText::Prepend(const std::vector<char32_t>& characters) {
  if (text_.empty()) return;
  const Span first = origins_.front();
  std::string front;
  for (const char32_t c : characters) AppendCharacter(c, front);
  origins_.insert(origins_.begin(), front.size(), first);
  text_.insert(0, front);
}

void AlignedText::Replace(const std::vector<Part>& parts, std::string_view content) {
  std::string text;
  std::vector<Span> origins;
  for (const Part& part : parts) {
    if (!part.matched) {
      text.append(text_, part.begin, part.end - part.begin);
      origins.insert(origins.end(), origins_.begin() + part.begin, origins_.begin() + part.end);
      continue;
    }
    text.append(content);
    origins.resize(text.size(), part.end == 0 ? Span{} : origins_[part.end - 1]);
  }
  text_ = std::move(text);
  origins_ = std::move(origins);
}

AlignedText AlignedText::Slice(uint32_t begin, uint32_t end) const {
  AlignedText slice;
  slice.text_ = text_.substr(begin, end - begin);
  slice.origins_.assign(origins_.begin() + begin, origins_.begin() + end);
  slice.begin_ = begin < end ? origins_[begin].begin : begin_;
  return slice;
}

std::vector<AlignedText> AlignedText::Split(const std::vector<Part>& parts, SplitBehavior behavior) const {
  std::vector<AlignedText> pieces;
  for (const Span& span : Kept(parts, behavior)) pieces.push_back(Slice(span.begin, span.end));
  return pieces;
}

}  // namespace edgewise::tokenizers
