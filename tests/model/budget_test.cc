// Promises 1, 2 and 8 (docs/promises.md): edges are counted as they are, a cap is never exceeded, and a report can be
// audited.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/kinds/kind.h"
#include "tests/model/model_builder.h"
#include "tests/model/model_kinds.h"
#include "tests/model/run_model.h"
#include "tests/model/toy_kind.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;

// Each model is loaded once, all on one backend, and inputs run together: a GPU takes as long for one as for a hundred.
// Alone they have the same bytes (promise 4).
class BudgetTest : public ::testing::TestWithParam<ModelKind> {
 protected:
  static void SetUpTestSuite() { backend_ = MakeBackend(); }
  static void TearDownTestSuite() {
    models_.clear();
    backend_.reset();
  }
  void SetUp() override {
    auto at = models_.find(GetParam().name);
    if (at == models_.end()) {
      const TemporaryFolder folder;
      const std::string path = WriteModel(folder.path(), ConfigOf(GetParam()), 7);
      at = models_.emplace(GetParam().name, LoadModelOn(*backend_, path)).first;
    }
    loaded_ = at->second.model.get();
  }

  // Random inputs that want their graphs.
  std::vector<ModelInput> RandomInputs(int count, std::mt19937_64& random) const {
    std::vector<ModelInput> inputs;
    for (int i = 0; i < count; ++i) {
      inputs.push_back(RandomInput(GetParam(), *loaded_, random));
      inputs.back().wanted.graph = true;
    }
    return inputs;
  }

  uint64_t Least(const ModelInput& input) const { return std::max<uint64_t>(1, loaded_->LeastEdges(input)); }

  static std::unique_ptr<Backend> backend_;
  static std::map<std::string, LoadedModel> models_;  // by the kind's name
  const Model* loaded_ = nullptr;
};

std::unique_ptr<Backend> BudgetTest::backend_;
std::map<std::string, LoadedModel> BudgetTest::models_;

TEST_P(BudgetTest, NeverExceededByOneEdge) {
  std::mt19937_64 random(1);
  std::vector<ModelInput> inputs = RandomInputs(100, random);
  for (ModelInput& input : inputs) input.wanted.graph = false;
  const std::vector<InputResult> free = RunAll(*loaded_, inputs);
  for (ModelInput& input : inputs) {
    input.wanted.graph = true;
    const uint64_t least = Least(input);
    input.max_edges = least + random() % (loaded_->Pairs(input) - least + 1) / (1 + random() % 8);
  }
  const std::vector<InputResult> results = RunAll(*loaded_, inputs);
  int capped = 0, droppable = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ModelInput& input = inputs[i];
    const InputResult& result = results[i];
    ASSERT_TRUE(result.status.ok()) << result.status;
    const uint64_t counted = CountEdges(*result.graph);
    ASSERT_LE(counted, input.max_edges);
    ASSERT_EQ(static_cast<double>(counted), result.edges) << "the reported count is the graph's";
    ASSERT_EQ(counted, result.max_sample_edges);
    ASSERT_TRUE(result.capped || free[i].max_sample_edges <= input.max_edges)
        << "what does not fit has been dropped, and is said";
    ASSERT_TRUE(!result.capped || counted < loaded_->Pairs(input));
    capped += result.capped;
    droppable += free[i].max_sample_edges > Least(input);
  }
  EXPECT_GE(capped, droppable / 6) << "the caps of this test bind";
}

TEST_P(BudgetTest, EverySampleOfAnEnsembleStaysBelowTheCap) {
  std::mt19937_64 random(2);
  std::vector<ModelInput> inputs = RandomInputs(20, random);
  for (ModelInput& input : inputs) {
    input.wanted.graph = false;
    input.samples = 1 + random() % 6;
    const uint64_t least = Least(input);
    input.max_edges = least + random() % (loaded_->Pairs(input) - least + 1) / 3;
  }
  const std::vector<InputResult> results = RunAll(*loaded_, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_EQ(results[i].sample_results.size(), inputs[i].samples);
    for (const SampleResult& sample : results[i].sample_results) ASSERT_LE(sample.edges, inputs[i].max_edges);
  }
}

// Only sbm has a law whose mean is not what was drawn.
TEST_P(BudgetTest, ExpectedEdgesAreTheEdgesButForSbm) {
  std::mt19937_64 random(6);
  std::vector<ModelInput> inputs;
  for (ModelInput& input : RandomInputs(20, random)) {
    input.wanted.graph = false;
    input.wanted.expected = true;
    input.samples = 1 + random() % 4;
    const uint64_t least = Least(input);
    for (const uint64_t cap : {kNoCap, least, least + (loaded_->Pairs(input) - least) / 4}) {
      input.max_edges = cap;
      inputs.push_back(input);
    }
  }
  const std::vector<InputResult> results = RunAll(*loaded_, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const InputResult& result = results[i];
    const std::vector<AttentionConfig>& attention = AttentionOf(loaded_->config(), inputs[i]);
    const bool sbm =
        std::any_of(attention.begin(), attention.end(), [](const auto& layer) { return layer.kind == &kSbmKind; });
    ASSERT_TRUE(result.status.ok()) << result.status;
    if (!sbm) {
      EXPECT_EQ(result.expected_edges, result.edges) << inputs[i].max_edges;
    }
    for (const SampleResult& sample : result.sample_results) {
      for (size_t l = 0; l < sample.layers.size(); ++l) {
        if (attention[l % attention.size()].kind == &kSbmKind) continue;
        for (const HeadCounts& head : sample.layers[l]) {
          ASSERT_EQ(head.expected, static_cast<double>(head.edges)) << "layer " << l << ", cap " << inputs[i].max_edges;
        }
      }
    }
  }
}

