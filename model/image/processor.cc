#include "model/image/processor.h"

#include <cstddef>

namespace edgewise {

std::array<std::array<float, 256>, 3> PixelValues(const ImageProcessor& processor) {
  std::array<std::array<float, 256>, 3> values{};
  for (size_t channel = 0; channel < 3; ++channel) {
    for (size_t byte = 0; byte < 256; ++byte) {
      auto value = static_cast<float>(byte);
      if (processor.rescale) value = static_cast<float>(static_cast<double>(byte) * processor.factor);
      if (processor.normalize) value = (value - processor.mean[channel]) / processor.deviation[channel];
      values[channel][byte] = value;
    }
  }
  return values;
}

std::vector<float> PatchRows(const RgbImage& image, const ImageProcessor& processor, const ImagePatches& patches) {
  RgbImage resized;
  const bool same = image.width == patches.width && image.height == patches.height;
  if (!same) resized = Resize(image, patches.width, patches.height, processor.resample);
  const RgbImage& source = same ? image : resized;
  const auto values = PixelValues(processor);
  std::vector<float> rows;
  rows.reserve(static_cast<size_t>(patches.count()) * patches.size());
  for (int64_t patch = 0; patch < patches.count(); ++patch) {
    const int64_t top = patch / patches.columns() * patches.patch_height;
    const int64_t left = patch % patches.columns() * patches.patch_width;
    for (size_t channel = 0; channel < 3; ++channel) {
      for (int64_t y = top; y < top + patches.patch_height; ++y) {
        for (int64_t x = left; x < left + patches.patch_width; ++x) {
          rows.push_back(values[channel][source.pixels[(y * source.width + x) * 3 + channel]]);
        }
      }
    }
  }
  return rows;
}

uint64_t PatchRowsBytes(int32_t width, int32_t height, const ImagePatches& patches) {
  return ResizeBytes(width, height, patches.width, patches.height) +
         sizeof(float) * static_cast<uint64_t>(patches.count()) * patches.size();
}

}  // namespace edgewise
