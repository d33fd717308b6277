// Shared by the two codecs, which write into memory of their callers.
#ifndef EDGEWISE_SERVER_IMAGE_CODEC_H_
#define EDGEWISE_SERVER_IMAGE_CODEC_H_

#include <csetjmp>
#include <cstddef>
#include <cstdint>

namespace edgewise::server {

// The last error of a library; and where to go on, since libjpeg reports errors by longjmp: the functions that call it
// hold nothing that has a destructor.
struct CodecError {
  std::jmp_buf place;
  char message[256] = "";
};

struct CodecHeader {
  uint32_t width = 0, height = 0;
  uint32_t channels = 0;  // bytes of a pixel as `Decode...` writes them: 3 (RGB) or 4 (CMYK)
  bool progressive = false;
  bool gray_16_bits = false;  // PNG
};

// False: error.message says why. `pixels` has room for width x height x channels bytes of the header.
bool ReadPngHeader(const uint8_t* bytes, size_t size, CodecHeader& header, CodecError& error);
bool DecodePng(const uint8_t* bytes, size_t size, uint8_t* pixels, CodecError& error);
bool ReadJpegHeader(const uint8_t* bytes, size_t size, CodecHeader& header, CodecError& error);
bool DecodeJpeg(const uint8_t* bytes, size_t size, uint8_t* pixels, CodecError& error);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_IMAGE_CODEC_H_
