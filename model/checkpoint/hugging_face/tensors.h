// From the tensors of a Hugging Face checkpoint to those of docs/model-format.md.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_TENSORS_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_TENSORS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint/hugging_face/folder.h"
#include "model/checkpoint/hugging_face/shards.h"
#include "model/checkpoint/model_folder.h"
#include "model/checkpoint/tensor_checks.h"

namespace edgewise::hugging_face {

// Where a tensor of ours is in the files.
struct Source {
  std::string name;         // without Family::prefix
  bool transposed = false;  // as TensorName
  int32_t part = 0, parts = 1;
  std::vector<int64_t> shape = {};  // in the file, where the dimensions are not ours; else empty

  // The shape in the file of a tensor that has this shape here.
  std::vector<int64_t> FileShape(std::vector<int64_t> ours) const;
};
// The places of a tensor of ExpectedTensors, the usual one first.
std::vector<Source> SourcesOf(const std::string& ours, const Folder& folder);

struct Tensors {
  std::unique_ptr<Shards> shards;                       // owns the values of float32 tensors
  std::vector<std::unique_ptr<SafetensorsFile>> dense;  // likewise, of Folder::dense_folders
  std::string sha256;                        // of the files: of one as it is, else of their hashes, dense layers last
  std::deque<std::vector<float>> converted;  // and this those of others, and of transposed ones
  NamedTensors tensors;                      // of ExpectedTensors(folder.config), every one
  uint64_t parameters = 0;                   // numbers in them, those of tied tensors once
  std::vector<std::string> skipped;          // known tensors that the task does not read, by their names in the file
};

// The class whose weights the files are, where config.json names none: the head that has all of its own tensors there,
// and leaves none that is not the base model's. The base model itself is saved without its prefix. `weights`:
// Folder::weights. NOT_FOUND: no file. INVALID_ARGUMENT: no head of the family has, or several have; the message says
// what to add to config.json, or it begins with the name of a file that is not valid.
absl::StatusOr<const TaskHead*> HeadOfWeights(ModelFolder& files, const Family& family, const std::string& weights);

// Reads the weights of a folder, and of its dense layers. Old names (LayerNorm.gamma and .beta) and base tensors with
// or without their prefix are taken. NOT_FOUND: no file. INVALID_ARGUMENT: a tensor is missing, unknown, given twice,
// or of another shape or dtype; or tied ones differ. RESOURCE_EXHAUSTED: no memory. The message names file and tensor.
absl::StatusOr<Tensors> ReadTensors(ModelFolder& files, const Folder& folder);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_TENSORS_H_
