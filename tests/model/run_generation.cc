#include "tests/model/run_generation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <utility>

namespace edgewise::testing {

std::vector<GeneratedToken> Generate(const Model& model, const Tokens& prompt, const GenerationOptions& options,
                                     FinishReason* reason) {
  auto generation = Generation::Create(model, *model.Prepare(prompt, TruncateMode::kRefuse), options);
  EXPECT_TRUE(generation.ok()) << generation.status();
  std::vector<GeneratedToken> tokens;
  while (generation.ok() && !(*generation)->done()) {
    const absl::Status status = (*generation)->Step();
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) break;
    if (auto token = (*generation)->TakeToken()) tokens.push_back(*std::move(token));
  }
  if (reason != nullptr) *reason = (*generation)->finish_reason();
  return tokens;
}

std::vector<std::vector<GeneratedToken>> GenerateTogether(const std::vector<std::unique_ptr<Generation>>& generations,
                                                          bool short_prompts, const std::function<void()>& between,
                                                          int64_t layers) {
  std::vector<std::vector<GeneratedToken>> tokens(generations.size());
  // Those of a kind that go first, which `is` tells; none: there is none of them.
  const auto step = [&](const auto& is, const auto& take) {
    std::vector<Generation*> together;
    std::vector<size_t> taken;
    for (size_t g = 0; g < generations.size(); ++g) {
      if (generations[g]->done() || !is(*generations[g])) continue;
      if (!together.empty() && !generations[g]->Joins(*together[0])) continue;
      taken.push_back(g);
      together.push_back(generations[g].get());
    }
    std::vector<absl::Status> statuses(together.size());
    if (!together.empty()) between();
    take(together, statuses);
    for (size_t i = 0; i < taken.size(); ++i) {
      EXPECT_TRUE(statuses[i].ok()) << statuses[i];
      if (auto token = together[i]->TakeToken()) tokens[taken[i]].push_back(*std::move(token));
    }
    return std::all_of(statuses.begin(), statuses.end(), [](const absl::Status& status) { return status.ok(); });
  };
  const auto half_way = [](const Generation& each) { return each.holds_part(); };
  const auto token_half_way = [](const Generation& each) { return each.holds_token(); };
  const auto in_prompt = [&](const Generation& each) {
    return !each.holds_token() && (short_prompts ? each.has_prompt() : each.prompt_next());
  };
  const auto decodes = [](const Generation& each) { return !each.prompt_next() && !each.holds_part(); };
  const auto decode = [layers](std::span<Generation* const> together, std::span<absl::Status> statuses) {
    Generation::DecodeTogether(together, statuses, layers);
  };
  const auto any = [&](const auto& is) {
    return std::any_of(generations.begin(), generations.end(), [&](const auto& each) { return is(*each); });
  };
  for (bool ok = true; ok;) {
    ok = any(half_way) ? step(half_way, Generation::StepPrompts) : step(in_prompt, Generation::StepPrompts);
    ok = ok && (any(token_half_way) ? step(token_half_way, decode) : step(decodes, decode));
    if (std::all_of(generations.begin(), generations.end(), [](const auto& each) { return each->done(); })) break;
  }
  return tokens;
}

Tokens IdsOf(const std::vector<GeneratedToken>& tokens) {
  Tokens ids;
  for (const GeneratedToken& token : tokens) ids.push_back(token.token_id);
  return ids;
}

bool SameTokens(const std::vector<GeneratedToken>& a, const std::vector<GeneratedToken>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const GeneratedToken& x, const GeneratedToken& y) {
    return x.token_id == y.token_id && x.text == y.text && x.log_probability == y.log_probability &&
           x.predictive_entropy == y.predictive_entropy && x.mutual_information == y.mutual_information &&
           x.edges.edges == y.edges.edges && x.edges.capped == y.edges.capped;
  });
}

}  // namespace edgewise::testing
