// The field `attention` of config.json, and what a request may put in its place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/checkpoint/config.h"
#include "model/kinds/kind.h"
#include "model/kinds/ssa.h"
#include "tests/model/model_builder.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

// SmallConfig with this attention.
json With(const char* attention) {
  json config = SmallConfig();
  config["attention"] = json::parse(attention);
  return config;
}

json CausalConfig() {
  json config = SmallConfig();
  config["task"] = "causal-lm";
  config["attention"] = {{"kind", "dense"}};
  for (const char* field : {"pooling", "num_labels", "classifier_hidden_size"}) config.erase(field);
  return config;
}

struct Case {
  const char* name;
  const char* attention;
  const char* message;  // part of the error
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class BadAttentionTest : public ::testing::TestWithParam<Case> {};

TEST_P(BadAttentionTest, IsRefusedWithTheFieldTheValueAndTheLimit) {
  const auto parsed = ParseModelConfig(With(GetParam().attention).dump());
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Ssa, BadAttentionTest,
    ::testing::Values(
        Case{"kind", R"({"kind": "sparse"})", "attention.kind is \"sparse\"; allowed: dense, sbm, ssa, block"},
        Case{"bias", R"({"kind": "ssa", "windows": 4})", "attention.bias is missing"},
        Case{"windows", R"({"kind": "ssa", "bias": "local", "sigma": 0.2})", "attention.windows is missing"},
        Case{"no_windows", R"({"kind": "ssa", "bias": "local", "sigma": 0.2, "windows": 0})",
             "attention.windows is 0; allowed: an integer from 1"},
        Case{"sigma", R"({"kind": "ssa", "bias": "local", "windows": 4})", "attention.sigma is missing"},
        Case{"negative_sigma", R"({"kind": "ssa", "bias": "local", "windows": 4, "sigma": -0.1})",
             "attention.sigma is -0.1; allowed: a number from 0"},
        Case{"three_sigmas", R"({"kind": "ssa", "bias": "local", "windows": 4, "sigma": [0.1, 0.2, 0.3]})",
             "attention.sigma is [0.1,0.2,0.3]; allowed: a number from 0"},
        Case{"sigma_of_a_layer", R"([{"kind": "ssa", "bias": "local", "windows": 4, "sigma": [0.1, 0.2]},
                                     {"kind": "dense"}])",
             "attention[0].sigma is [0.1,0.2]; allowed: a number from 0"},
        Case{"keep_with_local", R"({"kind": "ssa", "bias": "local", "windows": 4, "sigma": 0.1, "keep": 3})",
             "attention.keep is given; it belongs to bias \"none\""},
        Case{"sigma_with_none", R"({"kind": "ssa", "bias": "none", "keep": 3, "sigma": 0.1})",
             "attention.sigma is given; it belongs to bias \"local\""},
        Case{"grid_with_none", R"({"kind": "ssa", "bias": "none", "keep": 3, "grid": [8, 8]})",
             "attention.grid is given"},
        Case{"keep_missing", R"({"kind": "ssa", "bias": "none"})", "attention.keep is missing"},
        Case{"keep_and_windows", R"({"kind": "ssa", "bias": "none", "keep": 3, "windows": 2})",
             "attention.windows is given beside keep"},
        Case{"no_keep", R"({"kind": "ssa", "bias": "none", "keep": 0})",
             "attention.keep is 0; allowed: an integer from 1"},
        Case{"grid_size", R"({"kind": "ssa", "bias": "local", "windows": 4, "sigma": 0.1, "grid": [8, 9]})",
             "attention.grid is [8,9]; allowed: [rows, columns], whose product is max_position_embeddings (64)"},
        Case{"grid_numbers", R"({"kind": "ssa", "bias": "local", "windows": 4, "sigma": 0.1, "grid": [-8, -8]})",
             "attention.grid is [-8,-8]"},
        Case{"last_layers", R"({"kind": "ssa", "bias": "none", "keep": 3, "last_layers": 3})",
             "attention.last_layers is 3; allowed: an integer from 1 to 2"},
        Case{"last_layers_of_a_layer", R"([{"kind": "ssa", "bias": "none", "keep": 3, "last_layers": 1},
                                           {"kind": "dense"}])",
             "attention[0].last_layers is given"},
        Case{"typo", R"({"kind": "ssa", "bias": "none", "kept": 3, "keep": 3})",
             "attention.\"kept\"; did you mean keep?"}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Block, BadAttentionTest,
    ::testing::Values(
        Case{"pattern", R"({"kind": "block", "block_size": 8, "pattern": "banded"})",
             "attention.pattern is \"banded\"; allowed: diagonal, local, strided"},
        Case{"pattern_missing", R"({"kind": "block", "block_size": 8})", "attention.pattern is missing"},
        Case{"size_missing", R"({"kind": "block", "pattern": "diagonal"})", "attention.block_size is missing"},
        Case{"size", R"({"kind": "block", "pattern": "diagonal", "block_size": 0})",
             "attention.block_size is 0; allowed: an integer from 1"},
        Case{"fraction", R"({"kind": "block", "pattern": "diagonal", "block_size": 2.5})",
             "attention.block_size is 2.5"},
        Case{"no_min", R"({"kind": "block", "pattern": "diagonal", "block_size": {"max": 9, "alpha": 0.1}})",
             "attention.block_size.min is missing"},
        Case{"max_below_min",
             R"({"kind": "block", "pattern": "diagonal", "block_size": {"min": 9, "max": 8, "alpha": 0.1}})",
             "attention.block_size.max is 8; allowed: an integer from 9"},
        Case{"no_alpha", R"({"kind": "block", "pattern": "diagonal", "block_size": {"min": 8, "max": 9}})",
             "attention.block_size.alpha is missing"},
        Case{"alpha", R"({"kind": "block", "pattern": "diagonal", "block_size": {"min": 8, "max": 9, "alpha": 1.5}})",
             "attention.block_size.alpha is 1.5; allowed: a number from 0 to 1"},
        Case{"adaptive_learned", R"({"kind": "block", "pattern": "learned", "threshold": 0.5,
                                     "block_size": {"min": 8, "max": 9, "alpha": 0.5}})",
             "allowed: an integer from 1"},
        Case{"no_threshold", R"({"kind": "block", "pattern": "learned", "block_size": 8})",
             "attention.threshold is missing"},
        Case{"threshold", R"({"kind": "block", "pattern": "learned", "block_size": 8, "threshold": 2})",
             "attention.threshold is 2; allowed: a number from 0 to 1"},
        Case{"width_of_another", R"({"kind": "block", "pattern": "diagonal", "block_size": 8, "width": 1})",
             "attention.width is given; it belongs to pattern \"local\""},
        Case{"width", R"({"kind": "block", "pattern": "local", "block_size": 8, "width": -1})",
             "attention.width is -1"},
        Case{"no_stride", R"({"kind": "block", "pattern": "strided", "block_size": 8})", "attention.stride is missing"},
        Case{"stride", R"({"kind": "block", "pattern": "strided", "block_size": 8, "stride": 0})",
             "attention.stride is 0; allowed: an integer from 1"},
        Case{"no_blocks", R"({"kind": "block", "pattern": "list", "block_size": 8})", "attention.blocks is missing"},
        Case{"empty_blocks", R"({"kind": "block", "pattern": "list", "block_size": 8, "blocks": []})",
             "attention.blocks is []; a list of [row, column]"},
        Case{"block", R"({"kind": "block", "pattern": "list", "block_size": 8, "blocks": [[0, 0], [1, -1]]})",
             "attention.blocks[1] is [1,-1]; allowed: [row, column]"}),
    [](const auto& info) { return info.param.name; });

