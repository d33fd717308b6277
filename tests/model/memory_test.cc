// Promise 5 (docs/promises.md): memory is O(edges + n). At 64 edges a row a doubling of the length may not cost more
// than 2.2 times the memory above the weights, for every way in which a layer is sparse, with and without a cap.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "model/kinds/kind.h"
#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"

namespace edgewise::testing {
namespace {

constexpr double kEdgesPerRow = 64.0;
constexpr double kMostGrowth = 2.2;
constexpr int kVocabulary = 4000;  // of the language model

// A field of /proc/self/status in KiB: "VmRSS", "VmHWM".
double StatusKib(const std::string& field) {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, field.size() + 1, field + ":") == 0) return std::stod(line.substr(field.size() + 1));
  }
  return 0.0;
}

struct Usage {
  double peak_kib = 0.0;  // above the loaded model
  double edges_per_row = 0.0;
};

// Attention at kEdgesPerRow of n tokens.
nlohmann::json Attention(const std::string& kind, int n) {
  if (kind == "ssa") return {{"kind", "ssa"}, {"bias", "local"}, {"windows", n / 64}, {"sigma", 0.1}};
  // Causal blocks lose half: a query attends to what does not come after it.
  const int block = kind == "language_model" ? 127 : 64;
  if (kind != "free" && kind != "capped") return {{"kind", "block"}, {"block_size", block}, {"pattern", "diagonal"}};
  nlohmann::json sbm = SmallConfig()["attention"];
  // Rates near zero plus this exploration; a cap has twice as many edges to choose from.
  sbm["exploration"] = (kind == "capped" ? 2.0 : 1.0) * kEdgesPerRow / n;
  return sbm;
}

// Runs one input of n tokens in a process of its own.
Usage Measure(int n, const std::string& kind) {
  const bool capped = kind == "capped";
  int channel[2];
  if (pipe(channel) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);  // huge pages would count in steps of 2 MiB a buffer
    auto config = SmallConfig();
    config["max_position_embeddings"] = 32768;
    config["num_hidden_layers"] = 1;
    config["position_embedding"] = "none";
    config["attention"] = Attention(kind, n);
    if (kind == "language_model") {
      config.merge_patch(
          {{"task", "causal-lm"}, {"pooling", nullptr}, {"num_labels", nullptr}, {"classifier_hidden_size", nullptr}});
      config["vocab_size"] = kVocabulary;
    }
    const TemporaryFolder folder;
    auto tensors = RandomTensors(config, 1);
    if (kind == "free" || capped) {
      for (float& value : tensors["layers.0.attention.membership.1.bias"].values) value = -8.0f;
      for (float& value : tensors["layers.0.attention.clusters"].values) value = 0.25f;
    }
    WriteFile(folder.path() + "/config.json", config.dump());
    WriteFile(folder.path() + "/model.safetensors", SafetensorsBytes(tensors));
    const LoadedModel loaded = LoadModel(folder.path(), 2);
    ModelInput input = MakeInput(*loaded, RandomTokens(n, 50, 1));
    if (capped) input.max_edges = static_cast<uint64_t>(kEdgesPerRow * n * 2);
    malloc_trim(0);  // what loading left free must not hide what the pass takes
    const double before = StatusKib("VmRSS");
    const InputResult result = RunOne(*loaded, input);
    const Usage usage{StatusKib("VmHWM") - before, result.edges / (2.0 * n)};
    const bool written = write(channel[1], &usage, sizeof usage) == sizeof usage;
    _exit(written && result.capped == capped ? 0 : 1);
  }
  close(channel[1]);
  Usage usage;
  const bool got = read(channel[0], &usage, sizeof usage) == sizeof usage;
  close(channel[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(got && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return usage;
}

class MemoryTest : public ::testing::TestWithParam<std::string> {};

TEST_P(MemoryTest, GrowsWithEdgesAndTokensOnly) {
  double previous = 0.0;
  for (const int n : {8192, 16384, 32768}) {
    const Usage usage = Measure(n, GetParam());
    std::printf("n = %d: %.1f edges a row, peak %.1f MiB above the model\n", n, usage.edges_per_row,
                usage.peak_kib / 1024);
    EXPECT_NEAR(usage.edges_per_row, kEdgesPerRow, 1.0);
    EXPECT_GT(usage.peak_kib, 0.0);
    if (previous > 0.0) {
      EXPECT_LE(usage.peak_kib, kMostGrowth * previous) << "n = " << n;
    }
    if (GetParam() == "language_model" && n == 32768) {
      EXPECT_LT(usage.peak_kib, 0.5 * n * kVocabulary * sizeof(float) / 1024) << "logits are made a few rows at a time";
    }
    previous = usage.peak_kib;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, MemoryTest, ::testing::Values("free", "capped", "ssa", "block", "language_model"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace edgewise::testing
