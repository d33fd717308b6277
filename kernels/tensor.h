// Views of matrices, and the buffers that own the memory behind them.
#ifndef EDGEWISE_KERNELS_TENSOR_H_
#define EDGEWISE_KERNELS_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace edgewise {

// How a backend keeps the numbers of a row: as float32, or for what reads them next (Backend::OperandForm).
enum class Form : uint8_t {
  kFloat32,
  kBfloat16,  // rounded; an even number of columns
  kParts      // as products of bf16 parts read them, in an order of the backend's own
};

// A row-major matrix in a backend's memory, of float32 unless `form` says otherwise; owns nothing. `stride`: from one
// row to the next, in floats (Backend::RowFloats).
struct Matrix {
  float* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
  Form form = Form::kFloat32;

  Matrix() = default;
  Matrix(float* data, int64_t rows, int64_t columns) : Matrix(data, rows, columns, columns) {}
  Matrix(float* data, int64_t rows, int64_t columns, int64_t stride, Form form = Form::kFloat32)
      : data(data), rows(rows), columns(columns), stride(stride), form(form) {}
  float* row(int64_t r) const { return data + r * stride; }
  // Not of parts; of bf16 from an even column on.
  Matrix Columns(int64_t first, int64_t count) const {
    return {data + (form == Form::kBfloat16 ? first / 2 : first), rows, count, stride, form};
  }
  Matrix Rows(int64_t first, int64_t count) const { return {data + first * stride, count, columns, stride, form}; }
};

// The same, read-only.
struct ConstMatrix {
  const float* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
  Form form = Form::kFloat32;

  ConstMatrix() = default;
  ConstMatrix(const float* data, int64_t rows, int64_t columns) : ConstMatrix(data, rows, columns, columns) {}
  ConstMatrix(const float* data, int64_t rows, int64_t columns, int64_t stride, Form form = Form::kFloat32)
      : data(data), rows(rows), columns(columns), stride(stride), form(form) {}
  ConstMatrix(const Matrix& m)  // NOLINT: a view of a view
      : ConstMatrix(m.data, m.rows, m.columns, m.stride, m.form) {}
  const float* row(int64_t r) const { return data + r * stride; }
  ConstMatrix Columns(int64_t first, int64_t count) const {
    return {data + (form == Form::kBfloat16 ? first / 2 : first), rows, count, stride, form};
  }
  ConstMatrix Rows(int64_t first, int64_t count) const { return {data + first * stride, count, columns, stride, form}; }
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
