// Launches, copies and allocations of a layer, as the emulated driver counts them. Products are our own kernels: on a
// GPU an algorithm of cuBLASLt takes a launch more where it does not finish its product itself.
#include <gtest/gtest.h>

#include <string>

#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/gemm_emulated.h"
#include "tests/cuda/linked_backend.h"
#include "tests/model/wave_config.h"

namespace edgewise::testing {
namespace {

struct Counts {
  uint64_t launches = 0, copies = 0, allocations = 0;
  bool operator==(const Counts&) const = default;
};
void PrintTo(const Counts& of, std::ostream* out) {
  *out << of.launches << " launches, " << of.copies << " copies, " << of.allocations << " allocations";
}
Counts operator-(const Counts& a, const Counts& b) {
  return {a.launches - b.launches, a.copies - b.copies, a.allocations - b.allocations};
}
Counts SoFar() { return {emulator::launches(), emulator::copies(), emulator::allocations()}; }

class EncoderLaunchesTest : public ::testing::TestWithParam<std::string> {
 protected:
  EncoderLaunchesTest() {
    library_.offered.clear();
    cuda::testing::SetFakeLibrary(&library_);
  }
  ~EncoderLaunchesTest() override { cuda::testing::SetFakeLibrary(nullptr); }

  // A layer in the middle takes as many as a pass of four layers does beyond one of three. Each pass has run before.
  Counts OfLayer(nlohmann::json config) const {
    Counts of[2];
    for (const int layers : {3, 4}) {
      config["num_hidden_layers"] = layers;
      const TemporaryFolder folder;
      const LoadedModel loaded = LoadModel(WriteModel(folder.path(), config), MakeLinked(GetParam()));
      const std::vector<ModelInput> inputs = Texts(*loaded, 3, 30);
      RunAll(*loaded, inputs);
      const Counts before = SoFar();
      for (const InputResult& result : RunAll(*loaded, inputs)) EXPECT_TRUE(result.status.ok()) << result.status;
      of[layers - 3] = SoFar() - before;
    }
    return of[1] - of[0];
  }

 private:
  cuda::testing::FakeLibrary library_;
};
INSTANTIATE_TEST_SUITE_P(Precisions, EncoderLaunchesTest, ::testing::Values("fp32", "bf16"),
                         [](const auto& info) { return info.param; });

// Widths as real models have them: heads of 64 columns.
nlohmann::json Bert(const nlohmann::json& changes) {
  nlohmann::json config = SmallConfig();
  config.merge_patch(
      {{"num_attention_heads", 2},
       {"hidden_size", 128},
       {"intermediate_size", 256},
       {"norm_position", "post"},
       {"attention", {{"kind", "dense"}, {"num_clusters", nullptr}, {"law", nullptr}, {"exploration", nullptr}}}});
  config.merge_patch(changes);
  return config;
}

TEST_P(EncoderLaunchesTest, ALayerIsSevenKernelsAndAllocatesNothing) {
  for (const char* norms : {"post", "pre"}) {
    EXPECT_EQ(OfLayer(Bert({{"norm_position", norms}})), (Counts{7, 1, 0})) << norms;
  }
}

// In bf16 two kernels round keys and values: memberships and rotations read float32.
TEST_P(EncoderLaunchesTest, DrawsGatesAndRotationsTakeMore) {
  const uint64_t rounding = GetParam() == "bf16" ? 2 : 0;
  const nlohmann::json draws = {{"kind", "sbm"}, {"num_clusters", 16}, {"law", "bernoulli"}, {"exploration", 0.01}};
  // Memberships, the draw and its counts; memory of edges and of results.
  EXPECT_EQ(OfLayer(Bert({{"attention", draws}})), (Counts{13 + rounding, 2, 2}));
  EXPECT_EQ(OfLayer({{"model_type", "llama"},
                     {"architectures", {"LlamaForCausalLM"}},
                     {"vocab_size", 50},
                     {"hidden_size", 128},
                     {"num_attention_heads", 2},
                     {"num_key_value_heads", 1},
                     {"intermediate_size", 256},
                     {"max_position_embeddings", 64}}),
            (Counts{9 + rounding, 2, 0}));
}

}  // namespace
}  // namespace edgewise::testing