TEST(AttentionConfigTest, ACausalModelIsNotSbm) {
  json config = CausalConfig();
  config["attention"] = {{"kind", "sbm"}, {"num_clusters", 8}, {"law", "bernoulli"}};
  EXPECT_THAT(std::string(ParseModelConfig(config.dump()).status().message()),
              HasSubstr("attention.kind is \"sbm\"; allowed on a causal model: dense, ssa, block"));
}

TEST(AttentionConfigTest, SigmaGoesLinearlyFromTheFirstLayerToTheLast) {
  json config = With(R"({"kind": "ssa", "bias": "local", "windows": 4, "sigma": [0.2, 0.35], "last_layers": 3})");
  config["num_hidden_layers"] = 4;
  const auto parsed = ParseModelConfig(config.dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->attention[0].kind, &kDenseKind) << "below the last three layers";
  for (int l = 1; l < 4; ++l) {
    EXPECT_EQ(parsed->attention[l].kind, &kSsaKind);
    EXPECT_EQ(parsed->attention[l].windows, 4);
    EXPECT_EQ(parsed->attention[l].sigma, 0.2 + (0.35 - 0.2) * l / 3) << "over all layers, the dense ones included";
  }
  EXPECT_EQ(AttentionName(*parsed), "dense,ssa/local");
  config["num_hidden_layers"] = 1;
  config["attention"].erase("last_layers");
  EXPECT_EQ(ParseModelConfig(config.dump())->attention[0].sigma, 0.2);
}

TEST(AttentionConfigTest, FieldsOfSsaAndBlocksArriveAsWritten) {
  const json config = With(R"([{"kind": "ssa", "bias": "none", "windows": 5},
                               {"kind": "block", "pattern": "list", "block_size": {"min": 4, "max": 9, "alpha": 0.29},
                                "blocks": [[2, 0], [0, 1], [2, 0]]}])");
  const auto parsed = ParseModelConfig(config.dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_FALSE(parsed->attention[0].local);
  EXPECT_EQ(parsed->attention[0].windows, 5);
  EXPECT_EQ(parsed->attention[0].keep, 0);
  EXPECT_EQ(parsed->attention[1].block_size, 0);
  EXPECT_EQ(parsed->attention[1].min_block, 4);
  EXPECT_EQ(parsed->attention[1].max_block, 9);
  EXPECT_EQ(parsed->attention[1].alpha, 0.29);
  EXPECT_THAT(parsed->attention[1].blocks, ElementsAre(Pair(0, 1), Pair(2, 0))) << "sorted, each once";
  EXPECT_EQ(AttentionName(*parsed), "ssa/none,block/list");
}

