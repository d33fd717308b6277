#include "model/tokenizers/aligned_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace edgewise::tokenizers {
namespace {

// The memory for changing a piece, for each of its bytes: its characters, changes and parts, the old text and the new
// one.
constexpr uint64_t kHeldOfByte = 64;

}  // namespace

absl::StatusOr<AlignedText> AlignedText::Of(std::string_view text, uint32_t begin, Work& work) {
  AlignedText made(begin, work.bounds());
  RETURN_IF_ERROR(made.Grow(text.size(), false, work));
  made.text_ = text;
  return made;
}

Span AlignedText::GivenOrigin(size_t at) const {
  at = std::max<size_t>(at, front_);
  size_t begin = at, end = at + 1;
  while (begin > front_ && ContinuesCharacter(text_[begin])) --begin;
  while (end < text_.size() && ContinuesCharacter(text_[end])) ++end;
  return {static_cast<uint32_t>(base_ + begin - front_), static_cast<uint32_t>(base_ + end - front_)};
}

Span AlignedText::Origin(uint32_t begin, uint32_t end) const {
  if (text_.empty()) return {begin_, begin_};
  const uint32_t last = static_cast<uint32_t>(text_.size()) - 1;
  const Span first = OriginAt(std::min(begin, last));
  return {first.begin, begin >= end ? first.begin : OriginAt(std::min(end - 1, last)).end};
}

