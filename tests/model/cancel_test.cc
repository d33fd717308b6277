// A caller stops work while a layer runs, and the kernels leave out what they like: nobody sees it, and nobody else
// notices. The backend tells late, so that what is looked at too early is absurd.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <thread>

#include "model/forward/generation.h"
#include "model/kinds/kind.h"
#include "tests/model/cancelling_backend.h"
#include "tests/model/model_kinds.h"

namespace edgewise::testing {
namespace {

class Cancelling : public ::testing::TestWithParam<ModelKind> {
 protected:
  Cancelling() {
    WriteModel(folder_.path(), ConfigOf(GetParam()), 5);
    auto stopping = std::make_unique<CancellingBackend>(MakeBackend());
    backend_ = stopping.get();
    auto deferred = std::make_unique<DeferredBackend>(std::move(stopping));
    deferred_ = deferred.get();
    model_ = LoadModel(folder_.path(), std::move(deferred));
  }

  // Budgets, ensembles, a tolerance, graphs, expected edges.
  std::vector<ModelInput> Inputs() const {
    std::vector<ModelInput> inputs;
    std::mt19937_64 random(11);
    for (int i = 0; i < 8; ++i) {
      ModelInput& input = inputs.emplace_back(RandomInput(GetParam(), *model_, random, 24));
      input.samples = 1 + i % 4;
      input.wanted.expected = i % 2 == 0;
      input.wanted.key_degrees = i % 3 == 0;
      input.wanted.graph = input.samples == 1;
      if (i == 7) input.samples = 9, input.tolerance = 0.01;
      if (i % 3 == 0) continue;
      const uint64_t least = std::max<uint64_t>(1, model_->LeastEdges(input));
      input.max_edges = least + (model_->Pairs(input) - least) / (2 + i % 3);
    }
    return inputs;
  }

  // The results of a pass during whose call of Attend number `call` the callers of `victims` stop them. Some results
  // may be CANCELLED.
  std::vector<InputResult> RunCancelled(std::vector<ModelInput> inputs, const std::set<size_t>& victims, int64_t call,
                                        Pass::Options options = {}) {
    std::vector<std::stop_source> callers(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i].stopping = callers[i].get_token();
    backend_->CancelAfter(call, [&] {
      for (size_t i : victims) callers[i].request_stop();
    });
    Pass pass(*model_, inputs, options);
    while (!pass.done()) {
      const absl::Status status = pass.Step();
      EXPECT_TRUE(status.ok()) << status;
      if (!status.ok()) break;
    }
    std::vector<InputResult> results;
    for (size_t i = 0; i < inputs.size(); ++i) results.push_back(pass.TakeResult(static_cast<int64_t>(i)));
    return results;
  }

  int64_t CallsOf(const std::vector<ModelInput>& inputs, Pass::Options options = {}) {
    const int64_t before = backend_->calls();
    RunAll(*model_, inputs, options);
    return backend_->calls() - before;
  }

