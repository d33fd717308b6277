// Images of another size, byte for byte as Image.resize of Pillow before 13 makes them.
#ifndef EDGEWISE_MODEL_IMAGE_RESIZE_H_
#define EDGEWISE_MODEL_IMAGE_RESIZE_H_

#include <cstdint>

#include "model/image/rgb_image.h"

namespace edgewise {

// The filter that weighs the pixels of the old image, widened where the image gets smaller.
enum class Resample {
  kBilinear,  // a triangle, 1 pixel to each side
  kBicubic,   // Keys' cubic with a = -1/2, 2 pixels to each side
};

// First the rows, then the columns. (Pillow 13 takes the columns first where the height shrinks much more than the
// width. A byte may then differ by one or two, since each pass rounds.) Each pass sums in integers, weights in units of
// 2^-22, and rounds to a byte. `width` and `height` are above 0. Any thread.
RgbImage Resize(const RgbImage& image, int32_t width, int32_t height, Resample resample);

// The bytes that Resize takes at most for an image of this size, its result included.
uint64_t ResizeBytes(int32_t from_width, int32_t from_height, int32_t width, int32_t height);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_IMAGE_RESIZE_H_
