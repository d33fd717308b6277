// DESIGN promises 1, 2 and 8: edges are counted as they are, a cap is never exceeded, what is reported can be audited.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;

struct Kind {
  std::string name;
  json changes;  // of SmallConfig
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

json Sbm(const char* law, bool self_loops, int window) {
  return {{"kind", "sbm"},       {"num_clusters", 16},       {"law", law},
          {"exploration", 0.01}, {"self_loops", self_loops}, {"local_window", window}};
}

std::vector<Kind> Kinds() {
  const json dense = {{"kind", "dense"}};
  return {
      {"bernoulli", json::object()},
      {"poisson_set", {{"attention", Sbm("poisson_set", false, 0)}}},
      {"poisson_multi", {{"attention", Sbm("poisson_multi", true, 0)}}},
      {"self_loops_three_heads",
       {{"attention", Sbm("bernoulli", true, 0)}, {"num_attention_heads", 3}, {"head_dim", 16}}},
      {"window_four_layers", {{"attention", Sbm("bernoulli", true, 6)}, {"num_hidden_layers", 4}}},
      {"pair", {{"task", "pair-classification"}}},
      {"tied_pair", {{"task", "pair-classification"}, {"tied_layers", true}, {"num_hidden_layers", 3}}},
      {"dense_below",
       {{"attention", {dense, Sbm("bernoulli", false, 0), Sbm("poisson_set", true, 0)}}, {"num_hidden_layers", 3}}},
      {"shares", {{"num_hidden_layers", 3}, {"budget_shares", {1.0, 4.0, 0.5}}}},
      {"cls", {{"pooling", {{"kind", "cls"}, {"divisor", nullptr}}}, {"cls_token_id", 49}}},
  };
}

class BudgetTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    json config = SmallConfig();
    config.merge_patch(GetParam().changes);
    loaded_ = LoadModel(WriteModel(folder_.path(), config, 7));
    pair_ = config["task"] == "pair-classification";
  }

  ModelInput RandomInput(std::mt19937_64& random) const {
    std::vector<int32_t> first = RandomTokens(1 + random() % 40, 49, random());
    if (random() % 2 == 0) first.insert(first.begin() + random() % first.size(), 3, 0);  // interior pads
    ModelInput input =
        MakeInput(*loaded_, first, pair_ ? RandomTokens(1 + random() % 20, 49, random()) : std::vector<int32_t>());
    input.seed = random();
    input.want_graph = true;
    return input;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  bool pair_ = false;
};

TEST_P(BudgetTest, NeverExceededByOneEdge) {
  std::mt19937_64 random(1);
  int capped = 0;
  for (int trial = 0; trial < 300; ++trial) {
    ModelInput input = RandomInput(random);
    const uint64_t least = std::max<uint64_t>(1, loaded_->LeastEdges(input));
    const uint64_t pairs = loaded_->Pairs(input);
    input.max_edges = least + random() % (pairs - least + 1) / (1 + random() % 8);
    const InputResult result = RunOne(*loaded_, input);
    ASSERT_TRUE(result.status.ok()) << result.status;
    const uint64_t counted = CountEdges(*result.graph);
    ASSERT_LE(counted, input.max_edges);
    ASSERT_EQ(static_cast<double>(counted), result.edges) << "the reported count is the graph's";
    ASSERT_EQ(counted, result.max_sample_edges);
    capped += result.capped;
  }
  EXPECT_GT(capped, 50) << "the caps of this test bind";
}

TEST_P(BudgetTest, EverySampleOfAnEnsembleStaysBelowTheCap) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 40; ++trial) {
    ModelInput input = RandomInput(random);
    input.want_graph = false;
    input.samples = 1 + random() % 6;
    const uint64_t least = std::max<uint64_t>(1, loaded_->LeastEdges(input));
    input.max_edges = least + random() % (loaded_->Pairs(input) - least + 1) / 3;
    const InputResult result = RunOne(*loaded_, input);
    ASSERT_EQ(result.sample_results.size(), input.samples);
    for (const SampleResult& sample : result.sample_results) ASSERT_LE(sample.edges, input.max_edges);
  }
}

TEST_P(BudgetTest, ASlackCapChangesNoByte) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 30; ++trial) {
    ModelInput input = RandomInput(random);
    const InputResult free = RunOne(*loaded_, input);
    const uint64_t pairs = loaded_->Pairs(input);
    for (const uint64_t cap : {pairs, pairs + 1, kNoCap - 1}) {
      input.max_edges = cap;
      const InputResult result = RunOne(*loaded_, input);
      ASSERT_FALSE(result.capped) << "a cap of at least all pairs never caps";
      ASSERT_TRUE(SameBytes(free, result));
    }
    // Any cap that reports capped = false gave the free answer.
    input.max_edges = std::max<uint64_t>(std::max<uint64_t>(1, loaded_->LeastEdges(input)),
                                         static_cast<uint64_t>(free.edges * (1.0 + 0.1 * (trial % 10))));
    const InputResult result = RunOne(*loaded_, input);
    if (!result.capped) {
      ASSERT_TRUE(SameBytes(free, result));
    } else {
      ASSERT_FALSE(SameBytes(free, result));
    }
  }
}