  TemporaryFolder folder_;
  LoadedModel model_;
  DeferredBackend* deferred_ = nullptr;  // over
  CancellingBackend* backend_ = nullptr;
};

// Whether two results agree, also in what SameBytes leaves out.
bool Same(const InputResult& a, const InputResult& b) {
  return SameBytes(a, b) && a.expected_edges == b.expected_edges;
}

TEST_P(Cancelling, AnInputCancelledInAnyLayerIsCancelled) {
  for (const ModelInput& input : Inputs()) {
    const int64_t calls = CallsOf({input});
    for (int64_t call = 0; call < calls; ++call) {
      const int64_t dropped = backend_->dropped();
      const InputResult result = RunCancelled({input}, {0}, call)[0];
      EXPECT_TRUE(absl::IsCancelled(result.status)) << call << " of " << calls << ": " << result.status;
      EXPECT_TRUE(result.probabilities.empty());
      EXPECT_TRUE(input.tolerance > 0.0 || result.sample_results.empty()) << "one wave";
      EXPECT_GT(backend_->dropped(), dropped) << "the kernels were told";
    }
  }
}

TEST_P(Cancelling, OthersOfTheBatchDoNotNotice) {
  const std::vector<ModelInput> inputs = Inputs();
  for (const int64_t tokens : {16384, 60, 1}) {  // one group; some; each its own
    Pass::Options options;
    options.max_wave_tokens = tokens;
    const std::vector<InputResult> whole = RunAll(*model_, inputs, options);
    const int64_t calls = CallsOf(inputs, options);
    for (const std::set<size_t>& victims : {std::set<size_t>{1, 4, 7}, {0, 2, 3, 5, 6}}) {
      for (const int64_t call : std::set<int64_t>{0, 1, 2, calls / 2, calls - 2, calls - 1}) {
        if (call < 0 || call >= calls) continue;
        const std::vector<InputResult> results = RunCancelled(inputs, victims, call, options);
        size_t cancelled = 0;
        for (size_t i = 0; i < inputs.size(); ++i) {
          const bool stopped = victims.contains(i) && absl::IsCancelled(results[i].status);
          cancelled += stopped;
          EXPECT_TRUE(stopped || Same(whole[i], results[i])) << i << ", call " << call << ": " << results[i].status;
        }
        EXPECT_TRUE(call > 0 || cancelled == victims.size());
      }
    }
  }
}

TEST_P(Cancelling, AnInputThatWasStoppedBeforeCostsNothing) {
  const std::vector<ModelInput> inputs = Inputs();
  std::stop_source caller;
  caller.request_stop();
  std::vector<ModelInput> some = inputs;
  for (size_t i = 0; i < some.size(); i += 2) some[i].stopping = caller.get_token();
  std::vector<ModelInput> all = some;
  for (ModelInput& input : all) input.stopping = caller.get_token();
  const int64_t calls = backend_->calls(), flags = backend_->flags();
  for (const InputResult& result : RunAll(*model_, all)) EXPECT_TRUE(absl::IsCancelled(result.status));
  EXPECT_EQ(backend_->calls(), calls);
  EXPECT_EQ(backend_->flags(), flags);
  const std::vector<InputResult> whole = RunAll(*model_, inputs), results = RunAll(*model_, some);
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(i % 2 == 0 ? absl::IsCancelled(results[i].status) : Same(whole[i], results[i])) << i;
  }
}

TEST_P(Cancelling, OnlyWhatCanBeCancelledHasAFlag) {
  std::vector<ModelInput> inputs = Inputs();
  const auto flags = [&] {
    const int64_t before = backend_->flags();
    RunAll(*model_, inputs);
    return backend_->flags() - before;
  };
  EXPECT_EQ(flags(), 0);
  std::vector<std::stop_source> callers(inputs.size());
  inputs[3].stopping = callers[3].get_token();
  EXPECT_EQ(flags(), 1);
  for (ModelInput& input : inputs) input.stopping = callers[0].get_token();
  EXPECT_EQ(flags(), 1) << "of one caller";
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i].stopping = callers[i].get_token();
  EXPECT_EQ(flags(), static_cast<int64_t>(inputs.size()));
}

// The backend looks at whether flags live as long as the work that names them.
TEST_P(Cancelling, APassThatEndsHalfWayKeepsItsFlagsUntilTheBackendIsDone) {
  std::stop_source caller;
  std::vector<ModelInput> inputs = Inputs();
  for (ModelInput& input : inputs) {
    input.stopping = caller.get_token();
    input.wanted.graph = false;  // nothing is waited for before the end
  }
  for (const int64_t tokens : {16384, 60}) {
    Pass::Options options;
    options.max_wave_tokens = tokens;
    for (int steps = 1; steps < 6; ++steps) {
      for (const bool fails : {false, true}) {
        deferred_->FailAfter(fails ? steps - 1 : -1);
        absl::Status status;
        {
          Pass pass(*model_, inputs, options);
          for (int s = 0; s < steps && status.ok(); ++s) status = pass.Step();
          EXPECT_TRUE(deferred_->pending() > 0 || steps > 1) << "this test tests something";
        }
        EXPECT_EQ(deferred_->pending(), 0);
      }
    }
  }
}

TEST_P(Cancelling, AnyThreadMayStopAtAnyTime) {
  const LoadedModel plain = LoadModel(folder_.path());  // on a backend that runs behind as it likes
  const std::vector<ModelInput> inputs = Inputs();
  const std::vector<InputResult> whole = RunAll(*model_, inputs);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::stop_source> callers(inputs.size());
    std::vector<ModelInput> stoppable = inputs;
    for (size_t i = 0; i < inputs.size(); ++i) stoppable[i].stopping = callers[i].get_token();
    std::thread client([&] {
      for (std::stop_source& caller : callers) {
        std::this_thread::sleep_for(std::chrono::microseconds(40 * round));
        caller.request_stop();
      }
    });
    const std::vector<InputResult> results = RunAll(round % 2 == 0 ? *model_ : *plain, stoppable);
    client.join();
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_TRUE(absl::IsCancelled(results[i].status) || Same(whole[i], results[i])) << i << results[i].status;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Cancelling, ::testing::ValuesIn(ModelKinds()),
                         [](const auto& info) { return info.param.name; });

