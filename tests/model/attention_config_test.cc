// The field `attention` of config.json, and what a request may put in its place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/checkpoint/parse_config.h"
#include "model/config/config.h"
#include "model/kinds/kind.h"
#include "model/kinds/override.h"
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

struct BadAttention {
  const char* name;
  const char* attention;
  const char* message;  // part of the error
};

void PrintTo(const BadAttention& c, std::ostream* out) { *out << c.name; }

class BadAttentionTest : public ::testing::TestWithParam<BadAttention> {};

TEST_P(BadAttentionTest, IsRefusedWithTheFieldTheValueAndTheLimit) {
  const auto parsed = ParseModelConfig(With(GetParam().attention).dump());
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Ssa, BadAttentionTest,
    ::testing::Values(
        BadAttention{"kind", R"({"kind": "sparse"})", "attention.kind is \"sparse\"; allowed: dense, sbm, ssa, block"},
        BadAttention{"bias", R"({"kind": "ssa", "windows": 4})", "attention.bias is missing"},
        BadAttention{"windows", R"({"kind": "ssa", "bias": "local", "sigma": 0.2})", "attention.windows is missing"},
        BadAttention{"no_windows", R"({"kind": "ssa", "bias": "local", "sigma": 0.2, "windows": 0})",
                     "attention.windows is 0; allowed: an integer from 1"},
        BadAttention{"sigma", R"({"kind": "ssa", "bias": "local", "windows": 4})", "attention.sigma is missing"},
        BadAttention{"negative_sigma", R"({"kind": "ssa", "bias": "local", "windows": 4, "sigma": -0.1})",
                     "attention.sigma is -0.1; allowed: a number from 0"},
        BadAttention{"three_sigmas", R"({"kind": "ssa", "bias": "local", "windows": 4, "sigma": [0.1, 0.2, 0.3]})",
                     "attention.sigma is [0.1,0.2,0.3]; allowed: a number from 0"},
        BadAttention{"sigma_of_a_layer", R"([{"kind": "ssa", "bias": "local", "windows": 4, "sigma": [0.1, 0.2]},
                                     {"kind": "dense"}])",
                     "attention[0].sigma is [0.1,0.2]; allowed: a number from 0"},
        BadAttention{"keep_with_local", R"({"kind": "ssa", "bias": "local", "windows": 4, "sigma": 0.1, "keep": 3})",
                     "attention.keep is given; it belongs to bias \"none\""},
        BadAttention{"sigma_with_none", R"({"kind": "ssa", "bias": "none", "keep": 3, "sigma": 0.1})",
                     "attention.sigma is given; it belongs to bias \"local\""},
        BadAttention{"grid_with_none", R"({"kind": "ssa", "bias": "none", "keep": 3, "grid": [8, 8]})",
                     "attention.grid is given"},
        BadAttention{"keep_missing", R"({"kind": "ssa", "bias": "none"})", "attention.keep is missing"},
        BadAttention{"keep_and_windows", R"({"kind": "ssa", "bias": "none", "keep": 3, "windows": 2})",
                     "attention.windows is given beside keep"},
        BadAttention{"no_keep", R"({"kind": "ssa", "bias": "none", "keep": 0})",
                     "attention.keep is 0; allowed: an integer from 1"},
        BadAttention{
            "grid_size", R"({"kind": "ssa", "bias": "local", "windows": 4, "sigma": 0.1, "grid": [8, 9]})",
            "attention.grid is [8,9]; allowed: [rows, columns], whose product is max_position_embeddings (64)"},
        BadAttention{"grid_numbers",
                     R"({"kind": "ssa", "bias": "local", "windows": 4, "sigma": 0.1, "grid": [-8, -8]})",
                     "attention.grid is [-8,-8]"},
        BadAttention{"last_layers", R"({"kind": "ssa", "bias": "none", "keep": 3, "last_layers": 3})",
                     "attention.last_layers is 3; allowed: an integer from 1 to 2"},
        BadAttention{"last_layers_of_a_layer", R"([{"kind": "ssa", "bias": "none", "keep": 3, "last_layers": 1},
                                           {"kind": "dense"}])",
                     "attention[0].last_layers is given"},
        BadAttention{"typo", R"({"kind": "ssa", "bias": "none", "kept": 3, "keep": 3})",
                     "attention.\"kept\"; did you mean keep?"}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Block, BadAttentionTest,
    ::testing::Values(
        BadAttention{"pattern", R"({"kind": "block", "block_size": 8, "pattern": "banded"})",
                     "attention.pattern is \"banded\"; allowed: diagonal, local, strided"},
        BadAttention{"pattern_missing", R"({"kind": "block", "block_size": 8})", "attention.pattern is missing"},
        BadAttention{"size_missing", R"({"kind": "block", "pattern": "diagonal"})", "attention.block_size is missing"},
        BadAttention{"size", R"({"kind": "block", "pattern": "diagonal", "block_size": 0})",
                     "attention.block_size is 0; allowed: an integer from 1"},
        BadAttention{"fraction", R"({"kind": "block", "pattern": "diagonal", "block_size": 2.5})",
                     "attention.block_size is 2.5"},
        BadAttention{"no_min", R"({"kind": "block", "pattern": "diagonal", "block_size": {"max": 9, "alpha": 0.1}})",
                     "attention.block_size.min is missing"},
        BadAttention{"max_below_min",
                     R"({"kind": "block", "pattern": "diagonal", "block_size": {"min": 9, "max": 8, "alpha": 0.1}})",
                     "attention.block_size.max is 8; allowed: an integer from 9"},
        BadAttention{"no_alpha", R"({"kind": "block", "pattern": "diagonal", "block_size": {"min": 8, "max": 9}})",
                     "attention.block_size.alpha is missing"},
        BadAttention{"alpha",
                     R"({"kind": "block", "pattern": "diagonal", "block_size": {"min": 8, "max": 9, "alpha": 1.5}})",
                     "attention.block_size.alpha is 1.5; allowed: a number from 0 to 1"},
        BadAttention{"adaptive_learned", R"({"kind": "block", "pattern": "learned", "threshold": 0.5,
                                     "block_size": {"min": 8, "max": 9, "alpha": 0.5}})",
                     "allowed: an integer from 1"},
        BadAttention{"no_threshold", R"({"kind": "block", "pattern": "learned", "block_size": 8})",
                     "attention.threshold is missing"},
        BadAttention{"threshold", R"({"kind": "block", "pattern": "learned", "block_size": 8, "threshold": 2})",
                     "attention.threshold is 2; allowed: a number from 0 to 1"},
        BadAttention{"width_of_another", R"({"kind": "block", "pattern": "diagonal", "block_size": 8, "width": 1})",
                     "attention.width is given; it belongs to pattern \"local\""},
        BadAttention{"width", R"({"kind": "block", "pattern": "local", "block_size": 8, "width": -1})",
                     "attention.width is -1"},
        BadAttention{"no_stride", R"({"kind": "block", "pattern": "strided", "block_size": 8})",
                     "attention.stride is missing"},
        BadAttention{"stride", R"({"kind": "block", "pattern": "strided", "block_size": 8, "stride": 0})",
                     "attention.stride is 0; allowed: an integer from 1"},
        BadAttention{"no_blocks", R"({"kind": "block", "pattern": "list", "block_size": 8})",
                     "attention.blocks is missing"},
        BadAttention{"empty_blocks", R"({"kind": "block", "pattern": "list", "block_size": 8, "blocks": []})",
                     "attention.blocks is []; a list of [row, column]"},
        BadAttention{"block", R"({"kind": "block", "pattern": "list", "block_size": 8, "blocks": [[0, 0], [1, -1]]})",
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
  AttentionOverride override;
  const char* message;  // how the error begins
};