TEST_P(BudgetTest, InTheFirstLayerALargerCapOnlyAddsEdges) {
  std::mt19937_64 random(4);
  for (int trial = 0; trial < 20; ++trial) {
    ModelInput input = RandomInput(random);
    const uint64_t least = std::max<uint64_t>(1, loaded_->LeastEdges(input));
    std::vector<std::set<std::pair<int64_t, int32_t>>> smaller;
    for (int step = 0; step <= 8; ++step) {
      input.max_edges = least + (loaded_->Pairs(input) - least) * step / 8;
      const InputResult result = RunOne(*loaded_, input);
      std::vector<std::set<std::pair<int64_t, int32_t>>> edges;
      for (const HeadEdges& head : result.graph->layers[0]) {
        auto& set = edges.emplace_back();
        for (size_t i = 0; i + 1 < head.row_offsets.size(); ++i) {
          for (int64_t e = head.row_offsets[i]; e < head.row_offsets[i + 1]; ++e) set.emplace(i, head.keys[e]);
        }
      }
      for (size_t h = 0; h < smaller.size(); ++h) {
        ASSERT_TRUE(std::includes(edges[h].begin(), edges[h].end(), smaller[h].begin(), smaller[h].end()));
      }
      smaller = std::move(edges);
    }
  }
}

TEST_P(BudgetTest, TheReturnedGraphFedBackGivesTheSameBytes) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 30; ++trial) {
    ModelInput input = RandomInput(random);
    if (trial % 2 == 1) {
      const uint64_t least = std::max<uint64_t>(1, loaded_->LeastEdges(input));
      input.max_edges = least + (loaded_->Pairs(input) - least) / 4;
    }
    InputResult drawn = RunOne(*loaded_, input);
    input.graph = drawn.graph;
    ASSERT_TRUE(loaded_->CheckGraph(input).ok()) << loaded_->CheckGraph(input);
    input.max_edges = kNoCap;
    const InputResult given = RunOne(*loaded_, input);
    drawn.capped = false;  // a given graph is never capped
    ASSERT_TRUE(SameBytes(drawn, given));
  }
}

TEST_P(BudgetTest, DenseCostsExactlyAllPairs) {
  std::mt19937_64 random(6);
  for (int trial = 0; trial < 10; ++trial) {
    ModelInput input = RandomInput(random);
    input.dense = true;
    const InputResult result = RunOne(*loaded_, input);
    uint64_t pairs = 0;
    for (const ModelSequence& sequence : input.sequences) {
      pairs += static_cast<uint64_t>(sequence.valid()) * sequence.valid() * loaded_->config().num_hidden_layers *
               loaded_->config().num_attention_heads;
    }
    EXPECT_EQ(loaded_->Pairs(input), pairs);
    EXPECT_EQ(loaded_->LeastEdges(input), pairs);
    EXPECT_EQ(result.edges, static_cast<double>(pairs));
    EXPECT_EQ(result.density, 1.0);
    EXPECT_EQ(CountEdges(*result.graph), pairs);
  }
}

// Counted by hand from the definition, not by the code under test.
TEST_P(BudgetTest, ForcedEdgesAreTheLeastAndStay) {
  std::mt19937_64 random(8);
  for (int trial = 0; trial < 10; ++trial) {
    ModelInput input = RandomInput(random);
    uint64_t forced = 0;
    for (const AttentionConfig& attention : loaded_->config().attention) {
      for (const ModelSequence& sequence : input.sequences) {
        for (int32_t i : sequence.positions) {
          for (int32_t j : sequence.positions) {
            const bool keep = attention.kind == AttentionKind::kDense || (attention.self_loops && i == j) ||
                              (attention.local_window > 0 && std::abs(i - j) <= attention.local_window / 2);
            forced += keep ? loaded_->config().num_attention_heads : 0;
          }
        }
      }
    }
    ASSERT_EQ(loaded_->LeastEdges(input), forced);
    if (forced == 0) continue;
    input.max_edges = forced;
    const InputResult result = RunOne(*loaded_, input);
    ASSERT_EQ(result.edges, static_cast<double>(forced));
    const size_t layers = loaded_->config().num_hidden_layers;
    for (size_t l = 0; l < result.graph->layers.size(); ++l) {
      const AttentionConfig& attention = loaded_->config().attention[l % layers];
      if (attention.kind == AttentionKind::kDense) continue;
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

INSTANTIATE_TEST_SUITE_P(Kinds, BudgetTest, ::testing::ValuesIn(Kinds()),
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

// What a layer leaves, later layers may use: shares that starve the last layer do not starve it when the first left
// its edges unused.
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