class CancelledGeneration : public Cancelling {
 protected:
  struct Run {
    std::vector<int32_t> tokens;
    std::vector<int64_t> calls;  // of Attend, when each token was there
    absl::Status status;
  };

  Run Generate(double density, std::stop_token stopping) {
    GenerationOptions options;
    options.max_new_tokens = 4;
    options.temperature = 0.8;
    options.samples = 3;
    options.max_density = density;
    options.stopping = std::move(stopping);
    if (!GetParam().override_with.is_null()) {
      options.attention = Override(ConfigOf(GetParam()), GetParam().override_with);
    }
    const int64_t before = backend_->calls();
    auto generation = Generation::Create(*model_, *model_->Prepare(prompt_, TruncateMode::kRefuse), options);
    EXPECT_TRUE(generation.ok()) << generation.status();
    Run run;
    while (run.status.ok() && !(*generation)->done()) {
      run.status = (*generation)->Step();
      const std::optional<GeneratedToken> token = (*generation)->TakeToken();
      EXPECT_TRUE(run.status.ok() || !token.has_value());
      if (!token.has_value()) continue;
      run.tokens.push_back(token->token_id);
      run.calls.push_back(backend_->calls() - before);
    }
    EXPECT_EQ((*generation)->Step(), run.status) << "it stays so";
    return run;
  }

  const std::vector<int32_t> prompt_ = RandomTokens(62, 49, 3);  // the text leaves the context on its way
};

TEST_P(CancelledGeneration, OneThatIsStoppedInAnyLayerGivesNoTokenAfter) {
  for (const double density : {0.0, 0.4}) {
    const int64_t flags = backend_->flags();
    const Run whole = Generate(density, {});
    ASSERT_TRUE(whole.status.ok()) << whole.status;
    ASSERT_EQ(whole.tokens.size(), 4u);
    EXPECT_EQ(backend_->flags(), flags);
    for (int64_t call = 0; call < whole.calls.back(); ++call) {
      std::stop_source caller;
      backend_->CancelAfter(call, [&] { caller.request_stop(); });
      const int64_t dropped = backend_->dropped();
      const Run run = Generate(density, caller.get_token());
      EXPECT_TRUE(absl::IsCancelled(run.status)) << call << ": " << run.status;
      EXPECT_GT(backend_->dropped(), dropped) << "the kernels were told";
      std::vector<int32_t> before;
      for (size_t t = 0; t < whole.tokens.size() && whole.calls[t] <= call; ++t) before.push_back(whole.tokens[t]);
      EXPECT_EQ(run.tokens, before) << call;
    }
    std::stop_source caller;
    EXPECT_EQ(Generate(density, caller.get_token()).tokens, whole.tokens);
  }
}

TEST_P(CancelledGeneration, OneThatIsStoppedBetweenStepsDoesNoMore) {
  for (int steps = 0; steps < 8; ++steps) {
    std::stop_source caller;
    GenerationOptions options;
    options.max_new_tokens = 12;
    options.stopping = caller.get_token();
    auto generation = Generation::Create(*model_, *model_->Prepare(prompt_, TruncateMode::kRefuse), options);
    ASSERT_TRUE(generation.ok()) << generation.status();
    for (int s = 0; s < steps; ++s) ASSERT_TRUE((*generation)->Step().ok());
    const int64_t calls = backend_->calls();
    caller.request_stop();
    EXPECT_TRUE(absl::IsCancelled((*generation)->Step()));
    EXPECT_FALSE((*generation)->TakeToken().has_value());
    EXPECT_EQ(backend_->calls(), calls);
  }
}

TEST_P(CancelledGeneration, OneThatEndsHalfWayKeepsItsFlagUntilTheBackendIsDone) {
  for (int steps = 1; steps < 6; ++steps) {
    std::stop_source caller;
    GenerationOptions options;
    options.max_new_tokens = 12;
    options.stopping = caller.get_token();
    auto generation = Generation::Create(*model_, *model_->Prepare(prompt_, TruncateMode::kRefuse), options);
    ASSERT_TRUE(generation.ok()) << generation.status();
    for (int s = 0; s < steps; ++s) ASSERT_TRUE((*generation)->Step().ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, CancelledGeneration, ::testing::ValuesIn(LanguageModelKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace edgewise::testing