struct OverrideCase {
  const char* name;
  const char* kind;
  uint32_t windows, keep;
  std::vector<double> sigma;
  uint32_t last_layers;
  const char* message;  // how the error begins; empty: none
};

void PrintTo(const OverrideCase& c, std::ostream* out) { *out << c.name; }

class OverrideTest : public ::testing::TestWithParam<OverrideCase> {};

TEST_P(OverrideTest, IsRefusedByTheNameOfTheArgument) {
  const OverrideCase& c = GetParam();
  const auto config = ParseModelConfig(CausalConfig().dump());
  ASSERT_TRUE(config.ok()) << config.status();
  const auto made = OverrideAttention(*config, c.kind, c.windows, c.keep, c.sigma, c.last_layers);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(made.status().message()), StartsWith(c.message));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, OverrideTest,
    ::testing::Values(OverrideCase{"kind", "block", 4, 0, {0.1}, 0, "kind is \"block\"; allowed: ssa"},
                      OverrideCase{"no_kind", "", 4, 0, {0.1}, 0, "kind is \"\"; allowed: ssa"},
                      OverrideCase{"nothing", "ssa", 0, 0, {}, 0, "windows is 0; allowed: windows or keep from 1"},
                      OverrideCase{"both", "ssa", 4, 4, {0.1}, 0, "keep is 4 beside windows"},
                      OverrideCase{"windows", "ssa", 1u << 31, 0, {0.1}, 0, "windows is 2147483648; allowed: 1 to"},
                      OverrideCase{"keep", "ssa", 0, ~0u, {}, 0, "keep is 4294967295; allowed: 1 to"},
                      OverrideCase{"no_sigma", "ssa", 4, 0, {}, 0, "sigma has 0 entries; allowed: 1, or 2"},
                      OverrideCase{"three", "ssa", 4, 0, {0.1, 0.1, 0.1}, 0, "sigma has 3 entries; allowed: 1, or 2"},
                      OverrideCase{"sigma", "ssa", 0, 4, {0.1}, 0, "sigma has 1 entries; allowed: none beside keep"},
                      OverrideCase{"negative", "ssa", 4, 0, {0.1, -1}, 0, "sigma[1] is -1; allowed: 0 to"},
                      OverrideCase{"nan", "ssa", 4, 0, {std::nan("")}, 0, "sigma[0] is nan; allowed: 0 to"},
                      OverrideCase{"layers", "ssa", 4, 0, {0.1}, 3, "last_layers is 3; the model has 2"}),
    [](const auto& info) { return info.param.name; });

TEST(AttentionOverrideTest, TakesThePlaceOfTheModelsAttention) {
  json config = With(R"([{"kind": "ssa", "bias": "none", "keep": 5}, {"kind": "dense"}])");
  const auto parsed = ParseModelConfig(config.dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto local = OverrideAttention(*parsed, "ssa", 4, 0, {0.1, 0.3}, 0);
  ASSERT_TRUE(local.ok()) << local.status();
  ASSERT_EQ(local->size(), 2u);
  for (size_t l = 0; l < 2; ++l) {
    EXPECT_EQ((*local)[l].kind, &kSsaKind);
    EXPECT_TRUE((*local)[l].local);
    EXPECT_EQ((*local)[l].windows, 4);
    EXPECT_EQ((*local)[l].grid_rows, 0);
  }
  EXPECT_EQ((*local)[0].sigma, 0.1);
  EXPECT_EQ((*local)[1].sigma, 0.3);
  const auto none = OverrideAttention(*parsed, "ssa", 0, 7, {}, 1);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ((*none)[0].kind, &kDenseKind) << "below the last layer, though the model samples there";
  EXPECT_EQ((*none)[1].kind, &kSsaKind);
  EXPECT_FALSE((*none)[1].local);
  EXPECT_EQ((*none)[1].keep, 7);
}

TEST(AttentionOverrideTest, OnlyDenseAndSampledLayersCanBeReplaced) {
  for (const char* attention : {R"({"kind": "block", "pattern": "diagonal", "block_size": 8})",
                                R"([{"kind": "dense"}, {"kind": "sbm", "num_clusters": 8, "law": "bernoulli"}])"}) {
    const auto parsed = ParseModelConfig(With(attention).dump());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    const auto made = OverrideAttention(*parsed, "ssa", 4, 0, {0.1}, 0);
    EXPECT_THAT(std::string(made.status().message()),
                StartsWith("kind is \"ssa\"; this model's attention is " + AttentionName(*parsed)));
  }
}

}  // namespace
}  // namespace edgewise::testing
