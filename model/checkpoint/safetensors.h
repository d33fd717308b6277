// Reads safetensors files: strictly, into owned memory, never from a mapping.
#ifndef EDGEWISE_MODEL_CHECKPOINT_SAFETENSORS_H_
#define EDGEWISE_MODEL_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace edgewise {

struct TensorEntry {
  std::string dtype;  // "F32", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the start of the data
  uint64_t end = 0;
};

// Reads a regular file whole: no symbolic link, no device, at most `most` bytes. NOT_FOUND, INVALID_ARGUMENT.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, uint64_t most);

// An open file whose header has been checked: lengths, offsets without gap or overlap, sizes, no trailing bytes.
class SafetensorsFile {
 public:
  // NOT_FOUND: no such file. INVALID_ARGUMENT: not a valid file; says what is wrong with what.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();

  const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }
  uint64_t data_bytes() const { return data_bytes_; }

  // Reads the data and hashes the whole file. Call once, after the shapes have been accepted.
  absl::Status ReadData();
  // The values of an F32 tensor, row-major; valid while this lives. The name must exist and be F32.
  const float* Values(const std::string& name) const;
  const std::string& sha256() const { return sha256_; }  // after ReadData

 private:
  SafetensorsFile() = default;
  absl::Status ReadHeader(const std::string& path);
  absl::Status ParseHeader(const std::string& header);

  int descriptor_ = -1;
  std::string header_;
  uint64_t data_bytes_ = 0;
  std::map<std::string, TensorEntry> tensors_;
  std::vector<char> data_;
  std::string sha256_;
};

// "[2, 3]"
std::string ShowShape(const std::vector<int64_t>& shape);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_SAFETENSORS_H_
