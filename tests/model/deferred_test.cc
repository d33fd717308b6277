// A backend may run behind the host: what it reports comes late, and it writes where it was told to until then. Nothing
// else may change, whatever happens in between.
#include <gtest/gtest.h>

#include <random>

#include "model/forward/generation.h"
#include "model/kinds/kind.h"
#include "tests/model/deferred_backend.h"
#include "tests/model/model_kinds.h"

namespace edgewise::testing {
namespace {

class Deferred : public ::testing::TestWithParam<ModelKind> {
 protected:
  Deferred() {
    WriteModel(folder_.path(), ConfigOf(GetParam()), 5);
    plain_ = LoadModel(folder_.path());
    auto backend = std::make_unique<DeferredBackend>(MakeBackend());
    backend_ = backend.get();
    deferred_ = LoadModel(folder_.path(), std::move(backend));
  }

  std::vector<ModelInput> Inputs(bool graphs) const {
    std::vector<ModelInput> inputs;
    std::mt19937_64 random(11);
    for (int i = 0; i < 10; ++i) {
      ModelInput& input = inputs.emplace_back(RandomInput(GetParam(), *plain_, random));
      input.seed = random();
      input.samples = 1 + i % 4;
      input.dense = i == 4;
      input.wanted.expected = i % 2 == 0;
      input.wanted.key_degrees = i % 3 == 0;
      input.wanted.graph = graphs && i % 4 == 2;
      if (i == 7) input.samples = 9, input.tolerance = 0.01;
      if (i % 3 == 0) continue;
      const uint64_t least = std::max<uint64_t>(1, plain_->LeastEdges(input));
      input.max_edges = least + (plain_->Pairs(input) - least) / (2 + i % 3);
    }
    return inputs;
  }

  void ExpectSame(const InputResult& a, const InputResult& b) const {
    EXPECT_TRUE(SameBytes(a, b));
    EXPECT_EQ(a.expected_edges, b.expected_edges);
    for (size_t s = 0; s < a.sample_results.size(); ++s) {
      EXPECT_EQ(a.sample_results[s].capped, b.sample_results[s].capped);
    }
  }