void PrintTo(const OverrideCase& c, std::ostream* out) { *out << c.name; }

class OverrideTest : public ::testing::TestWithParam<OverrideCase> {};

TEST_P(OverrideTest, IsRefusedByTheNameOfTheField) {
  const auto config = ParseModelConfig(CausalConfig().dump());
  ASSERT_TRUE(config.ok()) << config.status();
  const auto made = OverrideAttention(*config, GetParam().override);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(made.status().message()), StartsWith(GetParam().message));
}

AttentionOverride Ssa(AttentionOverride override) {
  override.kind = "ssa";
  return override;
}

AttentionOverride Block(AttentionOverride override) {
  override.kind = "block";
  return override;
}

AttentionOverride Local(AttentionOverride override) {
  override.pattern = "local";
  override.block_size = 4;
  return Block(std::move(override));
}

constexpr uint32_t kTooMany = (1u << 20) + 1;

INSTANTIATE_TEST_SUITE_P(
    Cases, OverrideTest,
    ::testing::Values(
        OverrideCase{"kind", {.kind = "sbm", .windows = 4, .sigma = {0.1}}, "kind is \"sbm\"; allowed: ssa, block"},
        OverrideCase{"no_kind", {.windows = 4, .sigma = {0.1}}, "kind is \"\"; allowed: ssa, block"},
        OverrideCase{"nothing", Ssa({}), "windows is 0; allowed: windows, window_tokens or keep from 1"},
        OverrideCase{"both", Ssa({.windows = 4, .keep = 4, .sigma = {0.1}}), "keep is 4 beside windows"},
        OverrideCase{"two_sizes", Ssa({.windows = 4, .window_tokens = 16, .sigma = {0.1}}),
                     "window_tokens is 16 beside windows; allowed: one of them"},
        OverrideCase{"windows", Ssa({.windows = 1u << 31, .sigma = {0.1}}), "windows is 2147483648; allowed: 1 to"},
        OverrideCase{"tokens", Ssa({.window_tokens = kTooMany, .sigma = {0.1}}),
                     "window_tokens is 1048577; allowed: 1 to 1048576"},
        OverrideCase{"keep", Ssa({.keep = ~0u}), "keep is 4294967295; allowed: 1 to"},
        OverrideCase{"no_sigma", Ssa({.windows = 4}), "sigma has 0 entries; allowed: 1, or 2"},
        OverrideCase{"tokens_no_sigma", Ssa({.window_tokens = 4}), "sigma has 0 entries; allowed: 1, or 2"},
        OverrideCase{"three", Ssa({.windows = 4, .sigma = {0.1, 0.1, 0.1}}), "sigma has 3 entries; allowed: 1, or 2"},
        OverrideCase{"sigma", Ssa({.keep = 4, .sigma = {0.1}}), "sigma has 1 entries; allowed: none beside keep"},
        OverrideCase{"negative", Ssa({.windows = 4, .sigma = {0.1, -1}}), "sigma[1] is -1; allowed: 0 to"},
        OverrideCase{"nan", Ssa({.windows = 4, .sigma = {std::nan("")}}), "sigma[0] is nan; allowed: 0 to"},
        OverrideCase{"layers", Ssa({.windows = 4, .sigma = {0.1}, .last_layers = 3}),
                     "last_layers is 3; the model has 2"},
        OverrideCase{"block_layers", Local({.last_layers = 3}), "last_layers is 3; the model has 2"},
        OverrideCase{"ssa_block_size", Ssa({.windows = 4, .sigma = {0.1}, .block_size = 8}),
                     "block_size is 8; it belongs to kind \"block\""},
        OverrideCase{"ssa_pattern", Ssa({.keep = 4, .pattern = "local"}),
                     "pattern is \"local\"; it belongs to kind \"block\""},
        OverrideCase{"ssa_threshold", Ssa({.keep = 4, .threshold = 0.5}),
                     "threshold is 0.5; it belongs to kind \"block\""},
        OverrideCase{"block_windows", Local({.windows = 4}), "windows is 4; it belongs to kind \"ssa\""},
        OverrideCase{"block_sigma", Local({.sigma = {0.1, 0.2}}), "sigma is 0.1, 0.2; it belongs to kind \"ssa\""},
        OverrideCase{"no_pattern", Block({.block_size = 4}),
                     "pattern is \"\"; allowed: diagonal, local, strided, first_and_diagonal, learned"},
        OverrideCase{"list", Block({.block_size = 4, .pattern = "list"}), "pattern is \"list\"; allowed: diagonal"},
        OverrideCase{"no_size", Block({.pattern = "diagonal"}), "block_size is 0; allowed: 1 to 1048576"},
        OverrideCase{"size", Block({.block_size = kTooMany, .pattern = "diagonal"}), "block_size is 1048577; allowed"},
        OverrideCase{"width", Local({.width = kTooMany}), "width is 1048577; allowed: 0 to"},
        OverrideCase{"foreign_width", Block({.block_size = 4, .pattern = "diagonal", .width = 0}),
                     "width is 0; it belongs to pattern \"local\""},
        OverrideCase{"no_stride", Block({.block_size = 4, .pattern = "strided"}), "stride is 0; allowed: 1 to"},
        OverrideCase{"foreign_stride", Local({.stride = 2}), "stride is 2; it belongs to pattern \"strided\""},
        OverrideCase{"threshold", Local({.threshold = 0.5}),
                     "threshold is 0.5; it belongs to pattern \"learned\", the only one with scores"},
        OverrideCase{"learned", Block({.pattern = "learned", .threshold = 0.5}),
                     "pattern is \"learned\"; this model's attention is dense"}),
    [](const auto& info) { return info.param.name; });

