// The tensors of a checkpoint that may lie in several files.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SHARDS_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SHARDS_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/model_folder.h"
#include "model/checkpoint/safetensors.h"

namespace edgewise::hugging_face {

// The file, or the files of the index, that config.json names; else model.safetensors; else the files that
// model.safetensors.index.json names, which may lie in folders of the folder. One thread.
class Shards {
 public:
  // Reads headers only. `named`: Folder::weights. NOT_FOUND: there are no weights in a format that is read; the message
  // says what there is. INVALID_ARGUMENT: a file is not valid, or two have the same tensor. Messages begin with the
  // name of the file.
  static absl::StatusOr<std::unique_ptr<Shards>> Open(ModelFolder& files, const std::string& named);

  struct Tensor {
    const TensorEntry* entry;
    const SafetensorsFile* file;
  };
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  // Reads and hashes the data of all files. Once. Errors as SafetensorsFile::ReadData.
  absl::Status ReadData();
  // The SHA-256 of model.safetensors. Where there are several files: that of their hashes, in lower-case hex, in the
  // order of the files' names.
  const std::string& sha256() const { return sha256_; }

 private:
  absl::Status Add(ModelFolder& files, const std::string& name);
  absl::Status ReadIndex(ModelFolder& files, const std::string& name);

  std::vector<std::pair<std::string, std::unique_ptr<SafetensorsFile>>> files_;  // by name
  std::map<std::string, Tensor> tensors_;
  std::string sha256_;
};

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SHARDS_H_
