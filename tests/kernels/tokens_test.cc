// The choice of tokens from logits, on every device: those of ChooseToken for the mean of the rows' distributions.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/softmax.h"
#include "tests/kernels/devices.h"
#include "tests/support/paths.h"

namespace edgewise {
namespace {

constexpr int64_t kWords = 5000;  // parts of a row, the last not whole

std::vector<float> Logits(int64_t rows, uint32_t seed, int64_t vocabulary = kWords) {
  std::mt19937 random(seed);
  std::normal_distribution<float> law(-3.0f, 2.5f);
  std::vector<float> logits(static_cast<size_t>(rows * vocabulary));
  for (float& logit : logits) logit = law(random);
  return logits;
}

class TokensTest : public testing::DeviceTest {
 protected:
  // Logits come in parts of `part` rows; 0: all at once.
  std::vector<ChosenToken> Choose(const std::vector<float>& logits, const std::vector<TokenChoice>& choices,
                                  int64_t part = 0, int64_t vocabulary = kWords,
                                  std::vector<TokenAlternatives>* alternatives = nullptr) {
    const auto chooser = *backend_->MakeTokenChooser(choices, vocabulary);
    const auto rows = static_cast<int64_t>(logits.size()) / vocabulary;
    for (int64_t row = 0; row<rows; row += part> 0 ? part : rows) {
      const int64_t count = part > 0 ? std::min(part, rows - row) : rows;
      const Buffer placed = testing::Place(*backend_, std::span(logits).subspan(row * vocabulary, count * vocabulary));
      EXPECT_TRUE(backend_->AddLogits(*chooser, placed.AsMatrix(count, vocabulary)).ok());
    }
    std::vector<ChosenToken> chosen = *backend_->ChosenTokens(*chooser);
    EXPECT_EQ(chooser->alternatives().size(), choices.size());
    if (alternatives != nullptr) *alternatives = chooser->alternatives();
    return chosen;
  }
};
EDGEWISE_TEST_ON(Devices, TokensTest);

bool Same(const ChosenToken& a, const ChosenToken& b) {
  return a.id == b.id && a.log_probability == b.log_probability && a.finite == b.finite &&
         a.predictive_entropy == b.predictive_entropy && a.mutual_information == b.mutual_information;
}

std::vector<double> MeanOf(const float* logits, int64_t rows, int64_t vocabulary) {
  std::vector<double> mean(static_cast<size_t>(vocabulary)), of_row(mean.size());
  for (int64_t r = 0; r < rows; ++r) {
    Softmax(logits + r * vocabulary, of_row);
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += of_row[c] / static_cast<double>(rows);
  }
  return mean;
}

TEST_P(TokensTest, AreThoseOfTheRule) {
  std::vector<TokenChoice> choices;
  uint32_t seed = 0;
  for (const uint32_t samples : {1u, 3u}) {
    for (const double temperature : {0.0, 0.3, 1.0, 40.0, 1e300}) {
      for (const uint32_t top_k : {0u, 1u, 40u, 4999u, 70000u}) {
        for (const double top_p : {0.0, 0.4, 0.95}) {
          // Uniform numbers far from where another token begins, as weights are rounded.
          choices.push_back({.temperature = temperature, .top_k = top_k, .top_p = top_p, .samples = samples});
          choices.back().excluded = seed % 3 == 0 ? 17 : -1;
          choices.back().uniform = static_cast<double>(++seed * 2654435761u % 1000) / 1000.0;
        }
      }
    }
  }
  if (on_emulator_) {  // it is slow
    std::vector<TokenChoice> few;
    for (size_t i = 0; i < choices.size(); i += 7) few.push_back(choices[i]);
    choices = few;
  }
  int64_t rows = 0;
  for (const TokenChoice& choice : choices) rows += choice.samples;
  const std::vector<float> logits = Logits(rows, 1);
  const std::vector<ChosenToken> chosen = Choose(logits, choices, 7);
  ASSERT_EQ(chosen.size(), choices.size());
  int64_t row = 0, others = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    SCOPED_TRACE(i);
    const std::vector<double> mean = MeanOf(logits.data() + row * kWords, choices[i].samples, kWords);
    row += choices[i].samples;
    const int32_t want = ChooseToken(mean, choices[i]);
    EXPECT_TRUE(chosen[i].finite);
    EXPECT_NE(chosen[i].id, choices[i].excluded);
    EXPECT_NEAR(chosen[i].log_probability, std::log(mean[chosen[i].id]), 2e-6);
    if (chosen[i].id == want) continue;
    // The neighbour of the same order, where rounding moved the sum across the uniform number.
    ++others;
    EXPECT_NEAR(mean[chosen[i].id], mean[want], 2e-3 * mean[want]);
    EXPECT_GT(choices[i].temperature, 0.0);
  }
  EXPECT_LE(others, static_cast<int64_t>(choices.size()) / 10);
}

// tests/testdata/token-choices-v1.txt, written by an independent implementation (tests/reference/token_choice.py).
TEST_P(TokensTest, AreTheGoldenValues) {
  std::ifstream file(tests::TestdataFolder() + "/token-choices-v1.txt");
  int64_t count = 0, penalized = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    SCOPED_TRACE(line);
    std::istringstream fields(line);
    int64_t tokens, step, shift;
    std::string seen;
    TokenChoice choice;
    TokenPenalties penalties;
    ChosenToken want;
    fields >> tokens >> choice.samples >> step >> shift >> choice.temperature >> choice.top_k >> choice.top_p >>
        choice.min_p >> penalties.presence >> penalties.frequency >> penalties.repetition >> choice.excluded >>
        choice.uniform >> seen >> want.id >> want.log_probability >> want.predictive_entropy >> want.mutual_information;
    ASSERT_TRUE(fields);
    if (on_emulator_ && count++ % 10 > 0) continue;  // it is slow
    std::istringstream pairs(seen);
    for (std::string pair; seen != "-" && std::getline(pairs, pair, ',');) {
      const size_t colon = pair.find(':');
      penalties.seen[std::stoi(pair)] = static_cast<uint32_t>(std::stoi(pair.substr(colon + 1)));
    }
    if (!penalties.neutral()) choice.penalties = &penalties;
    penalized += choice.penalties != nullptr ? 1 : 0;
    std::vector<float> logits;
    for (int64_t sample = 0; sample < choice.samples; ++sample) {
      for (int64_t token = 0; token < tokens; ++token) {
        logits.push_back(static_cast<float>((token * step + sample * shift) % 97) / 16.0f);
      }
    }
    const ChosenToken chosen = Choose(logits, {choice}, 0, tokens)[0];
    EXPECT_TRUE(chosen.finite);
    EXPECT_EQ(chosen.id, want.id);
    EXPECT_NEAR(chosen.log_probability, want.log_probability, 2e-6);
    EXPECT_NEAR(chosen.predictive_entropy, want.predictive_entropy, 5e-6);
    EXPECT_NEAR(chosen.mutual_information, want.mutual_information, 5e-6);
  }
  EXPECT_GE(penalized, on_emulator_ ? 10 : 100);
}

