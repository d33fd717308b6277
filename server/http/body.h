// The body of a request as its bytes come: of a known length, or in chunks (RFC 9112, 7.1).
#ifndef EDGEWISE_SERVER_HTTP_BODY_H_
#define EDGEWISE_SERVER_HTTP_BODY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/http/message.h"

namespace edgewise::server {

// The extensions of a body's chunks and its trailers may have as many bytes, together.
inline constexpr size_t kMaxChunkExtras = 8192;

// Takes time in the bytes that it reads, however small the chunks are. Extensions and trailers are read and not kept.
// One thread at a time.
class BodyReader {
 public:
  static BodyReader OfLength(uint64_t bytes);
  // A body of chunks, with at most `most` bytes.
  static BodyReader OfChunks(uint64_t most);

  // Reads on in `bytes`, and appends what is data to `body`. Returns the number of bytes that it has read: less than
  // all where the body has ended, or is refused.
  size_t Read(std::string_view bytes, std::string& body);
  bool done() const { return part_ == Part::kDone; }
  // The most data that the next `size` bytes have.
  uint64_t MostIn(uint64_t size) const { return chunked_ || size < left_ ? size : left_; }
  // Code 0: none. 400: these are no chunks; 413: a chunk goes beyond the most bytes, as its size says; 431: extensions
  // and trailers have more than kMaxChunkExtras.
  const HttpRefusal& refusal() const { return refusal_; }

 private:
  enum class Part {
    kSize,         // the digits of a chunk's size
    kSpace,        // behind them, before an extension
    kExtension,    // up to the end of the line
    kSizeEnd,      // its line feed
    kData,         // `left_` bytes
    kDataReturn,   // the end of the line behind them
    kDataEnd,      // its line feed
    kTrailer,      // a line behind the last chunk
    kTrailerEnd,   // its line feed
    kLastLineEnd,  // that of the empty line
    kDone
  };
  BodyReader(bool chunked, uint64_t left, uint64_t most)
      : chunked_(chunked),
        part_(chunked    ? Part::kSize
              : left > 0 ? Part::kData
                         : Part::kDone),
        left_(left),
        most_(most) {}

  void Step(char c);  // one byte of the framing
  void StepSize(char c);
  void StepTrailer(char c);
  void BeginChunk();
  void Expect(char c, char expected, Part next);
  void Extra(char c);  // a byte of an extension or a trailer
  void Bad(const char* why);

  bool chunked_;
  Part part_;
  uint64_t left_;           // data until the end of the body or of the chunk
  uint64_t most_;           // data of all chunks
  uint64_t taken_ = 0;      // data of the chunks so far
  uint64_t size_ = 0;       // of the chunk, as far as it is read
  size_t digits_ = 0;       // of it
  size_t extras_ = 0;       // bytes of extensions and trailers
  size_t line_ = 0;         // bytes of the trailer
  bool has_colon_ = false;  // the trailer does
  HttpRefusal refusal_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_BODY_H_
