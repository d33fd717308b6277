// Attention patterns as lists of keys, and what they should be: docs/model-format.md in the plainest code.
#ifndef EDGEWISE_TESTS_MODEL_PATTERN_CASES_H_
#define EDGEWISE_TESTS_MODEL_PATTERN_CASES_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/kinds/patterns.h"

namespace edgewise::testing {

// Row i: the keys of query i, ascending.
using Rows = std::vector<std::vector<int32_t>>;

// A small model with this attention: 2 heads, 2 layers, at most `longest` positions, pads have id 0.
ModelConfig PatternConfig(bool causal, int32_t longest, const nlohmann::json& attention);

// `length` positions of which those in `pads` are pads.
ModelSequence PatternSequence(int32_t length, const std::vector<int32_t>& pads = {});
// The same, each position but the first a pad with this probability.
ModelSequence RandomSequence(int32_t length, double pads, uint64_t seed);

// Layer 0 of a model.
AttentionSpec ChoiceOf(const ModelConfig& config, uint64_t seed);

// The rows of one pattern, between packed tokens; the first is the range's first query's. Fails the test where the
// pattern breaks a rule of GroupedKeys.
Rows RowsOf(const AttentionPattern& pattern, const QueryRange& range);
// MakePatterns without a budget, of one whole sequence.
Rows RowsOf(const AttentionSpec& choice, const ModelSequence& sequence);

uint64_t CountEdges(const Rows& rows);
// Whether every key of a row of `smaller` is in the same row of `larger`.
bool IsSubset(const Rows& smaller, const Rows& larger);

// The rows by definition, as the documentation has it: pair by pair, on positions, with full sorts.
Rows SlowRows(const AttentionSpec& choice, uint32_t side, const ModelSequence& sequence);

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_MODEL_PATTERN_CASES_H_
