// Models from files.
#ifndef EDGEWISE_MODEL_LOAD_LOAD_H_
#define EDGEWISE_MODEL_LOAD_LOAD_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/checkpoint/model_folder.h"
#include "model/checkpoint/weights.h"
#include "model/kinds/kind.h"
#include "model/model.h"

namespace edgewise {

// Reads and checks config.json, in our own format or of Hugging Face with the files that go with it, but no weights.
// Errors: as LoadModel.
absl::StatusOr<ModelConfig> LoadConfig(ModelFolder& files, AttentionKinds kinds = Kinds());

// Loads config.json and model.safetensors (of Hugging Face: or its shards) onto `backend`, which must
// outlive the model, runs a self-test and reserves the memory of a full wave. INVALID_ARGUMENT: a file says something
// that is not allowed; the message names field or tensor, what was found and what was expected. NOT_FOUND: a file is
// missing. RESOURCE_EXHAUSTED: no memory. `use_backend` runs what uses the backend, one weight or one layer of the
// self-test at a time; while it runs nothing, another thread may use the backend.
// `files` has seen every file that the model depends on, also after an error.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(ModelFolder& files, Backend& backend, AttentionKinds kinds = Kinds(),
                                                 const RunWork& use_backend = RunHere);
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& directory, Backend& backend,
                                                 AttentionKinds kinds = Kinds(), const RunWork& use_backend = RunHere);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_LOAD_LOAD_H_
