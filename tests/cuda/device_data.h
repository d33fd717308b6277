// What the tests of kernels share: matrices in the (emulated) device's memory.
#ifndef EDGEWISE_TESTS_CUDA_DEVICE_DATA_H_
#define EDGEWISE_TESTS_CUDA_DEVICE_DATA_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/device/device_array.h"
#include "kernels/tensor.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/random_floats.h"

namespace edgewise::cuda {

using edgewise::testing::Random;

// An array on the device, a copy of one on the host.
template <typename T>
class DeviceCopy {
 public:
  DeviceCopy(const std::shared_ptr<Device>& device, const std::vector<T>& host)
      : size_(host.size()), memory_(*DeviceArray::Copy(*device, std::span<const T>(host))) {}
  T* data() const { return static_cast<T*>(memory_.data()); }
  std::vector<T> Host() const {
    std::vector<T> host(size_);
    cudaMemcpy(host.data(), data(), size_ * sizeof(T), cudaMemcpyDeviceToHost);
    return host;
  }

 private:
  size_t size_;
  DeviceArray memory_;
};

inline constexpr float kUntouched = -77.0f;

// A matrix on the device whose rows lie `stride` apart and begin `shift` floats after the memory does; between the rows
// is kUntouched.
class DeviceMatrix {
 public:
  DeviceMatrix(const std::shared_ptr<Device>& device, const std::vector<float>& packed, int64_t rows, int64_t columns,
               int64_t stride, int64_t shift = 0)
      : rows_(rows), columns_(columns), stride_(stride), shift_(shift), array_(device, Spread(packed)) {}
  DeviceMatrix(const std::shared_ptr<Device>& device, const std::vector<float>& packed, int64_t rows, int64_t columns)
      : DeviceMatrix(device, packed, rows, columns, columns) {}

  Matrix view() const { return {array_.data() + shift_, rows_, columns_, stride_}; }
  // The rows, packed. Fails the test if anything between them has changed.
  std::vector<float> Host() const {
    std::vector<float> all = array_.Host(), packed;
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
  std::vector<float> Spread(const std::vector<float>& packed) const {
    std::vector<float> all(static_cast<size_t>(shift_ + rows_ * stride_), kUntouched);
    for (int64_t r = 0; r < rows_; ++r) {
      std::copy_n(packed.begin() + r * columns_, columns_, all.begin() + shift_ + r * stride_);
    }
    return all;
  }

  int64_t rows_, columns_, stride_, shift_;
  DeviceCopy<float> array_;
};

// Runs every test with the threads of a block going forwards, backwards and shuffled.
class OrderTest : public ::testing::TestWithParam<emulator::Order> {
 protected:
  void SetUp() override {
    emulator::SetOrder(GetParam());
    device_ = *Device::Open(0);
  }
  void TearDown() override { emulator::SetOrder(emulator::kForward); }
  cudaStream_t stream() const { return device_->stream(); }

  std::shared_ptr<Device> device_;
};

inline auto AllOrders() { return ::testing::Values(emulator::kForward, emulator::kBackward, emulator::Shuffled(7)); }

}  // namespace edgewise::cuda

#endif  // EDGEWISE_TESTS_CUDA_DEVICE_DATA_H_