TEST_P(BudgetTest, ASlackCapChangesNoByte) {
  std::mt19937_64 random(3);
  const std::vector<ModelInput> inputs = RandomInputs(30, random);
  const std::vector<InputResult> free = RunAll(*loaded_, inputs);
  std::vector<ModelInput> capped;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const uint64_t pairs = loaded_->Pairs(inputs[i]);
    const auto near = static_cast<uint64_t>(free[i].edges * (1.0 + 0.1 * (i % 10)));
    for (const uint64_t cap : {pairs, pairs + 1, kNoCap - 1, std::max<uint64_t>(Least(inputs[i]), near)}) {
      capped.push_back(inputs[i]);
      capped.back().max_edges = cap;
    }
  }
  const std::vector<InputResult> results = RunAll(*loaded_, capped);
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_TRUE(i % 4 == 3 || !results[i].capped) << "a cap of at least all pairs never caps";
    // Any cap that reports capped = false gave the free answer.
    ASSERT_EQ(SameBytes(free[i / 4], results[i]), !results[i].capped);
  }
}

TEST_P(BudgetTest, InTheFirstLayerALargerCapOnlyAddsEdges) {
  std::mt19937_64 random(4);
  constexpr int kCaps = 9;  // of each input
  std::vector<ModelInput> inputs;
  for (ModelInput& input : RandomInputs(20, random)) {
    const uint64_t least = Least(input);
    for (int step = 0; step < kCaps; ++step) {
      input.max_edges = least + (loaded_->Pairs(input) - least) * step / (kCaps - 1);
      inputs.push_back(input);
    }
  }
  const std::vector<InputResult> results = RunAll(*loaded_, inputs);
  std::vector<std::set<std::pair<int64_t, int32_t>>> smaller;
  for (size_t r = 0; r < results.size(); ++r) {
    std::vector<std::set<std::pair<int64_t, int32_t>>> edges;
    for (const HeadEdges& head : results[r].graph->layers[0]) {
      auto& set = edges.emplace_back();
      for (size_t i = 0; i + 1 < head.row_offsets.size(); ++i) {
        for (int64_t e = head.row_offsets[i]; e < head.row_offsets[i + 1]; ++e) set.emplace(i, head.keys[e]);
      }
    }
    for (size_t h = 0; r % kCaps > 0 && h < smaller.size(); ++h) {
      ASSERT_TRUE(std::includes(edges[h].begin(), edges[h].end(), smaller[h].begin(), smaller[h].end()));
    }
    smaller = std::move(edges);
  }
}

TEST_P(BudgetTest, TheReturnedGraphFedBackGivesTheSameBytes) {
  std::mt19937_64 random(5);
  std::vector<ModelInput> inputs = RandomInputs(30, random);
  for (size_t i = 1; i < inputs.size(); i += 2) {
    const uint64_t least = Least(inputs[i]);
    inputs[i].max_edges = least + (loaded_->Pairs(inputs[i]) - least) / 4;
  }
  std::vector<InputResult> drawn = RunAll(*loaded_, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i].graph = drawn[i].graph;
    ASSERT_TRUE(loaded_->CheckGraph(inputs[i]).ok()) << loaded_->CheckGraph(inputs[i]);
    inputs[i].max_edges = kNoCap;
    drawn[i].capped = false;  // a given graph is never capped
  }
  const std::vector<InputResult> given = RunAll(*loaded_, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) ASSERT_TRUE(SameBytes(drawn[i], given[i]));
}

TEST_P(BudgetTest, DenseCostsExactlyAllPairs) {
  std::mt19937_64 random(6);
  std::vector<ModelInput> inputs = RandomInputs(10, random);
  for (ModelInput& input : inputs) input.dense = true;
  const std::vector<InputResult> results = RunAll(*loaded_, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ModelInput& input = inputs[i];
    const InputResult& result = results[i];
    uint64_t pairs = 0;
    for (const ModelSequence& sequence : input.sequences) {
      const uint64_t n = sequence.valid();
      pairs += (loaded_->config().causal ? n * (n + 1) / 2 : n * n) * loaded_->config().num_hidden_layers *
               loaded_->config().num_attention_heads;
    }
    EXPECT_EQ(loaded_->Pairs(input), pairs);
    EXPECT_EQ(loaded_->LeastEdges(input), pairs);
    EXPECT_EQ(result.edges, static_cast<double>(pairs));
    EXPECT_EQ(result.density, 1.0);
    EXPECT_EQ(CountEdges(*result.graph), pairs);
  }
}

