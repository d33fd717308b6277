// Views of float32 matrices, and the buffers that own the memory behind them.
#ifndef EDGEWISE_KERNELS_TENSOR_H_
#define EDGEWISE_KERNELS_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace edgewise {

// A row-major float32 matrix in a backend's memory; owns nothing. `stride`: floats from one row to the next.
struct Matrix {
  float* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;

  Matrix() = default;
  Matrix(float* data, int64_t rows, int64_t columns) : Matrix(data, rows, columns, columns) {}
  Matrix(float* data, int64_t rows, int64_t columns, int64_t stride)
      : data(data), rows(rows), columns(columns), stride(stride) {}
  float* row(int64_t r) const { return data + r * stride; }
  Matrix Columns(int64_t first, int64_t count) const { return {data + first, rows, count, stride}; }
  Matrix Rows(int64_t first, int64_t count) const { return {data + first * stride, count, columns, stride}; }
};

// The same, read-only.
struct ConstMatrix {
  const float* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;

  ConstMatrix() = default;
  ConstMatrix(const float* data, int64_t rows, int64_t columns) : ConstMatrix(data, rows, columns, columns) {}
  ConstMatrix(const float* data, int64_t rows, int64_t columns, int64_t stride)
      : data(data), rows(rows), columns(columns), stride(stride) {}
  ConstMatrix(const Matrix& m) : ConstMatrix(m.data, m.rows, m.columns, m.stride) {}  // NOLINT: a view of a view
  const float* row(int64_t r) const { return data + r * stride; }
  ConstMatrix Columns(int64_t first, int64_t count) const { return {data + first, rows, count, stride}; }
  ConstMatrix Rows(int64_t first, int64_t count) const { return {data + first * stride, count, columns, stride}; }
};

// Owns floats in a backend's memory, 64-byte aligned. Movable only. The backend that made a buffer must outlive it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(float* data, int64_t size, std::function<void(float*)> release)
      : data_(data), size_(size), release_(std::move(release)) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(release_, other.release_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) release_(data_);
  }

  float* data() const { return data_; }
  int64_t size() const { return size_; }  // floats
  Matrix AsMatrix(int64_t rows, int64_t columns) const { return {data_, rows, columns}; }

 private:
  float* data_ = nullptr;
  int64_t size_ = 0;
  std::function<void(float*)> release_;
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_TENSOR_H_
