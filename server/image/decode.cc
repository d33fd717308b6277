#include "server/image/decode.h"

#include <algorithm>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/image/codec.h"

namespace edgewise::server {
namespace {

constexpr std::string_view kPng("\x89PNG\r\n\x1a\n", 8), kJpeg("\xff\xd8\xff", 3);
// A codec's own memory: rows, tables; and of a JPEG of several scans a coefficient of two bytes for every sample.
constexpr uint64_t kCodecBytes = uint64_t{8} << 20, kScanBytes = 8;

bool Begins(const std::string& bytes, std::string_view with) { return bytes.compare(0, with.size(), with) == 0; }

const uint8_t* Data(const std::string& bytes) { return reinterpret_cast<const uint8_t*>(bytes.data()); }

absl::Status Broken(const char* format, const CodecError& error) {
  return absl::InvalidArgumentError(
      absl::StrCat("is no ", format, " that can be read: ", absl::CHexEscape(error.message)));
}

absl::StatusOr<CodecHeader> ReadHeader(const std::string& bytes) {
  CodecHeader header;
  CodecError error;
  if (Begins(bytes, kPng)) {
    if (!ReadPngHeader(Data(bytes), bytes.size(), header, error)) return Broken("PNG", error);
  } else if (Begins(bytes, kJpeg)) {
    if (!ReadJpegHeader(Data(bytes), bytes.size(), header, error)) return Broken("JPEG", error);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes.empty() ? "is empty" : "has the bytes of another format", "; PNG and JPEG are served"));
  }
  if (header.width > kMaxImageSide || header.height > kMaxImageSide ||
      uint64_t{header.width} * header.height > kMaxImagePixels) {
    return absl::InvalidArgumentError(absl::StrCat("has ", header.width, " x ", header.height, " pixels; at most ",
                                                   kMaxImageSide, " a side and ", kMaxImagePixels,
                                                   " in all are served"));
  }
  if (header.gray_16_bits) {
    return absl::InvalidArgumentError("is a gray PNG of 16 bits; 1, 2, 4 and 8 are served, and 16 with colours");
  }
  return header;
}

// Bytes of CMYK, which files hold inverted, as Pillow makes RGB of them.
void FromCmyk(const std::vector<uint8_t>& cmyk, std::vector<uint8_t>& rgb) {
  for (size_t pixel = 0; 4 * pixel < cmyk.size(); ++pixel) {
    const int light = cmyk[4 * pixel + 3];
    for (size_t channel = 0; channel < 3; ++channel) {
      const int product = (255 - cmyk[4 * pixel + channel]) * light + 128;  // divided by 255, rounded
      rgb[3 * pixel + channel] = static_cast<uint8_t>(std::clamp(light - (((product >> 8) + product) >> 8), 0, 255));
    }
  }
}

}  // namespace

absl::StatusOr<ImageHeader> ReadImageHeader(const std::string& bytes) {
  ASSIGN_OR_RETURN(const CodecHeader header, ReadHeader(bytes));
  ImageHeader image{static_cast<int32_t>(header.width), static_cast<int32_t>(header.height)};
  const uint64_t decoded = header.channels == 4 ? 4 : 0;
  // Coefficients stand in blocks of up to 32 x 32 pixels.
  const uint64_t blocks = uint64_t{header.width + 31} * (header.height + 31);
  image.bytes = image.pixels() * (3 + decoded) + (header.progressive ? blocks * kScanBytes : 0) + kCodecBytes;
  return image;
}

absl::StatusOr<RgbImage> DecodeImage(const std::string& bytes) {
  ASSIGN_OR_RETURN(const CodecHeader header, ReadHeader(bytes));
  try {
    const size_t pixels = size_t{header.width} * header.height;
    RgbImage image{static_cast<int32_t>(header.width), static_cast<int32_t>(header.height), {}};
    image.pixels.resize(3 * pixels);
    std::vector<uint8_t> cmyk(header.channels == 4 ? 4 * pixels : 0);
    uint8_t* room = cmyk.empty() ? image.pixels.data() : cmyk.data();
    CodecError error;
    if (Begins(bytes, kPng)) {
      if (!DecodePng(Data(bytes), bytes.size(), room, error)) return Broken("PNG", error);
    } else if (!DecodeJpeg(Data(bytes), bytes.size(), room, error)) {
      return Broken("JPEG", error);
    }
    if (header.channels == 4) FromCmyk(cmyk, image.pixels);
    return image;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("has no room in memory as pixels");
  }
}

}  // namespace edgewise::server
