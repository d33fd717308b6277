// Input tensors of the Open Inference Protocol as they came: nothing that they say of their size is believed before it
// was compared with their bytes. Errors: INVALID_ARGUMENT with "<name of the tensor>.shape" and the like as field.
// Everything points into the message, which must live as long. Any thread.
#ifndef EDGEWISE_SERVER_OIP_TENSORS_H_
#define EDGEWISE_SERVER_OIP_TENSORS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "oip/v2/open_inference.pb.h"

namespace edgewise::server {

inline constexpr int kMaxTensors = 16;  // of a request; no model takes as many

struct InputTensor {
  const inference::ModelInferRequest::InferInputTensor* head = nullptr;
  std::optional<std::string_view> raw;  // its elements; none: they are in head->contents()
};

// Those of a call over gRPC.
absl::StatusOr<std::vector<InputTensor>> TensorsOf(const inference::ModelInferRequest& request);

// Elements of INT64 or INT32, [rows, columns].
class IntegerTensor {
 public:
  static absl::StatusOr<IntegerTensor> Read(const InputTensor& tensor);
  uint64_t rows() const { return rows_; }
  uint64_t columns() const { return columns_; }
  int64_t At(uint64_t row, uint64_t column) const;

 private:
  uint64_t rows_ = 0, columns_ = 0;
  const char* raw_ = nullptr;
  const int64_t* wide_ = nullptr;
  const int32_t* narrow_ = nullptr;
  bool is_wide_ = false;
};

// Elements of BYTES, [n] or [n, 1]; at most `most`.
absl::StatusOr<std::vector<std::string_view>> ReadBytes(const InputTensor& tensor, uint64_t most);

// Elements of FP32, [n, rows, columns].
struct FloatTensor {
  uint64_t n = 0, rows = 0, columns = 0;
  const char* bytes = nullptr;  // of float32, not aligned
};
absl::StatusOr<FloatTensor> ReadFloats(const InputTensor& tensor);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OIP_TENSORS_H_
