#include "model/image/resize.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace edgewise {
namespace {

constexpr int64_t kChannels = 3;
constexpr int kFraction = 22;  // bits of a weight behind the point: a byte times a weight stays below 2^31

double Triangle(double x) { return std::max(0.0, 1.0 - std::abs(x)); }

double Cubic(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * kA;
  return 0.0;
}

double Reach(Resample resample) { return resample == Resample::kBilinear ? 1.0 : 2.0; }

// The old pixels that one new pixel is made of.
struct Taps {
  int32_t first = 0;
  std::vector<int32_t> weights;
};

std::vector<Taps> TapsOf(int32_t from, int32_t to, Resample resample) {
  const double scale = static_cast<double>(from) / to;
  const double widened = std::max(1.0, scale);
  const double reach = Reach(resample) * widened;
  std::vector<Taps> all(to);
  std::vector<double> exact;
  for (int32_t i = 0; i < to; ++i) {
    const double center = (i + 0.5) * scale;
    Taps& taps = all[i];
    // NOLINTBEGIN(bugprone-incorrect-roundings): as Pillow rounds
    taps.first = std::max(0, static_cast<int32_t>(center - reach + 0.5));
    const int32_t end = std::min(from, static_cast<int32_t>(center + reach + 0.5));
    // NOLINTEND(bugprone-incorrect-roundings)
    exact.clear();
    double sum = 0.0;
    for (int32_t p = taps.first; p < end; ++p) {
      const double x = (p - center + 0.5) * (1.0 / widened);
      exact.push_back(resample == Resample::kBilinear ? Triangle(x) : Cubic(x));
      sum += exact.back();
    }
    for (const double weight : exact) {
      const double fixed = (sum != 0.0 ? weight / sum : weight) * (1 << kFraction);
      taps.weights.push_back(static_cast<int32_t>(fixed < 0.0 ? fixed - 0.5 : fixed + 0.5));
    }
  }
  return all;
}

constexpr int32_t kHalf = 1 << (kFraction - 1);

// A sum that began with kHalf.
uint8_t Rounded(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kFraction, 0, 255)); }

// The sum over taps of bytes `stride` apart.
uint8_t Mix(const uint8_t* bytes, int64_t stride, const std::vector<int32_t>& weights) {
  int32_t sum = kHalf;
  for (const int32_t weight : weights) {
    sum += *bytes * weight;
    bytes += stride;
  }
  return Rounded(sum);
}

RgbImage Narrowed(const RgbImage& image, int32_t width, Resample resample) {
  const std::vector<Taps> taps = TapsOf(image.width, width, resample);
  RgbImage out{width, image.height, std::vector<uint8_t>(kChannels * width * image.height)};
  uint8_t* to = out.pixels.data();
  for (int64_t y = 0; y < image.height; ++y) {
    const uint8_t* row = &image.pixels[y * image.width * kChannels];
    for (const Taps& tap : taps) {
      const uint8_t* pixel = row + tap.first * kChannels;
      int32_t red = kHalf, green = kHalf, blue = kHalf;
      for (const int32_t weight : tap.weights) {
        red += pixel[0] * weight;
        green += pixel[1] * weight;
        blue += pixel[2] * weight;
        pixel += kChannels;
      }
      *to++ = Rounded(red);
      *to++ = Rounded(green);
      *to++ = Rounded(blue);
    }
  }
  return out;
}

RgbImage Flattened(const RgbImage& image, int32_t height, Resample resample) {
  RgbImage out{image.width, height, {}};
  const int64_t stride = kChannels * image.width;
  out.pixels.reserve(stride * height);
  for (const Taps& tap : TapsOf(image.height, height, resample)) {
    for (int64_t i = 0; i < stride; ++i) {
      out.pixels.push_back(Mix(&image.pixels[tap.first * stride + i], stride, tap.weights));
    }
  }
  return out;
}

}  // namespace

RgbImage Resize(const RgbImage& image, int32_t width, int32_t height, Resample resample) {
  // A pass that keeps the size would change no byte.
  const bool narrow = width != image.width, flatten = height != image.height;
  if (!narrow) return flatten ? Flattened(image, height, resample) : image;
  RgbImage narrowed = Narrowed(image, width, resample);
  return flatten ? Flattened(narrowed, height, resample) : narrowed;
}

uint64_t ResizeBytes(int32_t from_width, int32_t from_height, int32_t width, int32_t height) {
  const uint64_t passes = kChannels * static_cast<uint64_t>(width) * (static_cast<uint64_t>(from_height) + height);
  // The taps of the two passes: their reach times the new size, about twice the old or 5 times the new one.
  const uint64_t sizes = static_cast<uint64_t>(from_width) + from_height + width + height;
  return passes + sizes * (sizeof(Taps) + 8 * sizeof(int32_t));
}

}  // namespace edgewise
