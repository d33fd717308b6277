#include <png.h>

#include <cstring>

#include "server/image/codec.h"

namespace edgewise::server {
namespace {

struct Input {
  const uint8_t* next = nullptr;
  size_t left = 0;
};

[[noreturn]] void OnError(png_structp png, png_const_charp message) {
  auto* error = static_cast<CodecError*>(png_get_error_ptr(png));
  std::strncpy(error->message, message, sizeof error->message - 1);
  std::longjmp(error->place, 1);
}

void OnWarning(png_structp, png_const_charp) {}

void OnRead(png_structp png, png_bytep to, size_t size) {
  auto* input = static_cast<Input*>(png_get_io_ptr(png));
  if (size > input->left) png_error(png, "the file ends early");
  std::memcpy(to, input->next, size);
  input->next += size;
  input->left -= size;
}

// Reads up to the pixels.
void ReadInfo(png_structp png, png_infop info, Input& input) {
  png_set_read_fn(png, &input, OnRead);
  png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // ReadHeader compares with ours, and says so
  png_set_chunk_malloc_max(png, 1 << 20);
  // Only the chunks of the pixels are read: profiles, texts and transparency are skipped, so none is unpacked.
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(png, info);
}

void FillHeader(png_structp png, png_infop info, CodecHeader& header) {
  header.width = png_get_image_width(png, info);
  header.height = png_get_image_height(png, info);
  const int colour = png_get_color_type(png, info);
  header.channels = colour == PNG_COLOR_TYPE_RGB || colour == PNG_COLOR_TYPE_RGB_ALPHA ? 3 : 1;
  header.gray_16_bits = colour == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png, info) == 16;
}

void ReadPixels(png_structp png, png_infop info, const CodecHeader& header, uint8_t* pixels, Palette& palette) {
  const int colour = png_get_color_type(png, info);
  if (colour == PNG_COLOR_TYPE_PALETTE) {
    // Colours beyond the palette stay black, as Pillow has them.
    png_colorp colours = nullptr;
    int count = 0;
    png_get_PLTE(png, info, &colours, &count);
    for (int i = 0; i < count; ++i) {
      palette.colours[3 * i] = colours[i].red;
      palette.colours[3 * i + 1] = colours[i].green;
      palette.colours[3 * i + 2] = colours[i].blue;
    }
    palette.used = true;
    png_set_packing(png);  // one index a byte
  } else {
    png_set_expand_gray_1_2_4_to_8(png);
    png_set_strip_16(png);  // the high byte
    png_set_strip_alpha(png);
  }
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  const size_t stride = png_get_rowbytes(png, info);
  const uint32_t height = png_get_image_height(png, info);
  if (stride != size_t{header.width} * header.channels || height != header.height) png_error(png, "its rows differ");
  for (int pass = 0; pass < passes; ++pass) {
    for (uint32_t y = 0; y < height; ++y) png_read_row(png, pixels + y * stride, nullptr);
  }
}

// Reads the header, and the pixels where there is room for them.
bool Read(const uint8_t* bytes, size_t size, CodecHeader& header, uint8_t* pixels, Palette* palette,
          CodecError& error) {
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &error, OnError, OnWarning);
  png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
  if (info == nullptr) {
    png_destroy_read_struct(&png, nullptr, nullptr);
    std::strncpy(error.message, "out of memory", sizeof error.message - 1);
    return false;
  }
  Input input{bytes, size};
  if (setjmp(error.place) != 0) {  // NOLINT(cert-err52-cpp): as libpng reports errors
    png_destroy_read_struct(&png, &info, nullptr);
    return false;
  }
  ReadInfo(png, info, input);
  FillHeader(png, info, header);
  if (pixels != nullptr) ReadPixels(png, info, header, pixels, *palette);
  png_destroy_read_struct(&png, &info, nullptr);
  return true;
}

}  // namespace

bool ReadPngHeader(const uint8_t* bytes, size_t size, CodecHeader& header, CodecError& error) {
  return Read(bytes, size, header, nullptr, nullptr, error);
}

bool DecodePng(const uint8_t* bytes, size_t size, uint8_t* pixels, Palette& palette, CodecError& error) {
  CodecHeader header;
  return Read(bytes, size, header, pixels, &palette, error);
}

}  // namespace edgewise::server
