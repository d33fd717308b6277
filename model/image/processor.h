// From the pixels of an image to the rows that a model of patches takes.
#ifndef EDGEWISE_MODEL_IMAGE_PROCESSOR_H_
#define EDGEWISE_MODEL_IMAGE_PROCESSOR_H_

#include <array>
#include <cstdint>
#include <vector>

#include "model/image/resize.h"
#include "model/image/rgb_image.h"

namespace edgewise {

// How an image is cut into patches, one a row of features. Pixels left at the right and the bottom belong to none.
struct ImagePatches {
  int32_t height = 0, width = 0;  // of the image, pixels; 0: the model takes no patches
  int32_t patch_height = 1, patch_width = 1;
  int32_t channels = 0;

  int32_t rows() const { return height / patch_height; }
  int32_t columns() const { return width / patch_width; }
  int32_t count() const { return rows() * columns(); }
  // Values of a patch.
  int32_t size() const { return channels * patch_height * patch_width; }
};

// The steps of a preprocessor_config.json on an RGB image. They are those of transformers' ViTImageProcessor on Pillow,
// with its numbers: bytes after the resizing, float64 times the factor rounded to float32, then float32.
struct ImageProcessor {
  bool serves = false;  // false: there is no preprocessor_config.json, so the model takes no images
  bool resize = true;   // to the size of ImagePatches; else an image has this size
  Resample resample = Resample::kBilinear;
  bool rescale = true;
  double factor = 1.0 / 255;
  bool normalize = true;
  std::array<float, 3> mean = {0.5f, 0.5f, 0.5f}, deviation = {0.5f, 0.5f, 0.5f};
};

// The pixel values of each byte, per channel: [3][256].
std::array<std::array<float, 256>, 3> PixelValues(const ImageProcessor& processor);

// The patches of an image as rows of features [count, size]: from left to right, then from top to bottom; in a row all
// values of the red channel, then green, then blue, each line by line. The image has the size of `patches`, which has 3
// channels, where the processor does not resize. Any thread.
std::vector<float> PatchRows(const RgbImage& image, const ImageProcessor& processor, const ImagePatches& patches);

// The bytes that PatchRows takes at most for an image of this size, its result included.
uint64_t PatchRowsBytes(int32_t width, int32_t height, const ImagePatches& patches);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_IMAGE_PROCESSOR_H_
