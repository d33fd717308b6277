// A clock chooses among the algorithms of a library when a model is loaded, and no answer shows which.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/cuda/gemm_emulated.h"
#include "tests/cuda/linked_backend.h"
#include "tests/model/wave_config.h"

namespace edgewise::testing {
namespace {

using cuda::testing::FakeAlgorithm;
using cuda::testing::FakeLibrary;
using cuda::testing::Fault;

struct Answers {
  std::vector<InputResult> results;
  std::set<uint64_t> ran;  // names of algorithms
  size_t runs = 0;
};

class GemmClockTest : public ::testing::TestWithParam<std::string> {
 protected:
  ~GemmClockTest() override { cuda::testing::SetFakeLibrary(nullptr); }

  // Loads the model with algorithms of which a later one is faster or slower.
  Answers Run(const nlohmann::json& config, bool later_is_faster, float own_milliseconds = 1e6f) {
    FakeLibrary library;
    library.own_milliseconds = own_milliseconds;
    library.offered = {FakeAlgorithm(0), FakeAlgorithm(1, Fault::kSumsBackwards), FakeAlgorithm(2),
                       FakeAlgorithm(3, Fault::kSumsBackwards, 64)};
    library.most_rows = 128;
    library.milliseconds = [=](const auto& algorithm) {
      const auto place = static_cast<float>(algorithm[0]);
      return later_is_faster ? 5.0f - place : 5.0f + place;
    };
    cuda::testing::SetFakeLibrary(&library);
    Answers answers;
    {
      const TemporaryFolder folder;
      const LoadedModel loaded = LoadModel(WriteModel(folder.path(), config), MakeLinked(GetParam()));
      library.records = true;
      for (const int count : {1, 3}) {
        for (const InputResult& result : RunAll(*loaded, Texts(*loaded, count, 25))) answers.results.push_back(result);
      }
    }
    for (const auto& [name, call] : library.runs) answers.ran.insert(name);
    answers.runs = library.runs.size();
    return answers;
  }
};
INSTANTIATE_TEST_SUITE_P(Precisions, GemmClockTest, ::testing::Values("fp32", "bf16"),
                         [](const auto& info) { return info.param; });

TEST_P(GemmClockTest, AnAnswerDoesNotDependOnWhichAlgorithmIsFaster) {
  nlohmann::json config = SmallConfig();
  config.merge_patch({{"num_attention_heads", 4}, {"hidden_size", 64}, {"intermediate_size", 264}});
  const Answers first = Run(config, false), second = Run(config, true), own = Run(config, true, 0.0f);
  EXPECT_EQ(first.ran, std::set<uint64_t>({0}));
  EXPECT_EQ(second.ran, std::set<uint64_t>({2, 3})) << "3 sums as the others do up to 63 rows";
  EXPECT_LT(own.runs, second.runs) << "our kernel finishes what has an activation itself";
  ASSERT_EQ(first.results.size(), second.results.size());
  for (size_t i = 0; i < first.results.size(); ++i) {
    ASSERT_TRUE(first.results[i].status.ok()) << first.results[i].status;
    EXPECT_TRUE(SameBytes(first.results[i], second.results[i])) << i;
    EXPECT_TRUE(SameBytes(first.results[i], own.results[i])) << i;
  }
}

}  // namespace
}  // namespace edgewise::testing