TEST_P(TokensTest, AlternativesAreTheMostProbableAndChangeNothing) {
  std::vector<float> logits = Logits(3, 8);
  logits[70] = logits[80] = 30.0f;  // of the first choice
  std::vector<TokenChoice> choices = {{.temperature = 1.0, .excluded = 80, .uniform = 0.3},
                                      {.temperature = 1.0, .uniform = 0.5, .samples = 2}};
  const std::vector<ChosenToken> plain = Choose(logits, choices);
  choices[0].alternatives = choices[1].alternatives = 20;
  std::vector<TokenAlternatives> alternatives;
  const std::vector<ChosenToken> chosen = Choose(logits, choices, 1, kWords, &alternatives);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(Same(chosen[i], plain[i])) << i;
    const std::vector<double> mean = MeanOf(logits.data() + i * kWords, choices[i].samples, kWords);
    ASSERT_EQ(alternatives[i].size(), 20u);
    double last = 1.0;
    for (const TokenProbability& one : alternatives[i]) {
      EXPECT_NE(one.id, choices[i].excluded);
      EXPECT_NEAR(one.log_probability, std::log(mean[one.id]), 2e-6);
      EXPECT_LE(mean[one.id], last);
      last = mean[one.id];
      if (one.id == chosen[i].id) {
        EXPECT_EQ(one.log_probability, chosen[i].log_probability);
      }
    }
    EXPECT_EQ(std::count_if(mean.begin(), mean.end(), [&](double p) { return p > last; }),
              19 + (choices[i].excluded >= 0 ? 1 : 0));
  }
  EXPECT_EQ(alternatives[0][0].id, 70);
  // No token of probability 0, and no more than there are.
  Choose({0.0f, -1e4f, 1.0f}, {{.alternatives = 20}}, 0, 3, &alternatives);
  ASSERT_EQ(alternatives[0].size(), 2u);
  EXPECT_EQ(alternatives[0][1].id, 0);
}

