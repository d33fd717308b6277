// PNG and JPEG files of strangers as pixels.
#ifndef EDGEWISE_SERVER_IMAGE_DECODE_H_
#define EDGEWISE_SERVER_IMAGE_DECODE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/image/rgb_image.h"

namespace edgewise::server {

// The longest side of an image, pixels; and the most pixels of all images of one request. They bound the time that
// decoding takes, of any bytes: a pixel takes some nanoseconds.
inline constexpr int32_t kMaxImageSide = 16384;
inline constexpr uint64_t kMaxImagePixels = uint64_t{1} << 25;

struct ImageHeader {
  int32_t width = 0, height = 0;  // pixels, from 1 to kMaxImageSide
  uint64_t bytes = 0;             // of memory that DecodeImage takes at most, its result included
  uint64_t pixels() const { return static_cast<uint64_t>(width) * static_cast<uint64_t>(height); }
};

// Reads what stands before the pixels. INVALID_ARGUMENT: no PNG or JPEG, broken, too large, or of a kind that is not
// served; the message is what follows "image ". Any thread.
absl::StatusOr<ImageHeader> ReadImageHeader(const std::string& bytes);

// The pixels, as Pillow's Image.open(...).convert("RGB") has them: alpha is left out, EXIF and gamma are not looked at.
// A PNG has these bytes exactly; a JPEG is decoded as the installed libjpeg does it, without warnings about extra
// bytes, but with all that pixels need. Check the size first (ReadImageHeader). INVALID_ARGUMENT as there;
// RESOURCE_EXHAUSTED: no memory.
absl::StatusOr<RgbImage> DecodeImage(const std::string& bytes);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_IMAGE_DECODE_H_