TEST(AttentionOverrideTest, SsaTakesThePlaceOfTheModelsAttention) {
  json config = With(R"([{"kind": "ssa", "bias": "none", "keep": 5}, {"kind": "dense"}])");
  const auto parsed = ParseModelConfig(config.dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto local = OverrideAttention(*parsed, {.kind = "ssa", .windows = 4, .sigma = {0.1, 0.3}});
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
  const auto none = OverrideAttention(*parsed, {.kind = "ssa", .keep = 7, .last_layers = 1});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ((*none)[0].kind, &kDenseKind) << "below the last layer, though the model samples there";
  EXPECT_EQ((*none)[1].kind, &kSsaKind);
  EXPECT_FALSE((*none)[1].local);
  EXPECT_EQ((*none)[1].keep, 7);
}

TEST(AttentionOverrideTest, BlocksTakeThePlaceOfTheModelsAttention) {
  const auto parsed = ParseModelConfig(CausalConfig().dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto local = OverrideAttention(*parsed, Local({.last_layers = 1}));
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ(AttentionName(*local), "dense,block/local");
  EXPECT_EQ((*local)[1].block_size, 4);
  EXPECT_EQ((*local)[1].width, 1);
  const auto narrow = OverrideAttention(*parsed, Local({.width = 0}));
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  EXPECT_EQ((*narrow)[0].width, 0);
}

TEST(AttentionOverrideTest, OnlyDenseAndSampledLayersCanBeReplaced) {
  for (const char* attention : {R"({"kind": "block", "pattern": "diagonal", "block_size": 8})",
                                R"([{"kind": "dense"}, {"kind": "sbm", "num_clusters": 8, "law": "bernoulli"}])"}) {
    const auto parsed = ParseModelConfig(With(attention).dump());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    for (const AttentionOverride& override : {Ssa({.windows = 4, .sigma = {0.1}}), Local({})}) {
      const auto made = OverrideAttention(*parsed, override);
      EXPECT_THAT(std::string(made.status().message()),
                  StartsWith("kind is \"" + override.kind + "\"; this model's attention is " + AttentionName(*parsed)));
    }
  }
}

TEST(AttentionOverrideTest, AThresholdIsForLayersWithScoresAlone) {
  const auto parsed = ParseModelConfig(
      With(R"([{"kind": "block", "pattern": "learned", "block_size": 8, "threshold": 0.5}, {"kind": "dense"}])")
          .dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto made = OverrideAttention(*parsed, Block({.pattern = "learned", .threshold = 0.25}));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)[0].threshold, 0.25);
  EXPECT_EQ((*made)[0].block_size, 8);
  EXPECT_EQ((*made)[1].kind, &kDenseKind);
  const std::pair<AttentionOverride, const char*> wrong[] = {
      {Block({.pattern = "learned"}), "threshold is missing; allowed: 0 to 1"},
      {Block({.pattern = "learned", .threshold = 1.5}), "threshold is 1.5; allowed: 0 to 1"},
      {Block({.pattern = "learned", .threshold = std::nan("")}), "threshold is nan; allowed: 0 to 1"},
      {Block({.block_size = 4, .pattern = "learned", .threshold = 0.5}), "block_size is 4; it belongs to the other"},
      {Block({.pattern = "learned", .threshold = 0.5, .last_layers = 1}), "last_layers is 1; allowed with"},
  };
  for (const auto& [override, message] : wrong) {
    EXPECT_THAT(std::string(OverrideAttention(*parsed, override).status().message()), StartsWith(message));
  }
}

}  // namespace
}  // namespace edgewise::testing