TEST_P(TokensTest, PenaltiesAndMinPChooseAsTheHostDoes) {
  const std::vector<float> logits = Logits(8, 9);
  const TokenPenalties penalties = {.presence = 1.5, .frequency = -0.5, .repetition = 1.2, .seen = {{3, 2}, {4000, 0}}};
  std::vector<TokenChoice> choices;
  for (int i = 0; i < 4; ++i) {
    choices.push_back({.temperature = 0.9, .top_k = 300, .top_p = 0.9, .uniform = i / 4.0, .samples = 2});
    (i % 2 == 0 ? choices.back().min_p : choices.back().uniform) += 0.01;
    if (i % 2 == 1) choices.back().penalties = &penalties;
  }
  HostTokenChooser host(choices, kWords);
  host.Add(ConstMatrix(logits.data(), 8, kWords));
  const std::vector<ChosenToken> chosen = Choose(logits, choices, 3);
  for (size_t i = 0; i < choices.size(); ++i) EXPECT_TRUE(Same(chosen[i], host.chosen()[i])) << i;
}

TEST_P(TokensTest, OfEqualsTheLowerId) {
  std::vector<float> logits(2 * kWords, 1.0f);
  logits[4321] = logits[4400] = 2.0f;
  logits[kWords] = -0.0f;  // beside zeros
  for (int64_t c = 1; c < kWords; ++c) logits[kWords + c] = 0.0f;
  const double last = std::nextafter(1.0, 0.0);
  const auto chosen = Choose(logits, {{}, {.excluded = 0}});
  EXPECT_EQ(chosen[0].id, 4321);
  EXPECT_EQ(chosen[1].id, 1);
  EXPECT_EQ(Choose(logits, {{.temperature = 1.0, .top_k = 1, .uniform = last}, {}})[0].id, 4321);
  EXPECT_EQ(Choose(logits, {{.temperature = 1.0, .top_k = 2, .uniform = last}, {}})[0].id, 4400);
  EXPECT_EQ(Choose(logits, {{.temperature = 1.0, .top_k = 3, .uniform = last}, {}})[0].id, 0);
  const TokenChoice middle = {.temperature = 1.0, .uniform = 0.5 + 0.5 / kWords};
  EXPECT_EQ(Choose(logits, {{}, middle})[1].id, kWords / 2);
}

TEST_P(TokensTest, DependOnTheirOwnRowsAlone) {
  const TokenPenalties penalties = {.presence = 2.0, .seen = {{5, 1}}};
  const std::vector<TokenChoice> choices = {{.temperature = 1.0, .uniform = 0.7},
                                            {.temperature = 1.0, .uniform = 0.4, .samples = 2, .min_p = 0.3},
                                            {.samples = 4},
                                            {.uniform = 0.2, .alternatives = 3, .penalties = &penalties},
                                            {.temperature = 0.8, .top_p = 0.9, .uniform = 0.2, .samples = 2},
                                            {.excluded = 3}};
  const std::vector<float> logits = Logits(11, 5);
  const std::vector<ChosenToken> together = Choose(logits, choices);
  int64_t row = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    const auto own = logits.begin() + row * kWords;
    row += choices[i].samples;
    EXPECT_TRUE(Same(Choose({own, logits.begin() + row * kWords}, {choices[i]})[0], together[i])) << i;
  }
  for (const int64_t part : {1, 3}) {  // rows of a choice come in several parts
    const std::vector<ChosenToken> again = Choose(logits, choices, part);
    for (size_t i = 0; i < choices.size(); ++i) EXPECT_TRUE(Same(again[i], together[i])) << part << " " << i;
  }
}

TEST_P(TokensTest, WhatIsNotFiniteIsTold) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> logits = Logits(6, 2);
  logits[100] = kInfinity;
  logits[kWords + 4999] = std::nanf("");
  logits[2 * kWords + 2048] = -kInfinity;
  logits[4 * kWords] = kInfinity;  // of the second sample of two
  const std::vector<ChosenToken> chosen = Choose(logits, {{}, {.temperature = 1.0}, {}, {.samples = 2}, {}});
  for (size_t i = 0; i < chosen.size(); ++i) EXPECT_EQ(chosen[i].finite, i == 4) << i;
}

TEST_P(TokensTest, AllOfTheExcludedTokenIsNotFinite) {
  std::vector<float> logits(kWords, -1e4f);
  logits[7] = 0.0f;
  for (const double temperature : {0.0, 1.0}) {
    EXPECT_FALSE(Choose(logits, {{.temperature = temperature, .excluded = 7}})[0].finite);
    EXPECT_EQ(Choose(logits, {{.temperature = temperature}})[0].id, 7);
  }
  EXPECT_EQ(Choose({0.5f}, {{.temperature = 1.0}}, 0, 1)[0].id, 0);
}

}  // namespace
}  // namespace edgewise
