// Loads models and runs inputs through them, for tests.
#ifndef EDGEWISE_TESTS_MODEL_RUN_MODEL_H_
#define EDGEWISE_TESTS_MODEL_RUN_MODEL_H_

#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "model/forward/pass.h"
#include "model/model.h"

namespace edgewise::testing {

// A backend and the model on it. Fails the process when either cannot be had.
struct LoadedModel {
  std::unique_ptr<Backend> backend;  // null: the caller's
  std::unique_ptr<Model> model;
  const Model* operator->() const { return model.get(); }
  const Model& operator*() const { return *model; }
};
LoadedModel LoadModel(const std::string& folder, int threads = 1);
LoadedModel LoadModel(const std::string& folder, std::unique_ptr<Backend> backend);
// The backend is the caller's and outlives the model.
LoadedModel LoadModelOn(Backend& backend, const std::string& folder);
// The backend of these tests: its instruction set, its weights (EDGEWISE_TEST_WEIGHTS), whether it defers its reports
// (tests/model/deferred_backend.h), and whether it draws by events (tests/model/events_backend.h) are set by
// tests/model/CMakeLists.txt; its device and precision by EDGEWISE_TEST_DEVICE and EDGEWISE_TEST_PRECISION, as
// tests/gpu.cmake and the GPU bundle do. Where that device is not there, the process ends with 77: skipped.
std::unique_ptr<Backend> MakeBackend(int threads = 1);

// An input of one or two sequences of token ids.
ModelInput MakeInput(const Model& model, const std::vector<int32_t>& token_ids,
                     const std::vector<int32_t>& second = {});

// Runs all inputs in one pass.
std::vector<InputResult> RunAll(const Model& model, const std::vector<ModelInput>& inputs, Pass::Options options = {});
InputResult RunOne(const Model& model, const ModelInput& input);

// Token ids below `vocab_size`, none a pad, by `seed`.
std::vector<int32_t> RandomTokens(int32_t count, int32_t vocab_size, uint64_t seed);

// Whether two results agree in every byte that a client could see.
bool SameBytes(const InputResult& a, const InputResult& b);

// Edges of a graph that the pass returned.
uint64_t CountEdges(const Graph& graph);

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_MODEL_RUN_MODEL_H_
