#include <spng.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>

#include "server/image/codec.h"

namespace edgewise::server {
namespace {

// The signature and the chunks of the pixels: profiles, texts and transparency are skipped, so none is unpacked.
struct Source {
  const uint8_t* next;
  size_t left;       // bytes
  size_t chunk = 8;  // of them before the next chunk; the signature at first
};

// Whole chunks that the pixels do not need; IEND is the end.
void SkipChunks(Source& source) {
  while (source.left >= 8) {
    const uint8_t* at = source.next;
    const size_t length = size_t{at[0]} << 24 | at[1] << 16 | at[2] << 8 | at[3];
    const size_t whole = std::min(12 + length, source.left);
    const std::string_view name(reinterpret_cast<const char*>(at) + 4, 4);
    if (name == "IEND") source.left = 0;
    source.chunk = std::min(whole, source.left);
    if ((name[0] & 0x20) == 0) return;  // critical
    source.next += whole;
    source.left -= whole;
  }
  source.chunk = source.left;
}

int OnRead(spng_ctx*, void* user, void* to, size_t size) {
  Source& source = *static_cast<Source*>(user);
  for (auto* out = static_cast<uint8_t*>(to); size > 0;) {
    if (source.chunk == 0) SkipChunks(source);
    const size_t bytes = std::min({size, source.chunk, source.left});
    if (bytes == 0) return SPNG_IO_EOF;
    std::memcpy(out, source.next, bytes);
    out += bytes;
    size -= bytes;
    source.next += bytes;
    source.left -= bytes;
    source.chunk -= bytes;
  }
  return 0;
}

// Reads the header, and the pixels where there is room for them. 0, or the library's code.
int Read(const uint8_t* bytes, size_t size, CodecHeader& header, uint8_t* pixels) {
  const std::unique_ptr<spng_ctx, decltype(&spng_ctx_free)> png(spng_ctx_new(0), &spng_ctx_free);
  if (png == nullptr) return SPNG_EMEM;
  Source source{bytes, size};
  spng_ihdr found;
  int error = spng_set_png_stream(png.get(), OnRead, &source);
  if (error == 0) error = spng_get_ihdr(png.get(), &found);
  if (error != 0) return error;
  header.width = found.width;
  header.height = found.height;
  header.channels = 3;
  header.gray_16_bits = found.color_type == SPNG_COLOR_TYPE_GRAYSCALE && found.bit_depth == 16;
  if (pixels == nullptr) return 0;
  error = spng_decode_image(png.get(), pixels, size_t{3} * found.width * found.height, SPNG_FMT_RGB8, 0);
  // The checksum of the last pixels is compared on the way to what follows them, which may be missing.
  if (error == 0 && spng_decode_chunks(png.get()) == SPNG_ECHUNK_CRC) error = SPNG_ECHUNK_CRC;
  return error;
}

// Whether there is none.
bool Check(int code, CodecError& error) {
  if (code == 0) return true;
  const char* message = code == SPNG_IO_EOF      ? "the file ends early"
                        : code == SPNG_EOVERFLOW ? "its size is out of range"
                                                 : spng_strerror(code);
  std::strncpy(error.message, message, sizeof error.message - 1);
  return false;
}

}  // namespace

bool ReadPngHeader(const uint8_t* bytes, size_t size, CodecHeader& header, CodecError& error) {
  return Check(Read(bytes, size, header, nullptr), error);
}

bool DecodePng(const uint8_t* bytes, size_t size, uint8_t* pixels, CodecError& error) {
  CodecHeader header;
  return Check(Read(bytes, size, header, pixels), error);
}

}  // namespace edgewise::server
