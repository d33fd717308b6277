// A kind needs one AttentionKind and a place in the list of kinds. Budgets, graphs fed back, ensembles, generation and
// reproducibility of the toy kind are in the suites over ModelKinds(), where it is three rows.
#include "tests/model/toy_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/checkpoint/parse_config.h"
#include "model/kinds/kind.h"
#include "tests/model/model_builder.h"
#include "tests/model/model_kinds.h"
#include "tests/model/run_model.h"

namespace edgewise::testing {
namespace {

using ::testing::HasSubstr;

nlohmann::json ToyConfig(const nlohmann::json& attention) {
  nlohmann::json config = SmallConfig();
  config["attention"] = attention;
  return config;
}

std::string ErrorOf(const nlohmann::json& attention, AttentionKinds kinds) {
  return std::string(ParseModelConfig(ToyConfig(attention).dump(), kinds).status().message());
}

TEST(ToyKindTest, IsReadAndNamedThroughTheListOfKindsOnly) {
  const nlohmann::json toy = {{"kind", "every_nth"}, {"stride", 2}};
  const auto parsed = ParseModelConfig(ToyConfig({toy, {{"kind", "dense"}}}).dump(), KindsWithToy());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(AttentionName(*parsed), "every_nth,dense");
  EXPECT_THAT(ErrorOf(toy, Kinds()), HasSubstr("attention.kind is \"every_nth\"; allowed: dense, sbm, ssa, block"));
  EXPECT_THAT(ErrorOf({{"kind", "every_nth"}, {"stride", 0}}, KindsWithToy()),
              HasSubstr("attention.stride is 0; allowed: an integer from 1"));
  EXPECT_THAT(ErrorOf({{"kind", "every_nth"}, {"stride", 2}, {"keep", 3}}, KindsWithToy()),
              HasSubstr("unknown field attention.\"keep\""));
}

TEST(ToyKindTest, TheGraphOfAnAnswerIsTheKinds) {
  const TemporaryFolder folder;
  const LoadedModel loaded = LoadModel(WriteModel(folder.path(), ToyConfig({{"kind", "every_nth"}, {"stride", 3}})));
  ModelInput input = MakeInput(*loaded, RandomTokens(11, 49, 1));
  input.wanted.graph = true;
  const InputResult result = RunOne(*loaded, input);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_FALSE(loaded->Samples(input)) << "nothing is drawn";
  for (const auto& layer : result.graph->layers) {
    for (const HeadEdges& head : layer) {
      ASSERT_EQ(head.keys.size(), 11u * 4u);
      for (size_t e = 0; e < head.keys.size(); ++e) ASSERT_EQ(head.keys[e], static_cast<int32_t>(e % 4 * 3));
    }
  }
}

}  // namespace
}  // namespace edgewise::testing
