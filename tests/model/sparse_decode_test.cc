// A generation under an override reads of its cache what its pattern names, and nothing else.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/json_object.h"
#include "kernels/kv_page.h"
#include "model/forward/generation.h"
#include "tests/model/deferred_backend.h"
#include "tests/model/model_builder.h"
#include "tests/model/model_kinds.h"
#include "tests/model/run_model.h"

namespace edgewise::testing {
namespace {

constexpr int32_t kPrompt = 300, kNewTokens = 24;

// Gives single queries a cache in which the keys and values that their pattern does not name are NaN.
class NamedKeysBackend : public DeferredBackend {
 public:
  using DeferredBackend::DeferredBackend;

  absl::Status Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                      std::span<EdgeCap> caps, Matrix out) override {
    std::vector<AttentionProblem> changed(problems.begin(), problems.end());
    std::vector<std::vector<Buffer>> pages(problems.size());
    std::vector<std::vector<const float*>> places(problems.size());
    for (size_t p = 0; p < problems.size(); ++p) {
      AttentionProblem& problem = changed[p];
      const auto* const groups = std::get_if<GroupedKeys>(&problem.pattern);
      if (groups == nullptr || problem.pages == nullptr || problem.first_query + 1 != problem.tokens) continue;
      keys.emplace_back(problem.tokens, groups->keys.size());
      pages[p] = NamedPages(inputs, problem, groups->keys);
      for (const Buffer& page : pages[p]) places[p].push_back(page.data());
      problem.pages = places[p].data();
    }
    return DeferredBackend::Attend(inputs, changed, caps, out);
  }

  // Of each single query: the tokens that it might attend to, and the keys that its pattern names.
  std::vector<std::pair<int32_t, size_t>> keys;

 private:
  std::vector<Buffer> NamedPages(const AttentionInputs& inputs, const AttentionProblem& problem,
                                 std::span<const int32_t> named) {
    const KvPage shape{inputs.num_heads, inputs.head_dim};
    std::vector<Buffer> made;
    for (int32_t first = 0; first < problem.tokens; first += KvPage::kTokens) {
      made.push_back(*Allocate(shape.floats()));
      std::fill_n(made.back().data(), shape.floats(), std::numeric_limits<float>::quiet_NaN());
    }
    for (const int32_t key : named) {
      const int32_t page = key / KvPage::kTokens, row = key % KvPage::kTokens * shape.head_dim;
      for (int32_t head = 0; head < shape.heads; ++head) {
        for (const int64_t part : {shape.Keys(head), shape.Values(head)}) {
          std::copy_n(problem.pages[page] + part + row, shape.head_dim, made[page].data() + part + row);
        }
      }
    }
    return made;
  }
};

struct Case {
  const char* name;
  nlohmann::json override_with;
  int32_t (*most)(int32_t tokens);  // keys of the last of so many tokens, in one layer
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class SparseDecodeTest : public ::testing::TestWithParam<Case> {};

TEST_P(SparseDecodeTest, ReadsTheKeysOfThePatternAlone) {
  const nlohmann::json& fields = GetParam().override_with;
  nlohmann::json config;
  for (const ModelKind& kind : LanguageModelKinds()) {
    if (kind.name == "lm_override") config = ConfigOf(kind);
  }
  config["max_position_embeddings"] = 512;
  const TemporaryFolder folder;
  const std::string path = WriteModel(folder.path(), config, 9);
  GenerationOptions options;
  options.max_new_tokens = kNewTokens;
  options.temperature = 0.8;
  options.seed = 5;
  options.attention = Override(config, fields);
  const auto generate = [&](const Model& model) {
    auto generation =
        *Generation::Create(model, *model.Prepare(RandomTokens(kPrompt, 49, 3), TruncateMode::kRefuse), options);
    std::vector<std::pair<int32_t, double>> tokens;
    double edges = 0.0;
    while (!generation->done() && generation->Step().ok()) {
      const auto token = generation->TakeToken();
      if (!token) continue;
      tokens.emplace_back(token->token_id, token->log_probability);
      edges += token->edges.edges;
    }
    EXPECT_EQ(tokens.size(), size_t{kNewTokens});
    return std::pair(tokens, edges);
  };
  const LoadedModel whole = LoadModel(path), named = LoadModel(path, std::make_unique<NamedKeysBackend>(MakeBackend()));
  const auto [expected, edges] = generate(*whole);
  EXPECT_EQ(generate(*named).first, expected) << "byte for byte";

  const auto& keys = static_cast<NamedKeysBackend&>(*named.backend).keys;
  const size_t layers = config["num_hidden_layers"], heads = config["num_attention_heads"];
  const size_t sparse = fields.value("last_layers", layers);
  ASSERT_EQ(keys.size(), sparse * kNewTokens) << "the prompt's last row is read alone too";
  double read = 0.0;
  for (const auto& [tokens, count] : keys) {
    EXPECT_LE(count, static_cast<size_t>(GetParam().most(tokens)));
    read += static_cast<double>(heads * count);
    read += static_cast<double>(heads * (layers - sparse) * tokens) / static_cast<double>(sparse);
  }
  EXPECT_EQ(read, edges) << "each key that is read is an edge of the report";
}

INSTANTIATE_TEST_SUITE_P(
    Overrides, SparseDecodeTest,
    ::testing::Values(
        Case{"diagonal",
             {{"kind", "block"}, {"pattern", "diagonal"}, {"block_size", 32}},
             [](int32_t tokens) { return (tokens - 1) % 32 + 1; }},
        Case{"local",
             {{"kind", "block"}, {"pattern", "local"}, {"block_size", 24}, {"last_layers", 2}},
             [](int32_t tokens) { return 24 + (tokens - 1) % 24 + 1; }},
        Case{"strided",
             {{"kind", "block"}, {"pattern", "strided"}, {"block_size", 16}, {"stride", 4}},
             [](int32_t tokens) { return 16 * ((tokens - 1) / 64) + (tokens - 1) % 16 + 1; }},
        Case{"first_and_diagonal",
             {{"kind", "block"}, {"pattern", "first_and_diagonal"}, {"block_size", 64}},
             [](int32_t tokens) { return 64 + (tokens - 1) % 64 + 1; }},
        Case{"window_tokens", {{"kind", "ssa"}, {"window_tokens", 40}, {"sigma", 16}}, [](int32_t) { return 40; }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace edgewise::testing
