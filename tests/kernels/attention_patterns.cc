#include "tests/kernels/attention_patterns.h"

#include <algorithm>
#include <random>
#include <utility>

namespace edgewise::testing {
namespace {

// Groups of queries that begin at `begins`, with the keys for which sees(group, key).
GroupedKeys Groups(const std::vector<int32_t>& begins, int32_t n, bool causal,
                   const std::function<bool(int, int32_t)>& sees) {
  GroupedKeys grouped;
  grouped.group_begin.assign(begins.begin(), begins.end());
  grouped.group_begin.push_back(n);
  grouped.key_offsets.push_back(0);
  for (size_t g = 0; g + 1 < grouped.group_begin.size(); ++g) {
    for (int32_t key = 0; key < n; ++key) {
      if (sees(static_cast<int>(g), key)) grouped.keys.push_back(key);
    }
    grouped.key_offsets.push_back(static_cast<int64_t>(grouped.keys.size()));
  }
  grouped.causal = causal;
  return grouped;
}

}  // namespace

GroupedKeys Windows(int32_t n, int windows, bool causal) {
  std::vector<int32_t> begins;
  for (int w = 0; w < windows; ++w) begins.push_back(static_cast<int32_t>(static_cast<int64_t>(n) * w / windows));
  return Groups(begins, n, causal, [&](int g, int32_t key) {
    return windows == 1 || static_cast<int>((static_cast<uint32_t>(key) * 2654435761u >> 8) % windows) == g;
  });
}

namespace {

// Rows of blocks: the block itself, the one before, and a few more.
GroupedKeys Blocks(int32_t n, int block, bool causal) {
  std::vector<int32_t> begins;
  for (int32_t first = 0; first < n; first += block) begins.push_back(first);
  return Groups(begins, n, causal, [&](int g, int32_t key) {
    const int b = key / block;
    return b == g || b == g - 1 || (b * 7 + g) % 5 == 0;
  });
}

}  // namespace

std::vector<Pattern> Patterns() {
  std::vector<Pattern> patterns = {
      {"all", [](int32_t) { return AllPairs{}; }},
      {"causal", [](int32_t) { return AllPairs{true}; }},
      // Groups of one to many rows, some without keys.
      {"uneven",
       [](int32_t n) {
         std::vector<int32_t> begins;
         for (int32_t first = 0, step = 1; first < n; first += step, step = step * 2 + 1) begins.push_back(first);
         return Groups(begins, n, true, [](int g, int32_t key) { return g % 3 != 1 && key % (g + 1) == 0; });
       }},
      // The first queries of every group see nothing.
      {"late",
       [](int32_t n) {
         return Groups({0, n / 2}, n, true, [&](int, int32_t key) { return key >= n / 3; });
       }},
      {"nothing", [](int32_t n) { return Groups({0}, n, false, [](int, int32_t) { return false; }); }}};
  for (const bool causal : {false, true}) {
    const std::string suffix = causal ? "-causal" : "";
    for (const int windows : {1, 3, 4}) {
      patterns.push_back({"windows-" + std::to_string(windows) + suffix,
                          [=](int32_t n) { return Windows(n, std::min(n, windows), causal); }});
    }
    patterns.push_back({"windows-n" + suffix, [=](int32_t n) { return Windows(n, n, causal); }});
    for (const int block : {16, 64, 100}) {
      patterns.push_back(
          {"blocks-" + std::to_string(block) + suffix, [=](int32_t n) { return Blocks(n, block, causal); }});
    }
  }
  return patterns;
}

std::unique_ptr<Case> MakeCase(const Shape& shape, const Pattern& pattern) {
  auto made = std::make_unique<Case>(shape);
  made->AddProblems(AllPairs{});
  for (AttentionProblem& problem : made->problems) problem.pattern = pattern.make(problem.tokens);
  made->AskForAll();
  return made;
}

Biases::Biases(BiasKind kind, Case& attention_case) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const int heads = attention_case.inputs.num_heads;
  int32_t length = 0;
  for (const auto& places : attention_case.positions) length = std::max(length, places.back() + 1);
  const auto fill = [&](std::vector<float>& values, int64_t count) {
    values.resize(static_cast<size_t>(count));
    for (float& value : values) value = 2.0f * normal(random);
  };
  if (kind == BiasKind::kDistance || kind == BiasKind::kDistanceAndBuckets) {
    fill(distance_, heads * (2 * int64_t{length} - 1));
    attention_case.inputs.distance_bias = distance_.data();
    attention_case.inputs.distance_span = length;
  }
  if (kind == BiasKind::kDistance || kind == BiasKind::kNone) return;
  pairs_.length = length;
  if (kind == BiasKind::kValues) {
    fill(values_, int64_t{length} * length);
    pairs_.values = values_.data();
  } else {
    fill(table_, heads * 256);
    buckets_.resize(static_cast<size_t>(length) * length);
    for (uint8_t& bucket : buckets_) bucket = static_cast<uint8_t>(random());
    pairs_.buckets = buckets_.data();
    pairs_.table = table_.data();
  }
  for (AttentionProblem& problem : attention_case.problems) problem.bias = &pairs_;
}

}  // namespace edgewise::testing
