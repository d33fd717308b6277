#include "server/image/image_reader.h"

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"

namespace edgewise::server {
namespace {

// A message of the codecs, at its field.
absl::Status AtImage(const absl::Status& status) {
  if (absl::IsInvalidArgument(status)) return FieldError("image", std::string(status.message()));
  return absl::Status(status.code(), absl::StrCat("image ", std::string(status.message())));
}

}  // namespace

absl::StatusOr<ModelSequence> ImageReader::Read(const std::string& bytes, const Model& model) {
  const ImagePatches& patches = model.config().image;
  RETURN_IF_ERROR(model.CheckImage(patches.width, patches.height));  // whether it takes any
  const absl::StatusOr<ImageHeader> header = ReadImageHeader(bytes);
  if (!header.ok()) return AtImage(header.status());
  RETURN_IF_ERROR(model.CheckImage(header->width, header->height));
  pixels_ += header->pixels();
  REFUSE_IF(pixels_ > kMaxImagePixels, "image", "has ", header->width, " x ", header->height,
            " pixels; with it the images of the request have ", pixels_, ", and at most ", kMaxImagePixels,
            " are served");
  RETURN_IF_ERROR(bounds_.Continue());
  RETURN_IF_ERROR(held_.Resize(rows_bytes_ + header->bytes + PatchRowsBytes(header->width, header->height, patches)));
  const absl::StatusOr<RgbImage> image = DecodeImage(bytes);
  if (!image.ok()) return AtImage(image.status());
  rows_bytes_ += sizeof(float) * static_cast<uint64_t>(patches.count()) * static_cast<uint64_t>(patches.size());
  return model.PrepareImage(*image);
}

}  // namespace edgewise::server
