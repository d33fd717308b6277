// clang-format off
#include <cstdio>  // the next ones need it
#include <jerror.h>
#include <jpeglib.h>
// clang-format on

#include <cstring>

#include "server/image/codec.h"

namespace edgewise::server {
namespace {

// Usual progressive files have about ten. Each may touch every pixel, in a few bytes.
constexpr int kMaxScans = 24;

// The library's struct first: it hands out a pointer to it.
struct Errors {
  jpeg_error_mgr library;
  CodecError* error = nullptr;
};

[[noreturn]] void OnError(j_common_ptr info) {
  CodecError* error = reinterpret_cast<Errors*>(info->err)->error;
  if (error->message[0] == '\0') {
    char message[JMSG_LENGTH_MAX] = "";
    (*info->err->format_message)(info, message);
    std::strncpy(error->message, message, sizeof error->message - 1);
  }
  std::longjmp(error->place, 1);
}

[[noreturn]] void Fail(j_common_ptr info, const char* message) {
  std::strncpy(reinterpret_cast<Errors*>(info->err)->error->message, message, sizeof CodecError::message - 1);
  OnError(info);
}

// Warnings are below 0. Where the pixels end before the image does, the library would make up the rest.
void OnMessage(j_common_ptr info, int level) {
  if (level < 0 && info->err->msg_code == JWRN_HIT_MARKER) Fail(info, "the file ends early");
}

// The source's own would make up an end.
boolean OnEnd(j_decompress_ptr info) { Fail(reinterpret_cast<j_common_ptr>(info), "the file ends early"); }

void OnProgress(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kMaxScans) {
    Fail(info, "the file has more than 24 scans");
  }
}

void ReadPixels(jpeg_decompress_struct& info, const CodecHeader& header, uint8_t* pixels) {
  info.out_color_space = info.num_components == 4 ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&info);
  const size_t stride = static_cast<size_t>(info.output_width) * static_cast<size_t>(info.output_components);
  if (stride != size_t{header.width} * header.channels || info.output_height != header.height) {
    Fail(reinterpret_cast<j_common_ptr>(&info), "its rows differ");
  }
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = pixels + info.output_scanline * stride;
    jpeg_read_scanlines(&info, &row, 1);
  }
}

// Reads the header, and the pixels where there is room for them.
bool Read(const uint8_t* bytes, size_t size, CodecHeader& header, uint8_t* pixels, CodecError& error) {
  jpeg_decompress_struct info;
  std::memset(&info, 0, sizeof info);
  Errors errors;
  info.err = jpeg_std_error(&errors.library);
  errors.library.error_exit = OnError;
  errors.library.emit_message = OnMessage;
  errors.error = &error;
  jpeg_progress_mgr progress;
  std::memset(&progress, 0, sizeof progress);
  progress.progress_monitor = OnProgress;
  if (setjmp(error.place) != 0) {  // NOLINT(cert-err52-cpp): as libjpeg reports errors
    jpeg_destroy_decompress(&info);
    return false;
  }
  jpeg_create_decompress(&info);
  info.progress = &progress;
  jpeg_mem_src(&info, bytes, size);
  info.src->fill_input_buffer = OnEnd;
  jpeg_read_header(&info, TRUE);
  header.width = info.image_width;
  header.height = info.image_height;
  header.channels = info.num_components == 4 ? 4 : 3;
  header.progressive = jpeg_has_multiple_scans(&info) != 0;
  if (info.num_components == 2) Fail(reinterpret_cast<j_common_ptr>(&info), "the file has 2 colour components");
  if (pixels != nullptr) ReadPixels(info, header, pixels);
  jpeg_destroy_decompress(&info);
  return true;
}

}  // namespace

bool ReadJpegHeader(const uint8_t* bytes, size_t size, CodecHeader& header, CodecError& error) {
  return Read(bytes, size, header, nullptr, error);
}

bool DecodeJpeg(const uint8_t* bytes, size_t size, uint8_t* pixels, CodecError& error) {
  CodecHeader header;
  return Read(bytes, size, header, pixels, error);
}

}  // namespace edgewise::server
