// The kinds of attention whose patterns are tested: a new kind is a new row.
#ifndef EDGEWISE_TESTS_MODEL_PATTERN_KINDS_H_
#define EDGEWISE_TESTS_MODEL_PATTERN_KINDS_H_

#include <gtest/gtest.h>

#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "model/kinds/kind.h"
#include "tests/model/pattern_cases.h"

namespace edgewise::testing {

struct Kind {
  std::string name;
  std::string attention;  // as in config.json
  bool random = false;    // two draws can differ
  bool causal = false;
};

inline void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

// The rows of `kinds`, causal and not.
inline std::vector<Kind> Both(const std::vector<Kind>& kinds) {
  std::vector<Kind> both;
  for (const Kind& kind : kinds) {
    both.push_back(kind);
    both.push_back({"causal_" + kind.name, kind.attention, kind.random, true});
  }
  return both;
}

inline const std::vector<Kind> kSsaKinds = Both({
    {"local", R"({"kind": "ssa", "bias": "local", "windows": 5, "sigma": 0.2})", true},
    {"local_one_window", R"({"kind": "ssa", "bias": "local", "windows": 1, "sigma": 0.2})", false},
    {"local_more_windows_than_tokens", R"({"kind": "ssa", "bias": "local", "windows": 1000, "sigma": 0.05})", true},
    {"local_no_noise", R"({"kind": "ssa", "bias": "local", "windows": 7, "sigma": 0})", false},
    {"local_uniform", R"({"kind": "ssa", "bias": "local", "windows": 4, "sigma": 1000})", true},
    {"local_tokens", R"({"kind": "ssa", "bias": "local", "window_tokens": 9, "sigma": 4})", true},
    {"local_tokens_one_window", R"({"kind": "ssa", "bias": "local", "window_tokens": 1000, "sigma": 4})", false},
    {"local_one_token", R"({"kind": "ssa", "bias": "local", "window_tokens": 1, "sigma": 20})", true},
    {"none_keep", R"({"kind": "ssa", "bias": "none", "keep": 7})", true},
    {"none_keep_all", R"({"kind": "ssa", "bias": "none", "keep": 1000})", false},
    {"none_windows", R"({"kind": "ssa", "bias": "none", "windows": 5})", true},
    {"none_one_source", R"({"kind": "ssa", "bias": "none", "windows": 1000})", true},
    {"grid", R"({"kind": "ssa", "bias": "local", "windows": 4, "sigma": 0.25, "grid": [6, 8]})", true},
    {"grid_many_windows", R"({"kind": "ssa", "bias": "local", "windows": 100, "sigma": 0.3, "grid": [12, 4]})", true},
    {"grid_one_row", R"({"kind": "ssa", "bias": "local", "windows": 3, "sigma": 0.1, "grid": [1, 48]})", false},
    {"grid_one_column", R"({"kind": "ssa", "bias": "local", "windows": 5, "sigma": 0.1, "grid": [48, 1]})", true},
});

inline const std::vector<Kind> kBlockKinds = Both({
    {"diagonal", R"({"kind": "block", "block_size": 10, "pattern": "diagonal"})"},
    {"one_block", R"({"kind": "block", "block_size": 100, "pattern": "diagonal"})"},
    {"single_positions", R"({"kind": "block", "block_size": 1, "pattern": "local", "width": 3})"},
    {"block_local", R"({"kind": "block", "block_size": 5, "pattern": "local"})"},
    {"width_zero", R"({"kind": "block", "block_size": 5, "pattern": "local", "width": 0})"},
    {"width_all", R"({"kind": "block", "block_size": 5, "pattern": "local", "width": 1000})"},
    {"strided", R"({"kind": "block", "block_size": 4, "pattern": "strided", "stride": 3})"},
    {"first_and_diagonal", R"({"kind": "block", "block_size": 7, "pattern": "first_and_diagonal"})"},
    {"adaptive",
     R"({"kind": "block", "block_size": {"min": 2, "max": 11, "alpha": 0.29}, "pattern": "first_and_diagonal"})"},
    {"list", R"({"kind": "block", "block_size": 9, "pattern": "list",
                 "blocks": [[0, 1], [1, 1], [1, 0], [2, 0], [3, 2], [4, 4], [5, 1], [900, 900]]})"},
    {"learned", R"({"kind": "block", "block_size": 7, "pattern": "learned", "threshold": 0.5})"},
});

inline std::vector<Kind> AllKinds() {
  std::vector<Kind> kinds = kSsaKinds;
  kinds.insert(kinds.end(), kBlockKinds.begin(), kBlockKinds.end());
  return kinds;
}

// A model of one kind that takes up to 48 positions.
class KindTest : public ::testing::TestWithParam<Kind> {
 protected:
  static constexpr int32_t kLongest = 48;

  KindTest() : config_(PatternConfig(GetParam().causal, kLongest, nlohmann::json::parse(GetParam().attention))) {
    std::mt19937_64 random(5);
    // Few different scores, so that there are ties.
    std::uniform_int_distribution<int> score(-3, 3);
    for (int i = 0; i < kLongest * kLongest; ++i) scores_.push_back(0.5f * static_cast<float>(score(random)));
  }

  AttentionSpec Choice(uint64_t seed) const {
    AttentionSpec choice = ChoiceOf(config_, seed);
    choice.sample = static_cast<uint32_t>(seed % 7);
    choice.block_scores = scores_;
    return choice;
  }
  bool ssa() const { return config_.attention[0].kind == &kSsaKind; }

  const ModelConfig config_;
  std::vector<float> scores_;
};

// Some of the kinds.
inline std::vector<Kind> Only(bool (*wanted)(const Kind&)) {
  std::vector<Kind> kinds = AllKinds();
  std::erase_if(kinds, [&](const Kind& kind) { return !wanted(kind); });
  return kinds;
}
inline bool IsCausal(const Kind& kind) { return kind.causal; }
inline bool IsNotCausal(const Kind& kind) { return !kind.causal; }
inline bool IsLocalSsa(const Kind& kind) {
  return kind.attention.find("\"bias\": \"local\"") != std::string::npos &&
         kind.attention.find("grid") == std::string::npos;
}

inline std::string KindName(const ::testing::TestParamInfo<Kind>& info) { return info.param.name; }

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_MODEL_PATTERN_KINDS_H_
