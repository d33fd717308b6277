// Generations that run to their ends, alone or together.
#ifndef EDGEWISE_TESTS_MODEL_RUN_GENERATION_H_
#define EDGEWISE_TESTS_MODEL_RUN_GENERATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model/forward/generation.h"

namespace edgewise::testing {

using Tokens = std::vector<int32_t>;

// Fails the test where a step fails, as the next does.
std::vector<GeneratedToken> Generate(const Model& model, const Tokens& prompt, const GenerationOptions& options,
                                     FinishReason* reason = nullptr);

// Steps generations together as far as they can, prompts and tokens in turns, those that join the first of the rest in
// one step, until all are done. `short_prompts`: they run as prompts too. `between` is called before each step, and
// `layers` are those that a step of tokens runs at a time.
std::vector<std::vector<GeneratedToken>> GenerateTogether(
    const std::vector<std::unique_ptr<Generation>>& generations, bool short_prompts = false,
    const std::function<void()>& between = [] {}, int64_t layers = kAllLayers);

Tokens IdsOf(const std::vector<GeneratedToken>& tokens);

// The same ids, texts, probabilities and edges.
bool SameTokens(const std::vector<GeneratedToken>& a, const std::vector<GeneratedToken>& b);

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_MODEL_RUN_GENERATION_H_