// Edges of one head that no cap drops, from the definition and not by the code under test; -1: not counted here.
int64_t ForcedEdges(const ModelConfig& config, const AttentionConfig& attention, const ModelSequence& sequence) {
  int64_t forced = 0;
  for (int32_t i : sequence.positions) {
    if (attention.kind == &kSsaKind || attention.kind == &kEveryNthKind) {
      ++forced;  // its first source
      continue;
    }
    for (int32_t j : sequence.positions) {
      if (config.causal && j > i) continue;
      if (attention.kind == &kDenseKind) {
        forced += std::abs(i - j) <= attention.reach;
      } else if (attention.kind == &kSbmKind) {
        forced += (attention.self_loops && i == j) ||
                  (attention.local_window > 0 && std::abs(i - j) <= attention.local_window / 2);
      } else if (attention.kind == &kBlockKind && attention.block_size > 0 && attention.pattern < BlockPattern::kList) {
        forced += i / attention.block_size == j / attention.block_size;
      } else {
        return -1;
      }
    }
  }
  return forced;
}

TEST_P(BudgetTest, ForcedEdgesAreTheLeastAndStay) {
  std::mt19937_64 random(8);
  for (ModelInput& input : RandomInputs(10, random)) {
    const std::vector<AttentionConfig>& layers = AttentionOf(loaded_->config(), input);
    int64_t forced = 0;
    bool sources = false;
    for (const AttentionConfig& attention : layers) {
      for (const ModelSequence& sequence : input.sequences) {
        const int64_t of_head = ForcedEdges(loaded_->config(), attention, sequence);
        if (of_head < 0) GTEST_SKIP() << "counted in patterns tests";
        forced += of_head * loaded_->config().num_attention_heads;
      }
      sources |= attention.kind == &kSsaKind;
    }
    ASSERT_EQ(loaded_->LeastEdges(input), static_cast<uint64_t>(forced));
    if (forced == 0) continue;
    input.max_edges = static_cast<uint64_t>(forced);
    const InputResult result = RunOne(*loaded_, input);
    if (sources) {  // a query may have no source at all
      ASSERT_LE(result.edges, static_cast<double>(forced));
    } else {
      ASSERT_EQ(result.edges, static_cast<double>(forced));
    }
    for (size_t l = 0; l < result.graph->layers.size(); ++l) {
      const AttentionConfig& attention = layers[l % layers.size()];
      if (attention.kind != &kSbmKind) continue;
      for (const HeadEdges& head : result.graph->layers[l]) {
        for (size_t i = 0; i + 1 < head.row_offsets.size(); ++i) {
          for (int64_t e = head.row_offsets[i]; e < head.row_offsets[i + 1]; ++e) {
            const int distance = std::abs(static_cast<int>(i) - head.keys[e]);
            ASSERT_LE(distance, attention.local_window / 2) << "only forced edges are left";
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, BudgetTest, ::testing::ValuesIn(ModelKinds()),
                         [](const auto& info) { return info.param.name; });

// A cap at the free use, one below and one above, on one layer, where the allowance is the whole cap.
TEST(BudgetBoundaryTest, ExactlyTheFreeUseIsFree) {
  json config = SmallConfig();
  config["num_hidden_layers"] = 1;
  const TemporaryFolder folder;
  const LoadedModel loaded = LoadModel(WriteModel(folder.path(), config));
  for (uint64_t seed = 0; seed < 50; ++seed) {
    ModelInput input = MakeInput(*loaded, RandomTokens(30, 49, seed));
    input.seed = seed;
    const InputResult free = RunOne(*loaded, input);
    const uint64_t use = free.max_sample_edges;
    ASSERT_GT(use, 1u);
    input.max_edges = use + 1;
    EXPECT_TRUE(SameBytes(free, RunOne(*loaded, input)));
    input.max_edges = use;
    EXPECT_TRUE(SameBytes(free, RunOne(*loaded, input)));
    input.max_edges = use - 1;
    const InputResult below = RunOne(*loaded, input);
    EXPECT_TRUE(below.capped);
    EXPECT_EQ(below.max_sample_edges, use - 1) << "a cap that binds is used up";
  }
}

// Later layers may use the edges that a layer leaves: shares that starve the last layer do not starve it when the first
// left its edges unused.
TEST(BudgetBoundaryTest, WhatALayerLeavesLaterLayersUse) {
  json config = SmallConfig();
  config["budget_shares"] = {1000.0, 1.0};
  const TemporaryFolder folder;
  const LoadedModel loaded = LoadModel(WriteModel(folder.path(), config));
  ModelInput input = MakeInput(*loaded, RandomTokens(30, 49, 1));
  const InputResult free = RunOne(*loaded, input);
  input.max_edges = free.max_sample_edges;
  EXPECT_TRUE(SameBytes(free, RunOne(*loaded, input)));
}

}  // namespace
}  // namespace edgewise::testing
