// The tiny random models of tests/testdata, and folders that tests may change.
#ifndef EDGEWISE_TESTS_SERVER_TEST_MODELS_H_
#define EDGEWISE_TESTS_SERVER_TEST_MODELS_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "model/load/load.h"
#include "model/model.h"
#include "tests/support/paths.h"

namespace edgewise::server {

inline Backend& TestBackend() {
  static Backend& backend = *[] {
    BackendOptions options;
    options.num_threads = 1;
    return CreateBackend(options).value().release();
  }();
  return backend;
}

// vocabulary 40, at most 48 tokens, pad 0, 2 layers of 2 heads, 5 labels ("sbm", "dense"); "sbm-pair": 2 labels;
// "sbm-tokens": 1 layer, law poisson_multi.
inline std::unique_ptr<Model> LoadTestModel(const std::string& name) {
  absl::StatusOr<std::unique_ptr<Model>> model = LoadModel(tests::TestdataFolder() + "/" + name + "/1", TestBackend());
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

// A folder of its own, removed at the end.
class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "edgewise-test-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }

  void Write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path_ + "/" + file).parent_path());
    std::ofstream(path_ + "/" + file, std::ios::binary) << text;
  }
  // Copies a model of tests/testdata to <folder>/<as>/<version>.
  void AddModel(const std::string& name, const std::string& as, int version) const {
    const std::string to = path_ + "/" + as + "/" + std::to_string(version);
    std::filesystem::create_directories(to);
    std::filesystem::copy(tests::TestdataFolder() + "/" + name + "/1", to,
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  }

 private:
  std::string path_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_TEST_MODELS_H_
