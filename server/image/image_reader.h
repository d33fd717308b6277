// The images of one request: what all of them may take together, counted before each is decoded.
#ifndef EDGEWISE_SERVER_IMAGE_IMAGE_READER_H_
#define EDGEWISE_SERVER_IMAGE_IMAGE_READER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/work_bounds.h"
#include "model/model.h"
#include "server/image/decode.h"

namespace edgewise::server {

// One thread at a time.
class ImageReader {
 public:
  // Until its end the reader holds, of `bounds`, the bytes that decoding takes and the rows so far. `bounds` must
  // outlive the reader.
  explicit ImageReader(WorkBounds& bounds) : bounds_(bounds), held_(bounds) {}

  // The bytes of a PNG or JPEG file as an input of the model. INVALID_ARGUMENT, at field "image": the model takes no
  // images or not this one; see ReadImageHeader; or the request has more than kMaxImagePixels. RESOURCE_EXHAUSTED: the
  // ledger or the machine lacks the memory. Or what the bounds say before it is decoded.
  absl::StatusOr<ModelSequence> Read(const std::string& bytes, const Model& model);

 private:
  WorkBounds& bounds_;
  ReservedBytes held_;
  uint64_t pixels_ = 0, rows_bytes_ = 0;  // so far
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_IMAGE_IMAGE_READER_H_
