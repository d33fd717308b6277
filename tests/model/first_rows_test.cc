// A model that reads the first row of each sequence finishes no other row of its last layer, but reports the edges of
// all.
#include <gtest/gtest.h>

#include "tests/model/deferred_backend.h"
#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"

namespace edgewise::testing {
namespace {

// Notes the rows of every feed-forward.
class FeedForwardBackend : public DeferredBackend {
 public:
  using DeferredBackend::DeferredBackend;
  absl::Status FeedForward(const LinearWeights& up, const LinearWeights& down, ConstMatrix x, Matrix y,
                           Phase phase) override {
    rows.push_back(y.rows);
    return DeferredBackend::FeedForward(up, down, x, y, phase);
  }
  std::vector<int64_t> rows;
};

struct FirstRows : ::testing::TestWithParam<std::string> {};

TEST_P(FirstRows, AloneAreFinishedInTheLastLayer) {
  auto config = SmallConfig();
  config.merge_patch({{"num_hidden_layers", 2},
                      {"task", GetParam()},
                      {"pooling", {{"kind", "cls"}, {"divisor", nullptr}}},
                      {"cls_token_id", 49}});
  const TemporaryFolder folder;
  const LoadedModel model =
      LoadModel(WriteModel(folder.path(), config, 3), std::make_unique<FeedForwardBackend>(MakeBackend()));
  auto& rows = static_cast<FeedForwardBackend&>(*model.backend).rows;
  const bool pair = GetParam() == "pair-classification";
  const auto tokens = [&](int count) { return RandomTokens(count, 49, count); };
  std::vector<ModelInput> inputs;
  for (const int count : {20, 5, 31}) {
    inputs.push_back(MakeInput(*model, tokens(count), pair ? tokens(count + 3) : std::vector<int32_t>()));
  }
  int64_t sequences = 0, all = 0;
  for (const ModelInput& input : inputs) {
    for (const ModelSequence& sequence : input.sequences) {
      ++sequences;
      all += sequence.valid();
    }
  }
  inputs[1].samples = 4;
  const int64_t more = 3 * static_cast<int64_t>(inputs[1].sequences.size());
  int64_t more_rows = 0;
  for (const ModelSequence& sequence : inputs[1].sequences) more_rows += 3 * sequence.valid();
  for (const bool dense : {false, true}) {
    for (ModelInput& input : inputs) input.dense = dense;
    rows.clear();
    const std::vector<InputResult> results = RunAll(*model, inputs);
    // Samples of dense layers are one.
    EXPECT_EQ(rows,
              (dense ? std::vector<int64_t>{all, sequences} : std::vector<int64_t>{all + more_rows, sequences + more}));
    for (size_t i = 0; i < inputs.size(); ++i) {
      ASSERT_TRUE(results[i].status.ok()) << results[i].status;
      if (dense) {
        EXPECT_EQ(results[i].edges, static_cast<double>(results[i].pairs));
      }
      const InputResult alone = RunOne(*model, inputs[i]);
      EXPECT_TRUE(SameBytes(alone, results[i]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tasks, FirstRows, ::testing::Values("sequence-classification", "pair-classification"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('-')); });

}  // namespace
}  // namespace edgewise::testing
