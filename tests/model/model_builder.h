// Small models with random weights, written to disk as any model is.
#ifndef EDGEWISE_TESTS_MODEL_MODEL_BUILDER_H_
#define EDGEWISE_TESTS_MODEL_MODEL_BUILDER_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace edgewise::testing {

// A folder that goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct TestTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// config.json of a model that is quick to run: 2 layers, 2 heads of 16, sbm with 16 clusters, law bernoulli, 3 labels,
// vocabulary of 50, at most 64 tokens. Change fields and pass it on.
nlohmann::json SmallConfig();

// Tensors that the configuration wants, random by `seed`, such that edges have rates around one half.
std::map<std::string, TestTensor> RandomTensors(const nlohmann::json& config, uint64_t seed);

// The bytes of a safetensors file.
std::string SafetensorsBytes(const std::map<std::string, TestTensor>& tensors);

void WriteFile(const std::string& path, const std::string& bytes);

// Writes a Hugging Face folder: `config`, without the base model's prefix; the field "_files" has other JSON files by
// name. Returns the folder.
std::string WriteHuggingFace(const std::string& folder, nlohmann::json config, uint64_t seed = 1);

// Writes <folder>/config.json and model.safetensors; makes the folder. A config with model_type makes a Hugging Face
// folder. Returns the folder.
std::string WriteModel(const std::string& folder, const nlohmann::json& config, uint64_t seed = 1);

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_MODEL_MODEL_BUILDER_H_
