// A strict reader of safetensors files. It copies data into memory of its own and maps no file.
#ifndef EDGEWISE_MODEL_CHECKPOINT_SAFETENSORS_H_
#define EDGEWISE_MODEL_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/checkpoint/model_folder.h"

namespace edgewise {

struct TensorEntry {
  std::string dtype;  // "F32", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the start of the data
  uint64_t end = 0;
};

// An open file whose header has been checked: sizes agree with shapes, and the tensors fill the data without a gap, an
// overlap or bytes behind them. One thread.
class SafetensorsFile {
 public:
  // INVALID_ARGUMENT: the file is not valid; the message names the tensor or the part of the header. With a path also
  // the errors of OpenFile::Open.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(OpenFile file);
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }
  uint64_t data_bytes() const { return data_bytes_; }

  // Reads the data and hashes the whole file. Called once, after the caller has accepted the shapes. INVALID_ARGUMENT:
  // the file cannot be read. RESOURCE_EXHAUSTED: the data does not fit into memory.
  absl::Status ReadData();
  // The values of an F32 tensor that the file has, row-major, after ReadData; they live as long as this object.
  const float* Values(const std::string& name) const;
  // The bytes of a tensor of this file, of any dtype, after ReadData; they live as long as this object.
  std::span<const char> Bytes(const TensorEntry& entry) const {
    return {data_.data() + entry.begin, entry.end - entry.begin};
  }
  const std::string& sha256() const { return sha256_; }  // of the whole file, lower-case hex, after ReadData

 private:
  explicit SafetensorsFile(OpenFile file) : file_(std::move(file)) {}
  absl::Status ReadHeader();
  absl::Status ParseHeader(const std::string& header);

  const OpenFile file_;
  std::string header_;
  uint64_t data_bytes_ = 0;
  std::map<std::string, TensorEntry> tensors_;
  std::vector<char> data_;
  std::string sha256_;
};

// The hash of these bytes, one behind the other, in lower-case hex. INTERNAL: OpenSSL failed.
absl::StatusOr<std::string> Sha256(std::initializer_list<absl::string_view> parts);

// "[2, 3]"
std::string ShowShape(const std::vector<int64_t>& shape);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_SAFETENSORS_H_
