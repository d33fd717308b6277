// Fuzz target of image files.
#include "model/image/processor.h"
#include "server/image/decode.h"
#include "tests/fuzz/targets.h"

namespace edgewise::fuzz {
namespace {

constexpr uint64_t kFewPixels = 1 << 18;  // decoded here: it takes milliseconds

}  // namespace

void FuzzImage(const std::string& bytes) {
  const absl::StatusOr<server::ImageHeader> header = server::ReadImageHeader(bytes);
  if (!header.ok()) return RequireReadable(std::string(header.status().message()));
  Require(header->width > 0 && header->height > 0, "an image has pixels");
  Require(header->pixels() <= server::kMaxImagePixels && header->bytes >= 3 * header->pixels(),
          "the memory of an image is known before it is decoded");
  if (header->pixels() > kFewPixels) return;
  const absl::StatusOr<RgbImage> image = server::DecodeImage(bytes);
  if (!image.ok()) return RequireReadable(std::string(image.status().message()));
  Require(image->width == header->width && image->height == header->height, "the size is that of the header");
  Require(image->pixels.size() == 3 * header->pixels(), "every pixel has three bytes");
  const ImagePatches patches{.height = 8, .width = 8, .patch_height = 4, .patch_width = 4, .channels = 3};
  Require(PatchRows(*image, ImageProcessor(), patches).size() == size_t{4} * 48, "an image becomes all patches");
}

}  // namespace edgewise::fuzz
