// A matrix in a backend's memory, with what lies between its rows.
#ifndef EDGEWISE_TESTS_KERNELS_DEVICE_MATRIX_H_
#define EDGEWISE_TESTS_KERNELS_DEVICE_MATRIX_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/kernels/devices.h"
#include "tests/kernels/random_floats.h"

namespace edgewise::testing {

inline constexpr float kUntouched = -77.0f;

// Rows lie `stride` apart and begin `shift` floats after the memory does; between them is kUntouched.
class DeviceMatrix {
 public:
  DeviceMatrix(Backend& backend, const std::vector<float>& packed, int64_t rows, int64_t columns, int64_t stride,
               int64_t shift = 0)
      : backend_(backend), rows_(rows), columns_(columns), stride_(stride), shift_(shift) {
    std::vector<float> all(static_cast<size_t>(shift + rows * stride), kUntouched);
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(packed.begin() + r * columns, columns, all.begin() + shift + r * stride);
    }
    memory_ = Place(backend, all);
  }
  DeviceMatrix(Backend& backend, const std::vector<float>& packed, int64_t rows, int64_t columns)
      : DeviceMatrix(backend, packed, rows, columns, columns) {}

  Matrix view() const { return {memory_.data() + shift_, rows_, columns_, stride_}; }
  // The rows, packed. Fails the test if anything between them has changed.
  std::vector<float> Host() const {
    std::vector<float> all = Fetch(backend_, memory_), packed;
    for (int64_t r = 0; r < rows_; ++r) {
      const auto row = all.begin() + shift_ + r * stride_;
      packed.insert(packed.end(), row, row + columns_);
      std::fill(row, row + columns_, kUntouched);
    }
    EXPECT_TRUE(std::all_of(all.begin(), all.end(), [](float v) { return v == kUntouched; }))
        << "something beside the matrix was written";
    return packed;
  }

 private:
  Backend& backend_;
  int64_t rows_, columns_, stride_, shift_;
  Buffer memory_;
};

// Rows first..first + count - 1 of a packed matrix.
inline std::vector<float> RowsOf(const std::vector<float>& packed, int64_t columns, int64_t first, int64_t count) {
  return {packed.begin() + first * columns, packed.begin() + (first + count) * columns};
}

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_KERNELS_DEVICE_MATRIX_H_
