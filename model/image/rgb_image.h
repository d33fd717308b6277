// An image in memory.
#ifndef EDGEWISE_MODEL_IMAGE_RGB_IMAGE_H_
#define EDGEWISE_MODEL_IMAGE_RGB_IMAGE_H_

#include <cstdint>
#include <vector>

namespace edgewise {

struct RgbImage {
  int32_t width = 0, height = 0;  // pixels, both above 0
  std::vector<uint8_t> pixels;    // [height, width, 3]: red, green, blue
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_IMAGE_RGB_IMAGE_H_
