#include "server/http/body.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace edgewise::server {
namespace {

constexpr size_t kMaxDigits = 16;  // of 64 bits

}  // namespace

BodyReader BodyReader::OfLength(uint64_t bytes) { return BodyReader(false, bytes, bytes); }
BodyReader BodyReader::OfChunks(uint64_t most) { return BodyReader(true, 0, most); }

size_t BodyReader::Read(std::string_view bytes, std::string& body) {
  size_t at = 0;
  while (at < bytes.size() && !done() && refusal_.code == 0) {
    if (part_ != Part::kData) {
      Step(bytes[at++]);
      continue;
    }
    const std::string_view data = bytes.substr(at, left_);
    body.append(data);
    at += data.size();
    left_ -= data.size();
    if (left_ == 0) part_ = chunked_ ? Part::kDataReturn : Part::kDone;
  }
  return at;
}

void BodyReader::Step(char c) {
  switch (part_) {
    case Part::kSize:
    case Part::kSpace:
      return StepSize(c);
    case Part::kExtension:
      return c == '\r' ? void(part_ = Part::kSizeEnd) : Extra(c);
    case Part::kSizeEnd:
      Expect(c, '\n', Part::kData);
      return refusal_.code == 0 ? BeginChunk() : void();
    case Part::kDataReturn:
      return Expect(c, '\r', Part::kDataEnd);
    case Part::kDataEnd:
      size_ = digits_ = 0;
      return Expect(c, '\n', Part::kSize);
    case Part::kTrailer:
      return StepTrailer(c);
    case Part::kTrailerEnd:
      line_ = 0;
      has_colon_ = false;
      return Expect(c, '\n', Part::kTrailer);
    case Part::kLastLineEnd:
      return Expect(c, '\n', Part::kDone);
    case Part::kData:
    case Part::kDone:
      return;
  }
}

void BodyReader::StepSize(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (part_ == Part::kSize && absl::ascii_isxdigit(byte)) {
    if (++digits_ > kMaxDigits) return Bad("the size of a chunk has more than 16 digits");
    size_ = size_ * 16 + static_cast<uint64_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    return;
  }
  if (digits_ == 0) return Bad("a chunk does not begin with its size");
  if (c == ';' || c == ' ' || c == '\t') {
    part_ = c == ';' ? Part::kExtension : Part::kSpace;
    return Extra(c);
  }
  c == '\r' && part_ == Part::kSize ? void(part_ = Part::kSizeEnd)
                                    : Bad("the size of a chunk ends neither with CR LF nor with an extension");
}

void BodyReader::BeginChunk() {
  if (size_ == 0) {
    part_ = Part::kTrailer;
  } else if (size_ > most_ - taken_) {
    refusal_ = {413, absl::ResourceExhaustedError(absl::StrCat("the body has a chunk of ", size_, " bytes behind ",
                                                               taken_, " others; the server takes at most ", most_))};
  } else {
    taken_ += size_;
    left_ = size_;
  }
}

void BodyReader::StepTrailer(char c) {
  if (c == '\r') {
    if (line_ > 0 && !has_colon_) return Bad("a line after the last chunk is not a field");
    part_ = line_ > 0 ? Part::kTrailerEnd : Part::kLastLineEnd;
    return;
  }
  if (line_ == 0 && (c == ' ' || c == '\t' || c == ':')) return Bad("a line after the last chunk is not a field");
  ++line_;
  has_colon_ |= c == ':';
  Extra(c);
}

void BodyReader::Expect(char c, char expected, Part next) {
  if (c != expected) return Bad("a line of the chunks does not end with CR LF");
  part_ = next;
}

void BodyReader::Extra(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (absl::ascii_iscntrl(byte) && c != '\t') return Bad("a line of the chunks has a control character");
  if (++extras_ > kMaxChunkExtras) {
    refusal_ = {431, absl::InvalidArgumentError(absl::StrCat(
                         "the extensions and trailers of the body's chunks have over ", kMaxChunkExtras, " bytes"))};
  }
}

void BodyReader::Bad(const char* why) {
  refusal_ = {400, absl::InvalidArgumentError(absl::StrCat("the body's chunks are broken: ", why))};
}

}  // namespace edgewise::server
