// A fixture for generations of every kind of language model, against forward passes over the text so far.
#ifndef EDGEWISE_TESTS_MODEL_GENERATION_FIXTURE_H_
#define EDGEWISE_TESTS_MODEL_GENERATION_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/forward/edge_budget.h"
#include "model/forward/generation.h"
#include "model/kinds/kind.h"
#include "tests/model/model_kinds.h"
#include "tests/model/rounded_model.h"
#include "tests/model/run_generation.h"

namespace edgewise::testing {

inline bool RoundsToBfloat16() {
  const char* precision = std::getenv("EDGEWISE_TEST_PRECISION");
  return precision != nullptr && std::string_view(precision) == "bf16";
}

class GenerationTest : public ::testing::TestWithParam<ModelKind> {
 protected:
  GenerationTest() : loaded_(LoadModel(WriteModel(folder_.path(), ConfigOf(GetParam()), 9))) {
    if (RoundsToBfloat16()) reference_.emplace(folder_.path());
    options_.max_new_tokens = 24;
    options_.temperature = 0.8;
    options_.seed = 5;
    if (!GetParam().override_with.is_null()) {
      options_.attention = Override(ConfigOf(GetParam()), GetParam().override_with);
    }
  }

  Tokens Prompt(int32_t count, uint64_t seed) const {
    Tokens prompt = RandomTokens(count, 49, seed);
    if (loaded_->config().pad_token_id == 0 && count > 4) prompt[2] = prompt[3] = 0;
    return prompt;
  }

  // With a context of three pages.
  static nlohmann::json LongConfig() {
    nlohmann::json config = ConfigOf(GetParam());
    config[config.contains("n_positions") ? "n_positions" : "max_position_embeddings"] = 150;
    if (GetParam().name == "lm_ssa_grid") {
      for (nlohmann::json& layer : config["attention"]) layer["grid"] = {10, 15};
    }
    return config;
  }

  // A text, cut to its last tokens, whose last token's row predicts the next.
  ModelInput InputOf(const Tokens& text) const {
    ModelInput input;
    input.sequences.push_back(*loaded_->Prepare(text, TruncateMode::kHead));
    input.seed = options_.seed;
    input.samples = options_.samples;
    input.attention = options_.attention;
    input.dense = options_.dense;
    input.wanted.graph = options_.samples == 1;
    return input;
  }
  InputResult Predict(const Tokens& text) const { return RunOne(*loaded_, InputOf(text)); }

  // Edges of every generated token are those of passes over what stands before it; probabilities too, but for
  // differences that TearDown judges.
  void ExpectAsRecomputed(const Tokens& prompt, const std::vector<GeneratedToken>& tokens) {
    Tokens text = prompt;
    for (const GeneratedToken& token : tokens) {
      const ModelInput input = InputOf(text);
      const InputResult result = RunOne(*loaded_, input);
      EXPECT_TRUE(result.status.ok()) << result.status;
      const std::vector<double> expected = NextProbabilities(result);
      difference_ = std::max(difference_, Distance({std::exp(token.log_probability)}, {expected[token.token_id]}));
      const double near = std::getenv("EDGEWISE_TEST_DEVICE") != nullptr ? 0.05 : 1e-5;  // results are rounded
      EXPECT_NEAR(token.predictive_entropy, result.predictive_entropy[0], near);
      EXPECT_NEAR(token.mutual_information, result.mutual_information[0], near);
      if (reference_.has_value() && compared_++ % 8 == 0) {  // float64 takes its time
        const std::vector<double> rounded = reference_->Rounded(input);
        moved_ = std::max(moved_, Distance(rounded, reference_->Exact(input)));
        apart_ = std::max(apart_, Distance(expected, rounded));
      }
      if (result.graph.has_value()) {
        uint64_t edges = 0;
        for (const auto& layer : result.graph->layers) {
          for (const HeadEdges& head : layer) edges += head.row_offsets.back() - head.row_offsets.end()[-2];
        }
        EXPECT_EQ(token.edges.edges, static_cast<double>(edges)) << "after " << text.size() << " tokens";
      }
      text.push_back(token.token_id);
    }
  }

  // Decoding and a pass sum in different orders on a GPU. In bf16 each is as far from float64 as the roundings move it,
  // so they are at most twice as far from each other. The CPU computes both by the same steps; what remains are the
  // sums of this test.
  void TearDown() override {
    const bool device = std::getenv("EDGEWISE_TEST_DEVICE") != nullptr;
    const double allowed = reference_.has_value() ? 2.0 * moved_ : device ? kCachedTolerance : 1e-12;
    EXPECT_LE(difference_, allowed) << "relative, of a token's probability";
    EXPECT_TRUE(compared_ == 0 || apart_ < moved_) << "the reference does not round as the device: " << apart_;
    RecordProperty("largest_relative_difference", absl::StrCat(difference_));
    RecordProperty("allowed_relative_difference", absl::StrCat(allowed));
  }

  void ExpectDensitiesHold(const Tokens& prompt) {
    GenerationOptions options = options_;
    options.max_density = 1.0;
    for (const GeneratedToken& token : Generate(*loaded_, prompt, options)) {
      EXPECT_EQ(token.edges.budget, token.edges.pairs);
      EXPECT_FALSE(token.edges.capped);
    }
    // The least of a row depends on where tokens stand only, so that of row i is the same in all of these.
    options.max_density = 1e-9;
    const auto least = Generate(*loaded_, prompt, options);
    options.max_density = 0.4;
    const auto capped = Generate(*loaded_, prompt, options);
    ASSERT_EQ(capped.size(), least.size());
    uint64_t most = 0;
    for (size_t i = 0; i < capped.size(); ++i) {
      const RowEdges& edges = capped[i].edges;
      EXPECT_GE(least[i].edges.budget, 1u);
      EXPECT_LE(least[i].edges.max_sample_edges, least[i].edges.budget);
      EXPECT_EQ(edges.budget, std::max(EdgesOfDensity(0.4, edges.pairs), least[i].edges.budget));
      EXPECT_LE(edges.max_sample_edges, edges.budget);
      most = std::max(most, least[i].edges.budget);
    }
    options.max_density = 0.0;
    options.max_edges = most;
    const auto create = [&] {
      return Generation::Create(*loaded_, *loaded_->Prepare(prompt, TruncateMode::kRefuse), options).status();
    };
    EXPECT_TRUE(create().ok()) << "max_edges is strict, and allows the least of all rows: " << create();
    options.max_edges = most - 1;
    EXPECT_FALSE(create().ok());
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  GenerationOptions options_;

 private:
  std::optional<RoundedModel> reference_;  // in bf16
  int compared_ = 0;                       // tokens with it, of which every eighth counts
  // The largest relative differences of probabilities: of decoded tokens from a pass, of the rounded reference from the
  // exact one, and of a pass from the rounded reference.
  double difference_ = 0.0, moved_ = 0.0, apart_ = 0.0;
};

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_MODEL_GENERATION_FIXTURE_H_
