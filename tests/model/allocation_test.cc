// Nothing is allocated between the first and the last step of a pass on the CPU, for a model that ran a pass of the
// same shape before. Counted are malloc and its kin, of every thread of the process. Left out: what an answer contains
// beyond counts (graphs, degrees), and the search for the edges that a binding budget of kind sbm keeps.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <stop_token>

#include "model/forward/generation.h"
#include "model/kinds/kind.h"
#include "tests/model/model_kinds.h"
#include "tests/model/run_model.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

void Count() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1);
}

}  // namespace

// The C library's own, behind those that this program has in their place. operator new ends there too.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier): the names are the C library's.
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
// NOLINTEND(bugprone-reserved-identifier)

void* malloc(size_t size) {
  Count();
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  Count();
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) {
  Count();
  return __libc_realloc(memory, size);
}
void* memalign(size_t alignment, size_t size) {
  Count();
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void** memory, size_t alignment, size_t size) {
  *memory = memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
}

namespace edgewise::testing {
namespace {

// Allocations from the first step to the last.
int64_t CountPass(const Model& model, const std::vector<ModelInput>& inputs) {
  Pass pass(model, inputs, {});
  allocations = 0;
  while (!pass.done()) {
    counting = true;
    const absl::Status status = pass.Step();
    counting = false;
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) break;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(pass.TakeResult(static_cast<int64_t>(i)).status.ok());
  }
  return allocations;
}

TEST(AllocationTest, TheCounterCounts) {
  allocations = 0;
  counting = true;
  const std::vector<int> vector(100);
  Buffer buffer = *MakeBackend()->Allocate(1);
  counting = false;
  EXPECT_GE(allocations, 2);
}

TEST(AllocationTest, APassOfManyWavesBeginsWithTheResultsOfOne) {
  const ModelKind kind = ModelKinds()[0];
  const TemporaryFolder folder;
  const LoadedModel model = LoadModel(WriteModel(folder.path(), ConfigOf(kind)), 1);
  const auto to_begin = [&](uint32_t samples) {
    std::mt19937_64 random(1);
    std::vector<ModelInput> inputs;
    for (int i = 0; i < 8; ++i) inputs.emplace_back(RandomInput(kind, *model, random)).samples = samples;
    allocations = 0;
    counting = true;
    const Pass pass(*model, inputs, {.max_wave_tokens = 64});
    counting = false;
    return allocations.load();
  };
  to_begin(1);
  EXPECT_LE(to_begin(256), to_begin(64));
}

class AllocationKindsTest : public ::testing::TestWithParam<ModelKind> {
 protected:
  LoadedModel Load(int threads) { return LoadModel(WriteModel(folder_.path(), ConfigOf(GetParam()), 3), threads); }
  std::vector<ModelInput> Batch(const Model& model) {
    std::vector<ModelInput> inputs;
    for (int i = 0; i < 6; ++i) {
      ModelInput& input = inputs.emplace_back(RandomInput(GetParam(), model, random_));
      input.samples = i % 3 == 0 ? 5 : 1;
      input.dense = i == 4;
      input.stopping = caller_.get_token();
    }
    return inputs;
  }

  const TemporaryFolder folder_;
  std::mt19937_64 random_{1};
  std::stop_source caller_;
};

TEST_P(AllocationKindsTest, OneInput) {
  const LoadedModel model = Load(1);
  const std::vector<ModelInput> inputs = {RandomInput(GetParam(), *model, random_)};
  EXPECT_GT(CountPass(*model, inputs), 0) << "the first takes memory";
  EXPECT_EQ(CountPass(*model, inputs), 0);
}

TEST_P(AllocationKindsTest, SamplesOfABatch) {
  const LoadedModel model = Load(1);
  const std::vector<ModelInput> inputs = Batch(*model);
  CountPass(*model, inputs);
  EXPECT_EQ(CountPass(*model, inputs), 0);
}

TEST_P(AllocationKindsTest, SeveralThreads) {
  const LoadedModel model = Load(3);
  const std::vector<ModelInput> inputs = Batch(*model);
  // A thread takes memory for the largest block that it has met.
  int passes = 1;
  while (passes < 200 && CountPass(*model, inputs) > 0) ++passes;
  EXPECT_LT(passes, 200);
}

INSTANTIATE_TEST_SUITE_P(Kinds, AllocationKindsTest, ::testing::ValuesIn(ModelKinds()),
                         ::testing::PrintToStringParamName());

class AllocationOfTokensTest : public AllocationKindsTest {};

// A few lists of the step, whatever the length of the text and the number of generations.
TEST_P(AllocationOfTokensTest, DoNotGrow) {
  const LoadedModel model = Load(1);
  const auto most_of_a_step = [&](size_t count) {
    std::vector<std::unique_ptr<Generation>> generations;
    std::vector<Generation*> together;
    for (size_t g = 0; g < count; ++g) {
      GenerationOptions options;
      options.max_new_tokens = 40;
      options.samples = 2;
      if (!GetParam().override_with.is_null()) {
        options.attention = Override(ConfigOf(GetParam()), GetParam().override_with);
      }
      const auto prompt = *model->Prepare(RandomTokens(3, 49, g), TruncateMode::kRefuse);
      generations.push_back(*Generation::Create(*model, prompt, options));
      together.push_back(generations.back().get());
    }
    std::vector<absl::Status> statuses(count);
    int64_t most = 0;
    for (int step = 0; step < 40; ++step) {
      allocations = 0;
      counting = true;
      Generation::DecodeTogether(together, statuses);
      counting = false;
      for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
      if (step >= 2) most = std::max<int64_t>(most, allocations);
    }
    return most;
  };
  most_of_a_step(8);  // takes the memory that later ones find
  EXPECT_LE(most_of_a_step(1), 24);
  EXPECT_LE(most_of_a_step(8), 48);
}

INSTANTIATE_TEST_SUITE_P(Kinds, AllocationOfTokensTest, ::testing::ValuesIn(LanguageModelKinds()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace edgewise::testing
