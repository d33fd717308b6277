// Shared by the two codecs. Their libraries report errors by longjmp, so the functions that call them hold nothing that
// has a destructor, and write into memory of their callers.
#ifndef EDGEWISE_SERVER_IMAGE_CODEC_H_
#define EDGEWISE_SERVER_IMAGE_CODEC_H_

#include <csetjmp>
#include <cstddef>
#include <cstdint>

namespace edgewise::server {

// The last error of a library, and where to go on.
struct CodecError {
  std::jmp_buf place;
  char message[256] = "";
};

struct CodecHeader {
  uint32_t width = 0, height = 0;
  uint32_t channels = 0;  // bytes of a pixel as `Decode...` writes them: 1 (gray or palette), 3 (RGB) or 4 (CMYK)
  bool progressive = false;
  bool gray_16_bits = false;  // PNG
};

// The colours of a PNG: three bytes each.
struct Palette {
  uint8_t colours[256 * 3] = {};
  bool used = false;
};

// False: error.message says why. `pixels` has room for width x height x channels bytes of the header.
bool ReadPngHeader(const uint8_t* bytes, size_t size, CodecHeader& header, CodecError& error);
bool DecodePng(const uint8_t* bytes, size_t size, uint8_t* pixels, Palette& palette, CodecError& error);
bool ReadJpegHeader(const uint8_t* bytes, size_t size, CodecHeader& header, CodecError& error);
bool DecodeJpeg(const uint8_t* bytes, size_t size, uint8_t* pixels, CodecError& error);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_IMAGE_CODEC_H_