  TemporaryFolder folder_;
  LoadedModel plain_, deferred_;
  DeferredBackend* backend_ = nullptr;
};

TEST_P(Deferred, LateReportsChangeNoByte) {
  for (const bool graphs : {false, true}) {
    const std::vector<ModelInput> inputs = Inputs(graphs);
    for (const int64_t tokens : {16384, 90, 1}) {
      Pass::Options options;
      options.max_wave_tokens = tokens;
      const std::vector<InputResult> want = RunAll(*plain_, inputs, options);
      const std::vector<InputResult> got = RunAll(*deferred_, inputs, options);
      for (size_t i = 0; i < inputs.size(); ++i) ExpectSame(want[i], got[i]);
    }
  }
}

TEST_P(Deferred, DroppedInputsLeaveTheOthersAlone) {
  const std::vector<ModelInput> inputs = Inputs(false);
  const std::vector<InputResult> whole = RunAll(*plain_, inputs);
  for (int steps = 0; steps < 5; ++steps) {
    Pass pass(*deferred_, inputs, {});
    for (int s = 0; s < steps && !pass.done(); ++s) ASSERT_TRUE(pass.Step().ok());
    for (size_t i = 0; i < inputs.size(); i += 2) pass.Cancel(static_cast<int64_t>(i), absl::CancelledError("gone"));
    while (!pass.done()) ASSERT_TRUE(pass.Step().ok());
    for (size_t i = 1; i < inputs.size(); i += 2) ExpectSame(whole[i], pass.TakeResult(static_cast<int64_t>(i)));
  }
}

// A group of inputs that is dropped while it runs, and the next one.
TEST_P(Deferred, ADroppedGroupLeavesTheNextAlone) {
  const std::vector<ModelInput> inputs = Inputs(false);
  Pass::Options options;
  options.max_wave_tokens = 1;  // every input is a group
  const std::vector<InputResult> whole = RunAll(*plain_, inputs, options);
  for (int steps = 0; steps < 4; ++steps) {
    Pass pass(*deferred_, inputs, options);
    for (int s = 0; s < steps; ++s) ASSERT_TRUE(pass.Step().ok());
    pass.Cancel(0, absl::CancelledError("gone"));
    while (!pass.done()) ASSERT_TRUE(pass.Step().ok());
    for (size_t i = 1; i < inputs.size(); ++i) ExpectSame(whole[i], pass.TakeResult(static_cast<int64_t>(i)));
  }
}

TEST_P(Deferred, APassThatEndsHalfWayWaitsForTheBackend) {
  for (int steps = 1; steps < 6; ++steps) {
    const std::vector<ModelInput> inputs = Inputs(false);
    const int64_t before = backend_->throttles();
    {
      Pass pass(*deferred_, inputs, {});
      for (int s = 0; s < steps; ++s) ASSERT_TRUE(pass.Step().ok());
      EXPECT_TRUE(pass.done() || backend_->throttles() == before + steps) << "once a step";
      if (steps == 1 && plain_->config().num_hidden_layers > 1) {
        EXPECT_GT(backend_->pending(), 0) << "this test tests something";
      }
    }
    EXPECT_EQ(backend_->pending(), 0);
  }
}

TEST_P(Deferred, AStepThatFailsWaitsForTheBackend) {
  const std::vector<ModelInput> inputs = Inputs(false);
  for (int calls = 0; calls < plain_->config().num_hidden_layers; ++calls) {
    backend_->FailAfter(calls);
    absl::Status status;
    {
      Pass pass(*deferred_, inputs, {});
      while (status.ok() && !pass.done()) status = pass.Step();
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(backend_->pending(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Deferred, ::testing::ValuesIn(ModelKinds()),
                         [](const auto& info) { return info.param.name; });

class DeferredGeneration : public Deferred {
 protected:
  std::unique_ptr<Generation> Start(const LoadedModel& loaded, uint32_t samples, double density, bool dense) const {
    GenerationOptions options;
    options.max_new_tokens = 12;
    options.temperature = 0.8;
    options.samples = samples;
    options.max_density = density;
    options.dense = dense;
    if (!GetParam().override_with.is_null()) {
      options.attention = Override(ConfigOf(GetParam()), GetParam().override_with);
    }
    const auto prompt = loaded->Prepare(RandomTokens(20, 49, 3), TruncateMode::kRefuse);
    auto generation = Generation::Create(*loaded, *prompt, options);
    EXPECT_TRUE(generation.ok()) << generation.status();
    return *std::move(generation);
  }
};

TEST_P(DeferredGeneration, LateReportsChangeNoToken) {
  for (const double density : {0.0, 0.4, 0.8}) {
    for (const bool dense : {false, true}) {
      const auto plain = Start(plain_, 3, dense ? 0.0 : density, dense);
      const auto deferred = Start(deferred_, 3, dense ? 0.0 : density, dense);
      while (!plain->done()) {
        ASSERT_TRUE(plain->Step().ok());
        ASSERT_TRUE(deferred->Step().ok());
        const auto want = plain->TakeToken(), got = deferred->TakeToken();
        ASSERT_EQ(want.has_value(), got.has_value());
        if (!want.has_value()) continue;
        EXPECT_EQ(want->token_id, got->token_id);
        EXPECT_EQ(want->log_probability, got->log_probability);
        EXPECT_EQ(want->edges.edges, got->edges.edges);
        EXPECT_EQ(want->edges.max_sample_edges, got->edges.max_sample_edges);
        EXPECT_EQ(want->edges.capped, got->edges.capped);
      }
      EXPECT_TRUE(deferred->done());
    }
  }
  EXPECT_EQ(backend_->pending(), 0);
}

TEST_P(DeferredGeneration, AGenerationThatEndsHalfWayWaitsForTheBackend) {
  for (int steps = 1; steps < 6; ++steps) {
    auto generation = Start(deferred_, 2, 0.0, false);
    for (int s = 0; s < steps; ++s) ASSERT_TRUE(generation->Step().ok());
    generation.reset();
    EXPECT_EQ(backend_->pending(), 0);
  }
}

TEST_P(DeferredGeneration, AStepThatFailsWaitsForTheBackend) {
  for (int calls = 0; calls < 4; ++calls) {
    backend_->FailAfter(calls);
    absl::Status status;
    auto generation = Start(deferred_, 2, 0.5, false);
    while (status.ok() && !generation->done()) status = generation->Step();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    generation.reset();
    EXPECT_EQ(backend_->pending(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeferredGeneration, ::testing::ValuesIn(LanguageModelKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace edgewise::testing