absl::Status AlignedText::CheckSize(const Work& work, size_t more) const {
  if (text_.size() <= work.most_bytes && more <= work.most_bytes - text_.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the tokenizer makes more than ", work.most_bytes, " bytes of a part of it before it splits it"));
}

void AlignedText::WriteOrigins() {
  if (!AsGiven()) return;
  const size_t size = text_.size();
  for (size_t at = 0; at < size; ++at) origins_.push_back(GivenOrigin(at));
  front_ = 0;
}

absl::Status AlignedText::Grow(size_t bytes, bool origins, Work& work) {
  RETURN_IF_ERROR(CheckSize(work, bytes - text_.size()));
  const bool text_grows = bytes > text_.capacity(), origins_grow = origins && bytes > origins_.capacity();
  if (!text_grows && !origins_grow) return absl::OkStatus();
  const size_t text = text_grows ? std::max(bytes, text_.empty() ? 0 : 2 * text_.capacity()) : text_.capacity();
  const size_t places = origins_grow ? std::max(bytes, 2 * origins_.capacity()) : origins_.capacity();
  const size_t all = text + places * sizeof(Span);
  if (all > kUncounted) {  // the old ones are held until they are copied
    const size_t old = (text_grows ? text_.capacity() : 0) + (origins_grow ? origins_.capacity() * sizeof(Span) : 0);
    RETURN_IF_ERROR(held_.Resize(all + old));
  }
  if (text_grows) text_.reserve(text);
  if (origins_grow) origins_.reserve(places);
  return all > kUncounted ? held_.Resize(all) : absl::OkStatus();
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
  bool same = skipped == 0;  // whether every byte so far has the origin of that in its place before
  auto differ = [&] {
    if (!std::exchange(same, false)) return;
    origins.reserve(text_.size());
    for (size_t at = 0; at < text.size(); ++at) origins.push_back(OriginAt(at));
  };
  for (const Change& change : changes) {
    const size_t at = change.kind <= 0 ? from : from - std::min<size_t>(from, 1);
    if (change.kind <= 0) skip(1 + static_cast<size_t>(-change.kind));
    const size_t begin = text.size();
    AppendCharacter(change.character, text);
    if (change.kind != 0 || begin != at || text.size() != from) {
      if (same) {
        text.resize(begin);
        differ();
        AppendCharacter(change.character, text);
      }
    }
    if (!same) origins.resize(text.size(), text_.empty() ? Span{} : OriginAt(std::min(at, text_.size() - 1)));
  }
  if (text.size() != text_.size()) differ();
  text_ = std::move(text);
  if (same) return;
  origins_ = std::move(origins);
  front_ = 0;
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

absl::Status AlignedText::Strip(uint32_t begin, uint32_t end, Work& work) {
  if (begin == 0 && end == text_.size()) return absl::OkStatus();
  ASSIGN_OR_RETURN(AlignedText kept, Slice(begin, end, work));
  kept.begin_ = begin_;
  *this = std::move(kept);
  return absl::OkStatus();
}

absl::Status AlignedText::Prepend(std::string_view front, Work& work) {
  if (text_.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(Grow(text_.size() + front.size(), !AsGiven(), work));
  if (AsGiven()) {
    front_ += static_cast<uint32_t>(front.size());
  } else {
    origins_.insert(origins_.begin(), front.size(), Span(origins_.front()));
  }
  text_.insert(0, front);
  return absl::OkStatus();
}

absl::Status AlignedText::Append(const AlignedText& from, uint32_t begin, uint32_t end, Work& work) {
  if (begin == end) return absl::OkStatus();
  const size_t size = text_.size() + (end - begin);
  const bool goes_on = AsGiven() && from.AsGiven() && begin >= from.front_ &&
                       (text_.empty() || base_ + text_.size() - front_ == from.base_ + begin - from.front_);
  RETURN_IF_ERROR(Grow(size, !goes_on, work));
  if (goes_on) {
    if (text_.empty()) base_ = from.base_ + begin - from.front_;
  } else {
    WriteOrigins();
    for (size_t at = begin; at < end; ++at) origins_.push_back(from.OriginAt(at));
  }
  text_.append(from.text_, begin, end - begin);
  return absl::OkStatus();
}

absl::Status AlignedText::Append(std::string_view content, Span origin, Work& work) {
  if (content.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(Grow(text_.size() + content.size(), true, work));
  WriteOrigins();
  text_.append(content);
  origins_.resize(text_.size(), origin);
  return absl::OkStatus();
}

absl::StatusOr<AlignedText> AlignedText::Slice(uint32_t begin, uint32_t end, Work& work) const {
  AlignedText slice(begin_, work.bounds());
  if (begin == end) return slice;
  const bool as_given = AsGiven() && begin >= front_;
  RETURN_IF_ERROR(slice.Grow(end - begin, !as_given, work));
  slice.text_.assign(text_, begin, end - begin);
  slice.begin_ = OriginAt(begin).begin;
  if (as_given) {
    slice.base_ = base_ + begin - front_;
  } else {
    for (size_t at = begin; at < end; ++at) slice.origins_.push_back(OriginAt(at));
  }
  return slice;
}

absl::Status ChangeInPieces(AlignedText& text, Work& work, absl::FunctionRef<bool(char32_t, char32_t)> cuts,
                            absl::FunctionRef<absl::StatusOr<bool>(AlignedText&)> change) {
  const auto size = static_cast<uint32_t>(text.text().size());
  RETURN_IF_ERROR(work.Charge(size / 4 + 16));
  auto change_piece = [&](AlignedText& piece) -> absl::StatusOr<bool> {
    ReservedBytes held(work.bounds());
    const size_t bytes = piece.text().size();
    if (bytes > kWorkPiece / 4) RETURN_IF_ERROR(held.Resize(bytes * kHeldOfByte));
    return change(piece);
  };
  if (size <= work.piece) {
    RETURN_IF_ERROR(change_piece(text).status());
    return text.CheckSize(work);
  }
  AlignedText changed(text.begin(), work.bounds());
  uint32_t same = 0;  // bytes that are not yet in `changed`, since they are as before
  bool any = false;
  for (uint32_t begin = 0, end; begin < size; begin = end) {
    size_t at = std::min<size_t>(size, begin + work.piece);
    while (at < size && ContinuesCharacter(text.text()[at])) ++at;
    char32_t before = at < size ? LastCharacter(std::string_view(text.text()).substr(0, at)) : 0;
    while (at < size) {
      const Character after = CharacterAt(text.text(), at);
      if (cuts(before, after.code)) break;
      before = after.code;
      at += after.bytes;
    }
    end = static_cast<uint32_t>(at);
    RETURN_IF_ERROR(work.Charge(end - begin));
    ASSIGN_OR_RETURN(AlignedText piece, text.Slice(begin, end, work));
    ASSIGN_OR_RETURN(const bool differs, change_piece(piece));
    if (!differs) continue;
    RETURN_IF_ERROR(changed.Append(text, same, begin, work));
    RETURN_IF_ERROR(changed.Append(piece, 0, static_cast<uint32_t>(piece.text().size()), work));
    same = end;
    any = true;
  }
  if (!any) return absl::OkStatus();
  RETURN_IF_ERROR(changed.Append(text, same, size, work));
  text = std::move(changed);
  return absl::OkStatus();
}

}  // namespace edgewise::tokenizers
