// Generated tokens: the choice of each, and the text that is sent.
#include "model/forward/generated_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/token_choice.h"

namespace edgewise {
namespace {

TEST(GeneratedTextTest, CharactersAreGivenWhole) {
  GeneratedText text({});
  EXPECT_EQ(text.Add("a\xC3"), "a");
  EXPECT_EQ(text.Add("\xA9"), "\xC3\xA9");
  EXPECT_EQ(text.Add("\xF0\x9F"), "");
  EXPECT_EQ(text.Add("\x98\x80!"), "\xF0\x9F\x98\x80!");
  EXPECT_EQ(text.Finish(), "");
}

TEST(GeneratedTextTest, BytesThatAreNoCharacterAreReplaced) {
  const std::string replacement = "\xEF\xBF\xBD";
  GeneratedText text({});
  EXPECT_EQ(text.Add("\xFF"
                     "a"),
            replacement + "a");
  EXPECT_EQ(text.Add("\xC0\x80"), replacement + replacement) << "overlong";
  EXPECT_EQ(text.Add("\xE2\x82"
                     "b"),
            replacement + "b")
      << "one for a character that breaks off";
  EXPECT_EQ(text.Add("\xED\xA0\x80"), replacement + replacement + replacement) << "a surrogate";
  EXPECT_EQ(text.Add("\xE2\x82"), "");
  EXPECT_EQ(text.Finish(), replacement);
}

TEST(GeneratedTextTest, WhatMayBeginAStopStringIsHeldBack) {
  GeneratedText text({"\n\n", "END"});
  EXPECT_EQ(text.Add("one\n"), "one");
  EXPECT_EQ(text.Add("E"), "\n");
  EXPECT_EQ(text.Add("N"), "");
  EXPECT_EQ(text.Add("N"), "ENN") << "EN did not go on";
  EXPECT_EQ(text.Add("EEN"), "E");
  EXPECT_FALSE(text.stopped());
  EXPECT_EQ(text.Add("Dmore"), "");
  EXPECT_TRUE(text.stopped());
  EXPECT_EQ(text.Add("x"), "");
  EXPECT_EQ(text.Finish(), "");
}

TEST(GeneratedTextTest, TheFirstStopStringEndsTheText) {
  GeneratedText text({"cd", "b"});
  EXPECT_EQ(text.Add("abcd"), "a");
  EXPECT_TRUE(text.stopped());
}

TEST(GeneratedTextTest, TheEndGivesWhatWasHeldBack) {
  GeneratedText text({"END"});
  EXPECT_EQ(text.Add("the EN"), "the ");
  EXPECT_EQ(text.Finish(), "EN");
}

// However a text is cut into tokens, the same text comes out.
TEST(GeneratedTextTest, CutsChangeNothing) {
  const std::string whole =
      "ab\xC3\xA9"
      "aab\xF0\x9F\x98\x80"
      "aaab and aab\xE2\x82\xAC"
      "aabc, then";
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 500; ++trial) {
    GeneratedText text({"aabc", "nothing"});
    std::string given;
    for (size_t begin = 0; begin < whole.size();) {
      const size_t bytes = 1 + random() % 4;
      given += text.Add(whole.substr(begin, bytes));
      begin += bytes;
    }
    given += text.Finish();
    ASSERT_EQ(given, whole.substr(0, whole.find("aabc")));
  }
}

TEST(ChooseTokenTest, GreedyTakesTheLowerIdAmongEquals) {
  EXPECT_EQ(ChooseToken({0.1, 0.4, 0.4, 0.1}, {.uniform = 0.99}), 1);
  EXPECT_EQ(ChooseToken({0.1, 0.4, 0.4, 0.1}, {.excluded = 1, .uniform = 0.99}), 2);
}

TEST(ChooseTokenTest, TheUniformNumberWalksDownTheProbabilities) {
  const std::vector<double> p = {0.2, 0.5, 0.1, 0.2};  // order: 1, 0, 3, 2
  const auto plain = [](double uniform) { return TokenChoice{.temperature = 1.0, .uniform = uniform}; };
  EXPECT_EQ(ChooseToken(p, plain(0.0)), 1);
  EXPECT_EQ(ChooseToken(p, plain(0.49)), 1);
  EXPECT_EQ(ChooseToken(p, plain(0.51)), 0);
  EXPECT_EQ(ChooseToken(p, plain(0.71)), 3);
  EXPECT_EQ(ChooseToken(p, plain(0.91)), 2);
  EXPECT_EQ(ChooseToken(p, plain(std::nextafter(1.0, 0.0))), 2);
}

TEST(ChooseTokenTest, TopKAndTopPLeaveTheMostProbable) {
  const std::vector<double> p = {0.2, 0.5, 0.1, 0.2};
  const double last = std::nextafter(1.0, 0.0);
  EXPECT_EQ(ChooseToken(p, {.temperature = 1.0, .top_k = 1, .uniform = last}), 1);
  EXPECT_EQ(ChooseToken(p, {.temperature = 1.0, .top_k = 2, .uniform = last}), 0) << "of equals the lower id";
  EXPECT_EQ(ChooseToken(p, {.temperature = 1.0, .top_k = 100, .uniform = last}), 2);
  EXPECT_EQ(ChooseToken(p, {.temperature = 1.0, .top_p = 0.5, .uniform = last}), 1);
  EXPECT_EQ(ChooseToken(p, {.temperature = 1.0, .top_p = 0.51, .uniform = last}), 0);
  EXPECT_EQ(ChooseToken(p, {.temperature = 1.0, .top_k = 2, .top_p = 0.72, .uniform = 0.72}), 0)
      << "shares of what top_k left";
  EXPECT_EQ(ChooseToken(p, {.temperature = 1.0, .top_k = 2, .top_p = 0.72, .uniform = 0.71}), 1);
  EXPECT_EQ(ChooseToken(p, {.temperature = 1.0, .top_k = 2, .top_p = 0.70, .uniform = last}), 1);
}

TEST(ChooseTokenTest, MinPIsAShareOfTheLargestThatIsLeft) {
  const std::vector<double> p = {0.2, 0.5, 0.1, 0.2};
  const double last = std::nextafter(1.0, 0.0);
  EXPECT_EQ(ChooseToken(p, {.temperature = 1.0, .uniform = last, .min_p = 0.15}), 2);
  EXPECT_EQ(ChooseToken(p, {.temperature = 1.0, .uniform = last, .min_p = 0.3}), 3);
  EXPECT_EQ(ChooseToken(p, {.temperature = 1.0, .uniform = last, .min_p = 0.41}), 1);
  EXPECT_EQ(ChooseToken(p, {.temperature = 1.0, .uniform = last, .min_p = 1.0}), 1);
  EXPECT_EQ(ChooseToken(p, {.temperature = 4.0, .uniform = last, .min_p = 0.41}), 2) << "after the temperature";
  EXPECT_EQ(ChooseToken(p, {.temperature = 1.0, .excluded = 1, .uniform = last, .min_p = 0.6}), 3);
}

TEST(ChooseTokenTest, PenaltiesLowerWhatTheTextHas) {
  const std::vector<double> p = {0.25, 0.4, 0.35, 0.0};
  const auto choose = [&](const TokenPenalties& penalties) { return ChooseToken(p, {.penalties = &penalties}); };
  EXPECT_EQ(choose({.presence = 0.2, .seen = {{1, 0}}}), 1) << "of the prompt alone";
  EXPECT_EQ(choose({.presence = 0.1, .seen = {{1, 3}}}), 1);
  EXPECT_EQ(choose({.presence = 0.2, .seen = {{1, 1}}}), 2);
  EXPECT_EQ(choose({.frequency = 0.1, .seen = {{1, 1}}}), 1);
  EXPECT_EQ(choose({.frequency = 0.1, .seen = {{1, 2}}}), 2);
  EXPECT_EQ(choose({.repetition = 1.2, .seen = {{1, 0}}}), 2) << "of the prompt too";
  EXPECT_EQ(choose({.repetition = 1.1, .seen = {{1, 0}}}), 1);
  EXPECT_EQ(choose({.presence = -2.0, .seen = {{0, 1}}}), 0);
  // A score above 0 is divided: e^((ln 0.25 + 2) / 4) = 1.17 beside 0.4 and 0.35.
  const TokenPenalties positive = {.presence = -2.0, .repetition = 4.0, .seen = {{0, 1}}};
  EXPECT_EQ(ChooseToken(p, {.temperature = 1.0, .uniform = 0.60, .penalties = &positive}), 0);
  EXPECT_EQ(ChooseToken(p, {.temperature = 1.0, .uniform = 0.62, .penalties = &positive}), 1);
  EXPECT_EQ(choose({.frequency = -2.0, .seen = {{0, 4096}, {3, 4096}}}), 0) << "no overflow, and 0 stays impossible";
  const TokenPenalties none = {.seen = {{1, 9}}};
  for (const double uniform : {0.1, 0.5, 0.9}) {
    EXPECT_EQ(ChooseToken(p, {.temperature = 0.8, .uniform = uniform, .penalties = &none}),
              ChooseToken(p, {.temperature = 0.8, .uniform = uniform}));
  }
}

TEST(ChooseTokenTest, TemperatureSharpensAndFlattens) {
  const std::vector<double> p = {0.25, 0.75};
  // At temperature 1/2 the odds are 9 to 1, at 2 they are the root of 3 to 1.
  EXPECT_EQ(ChooseToken(p, {.temperature = 0.5, .uniform = 0.899}), 1);
  EXPECT_EQ(ChooseToken(p, {.temperature = 0.5, .uniform = 0.901}), 0);
  const double share = std::sqrt(3.0) / (1.0 + std::sqrt(3.0));
  EXPECT_EQ(ChooseToken(p, {.temperature = 2.0, .uniform = share - 1e-9}), 1);
  EXPECT_EQ(ChooseToken(p, {.temperature = 2.0, .uniform = share + 1e-9}), 0);
  EXPECT_EQ(ChooseToken(p, {.temperature = 1e-300, .uniform = 0.999}), 1) << "no overflow";
}

// At a high temperature, and at a low one, weights are equal where probabilities are not.
TEST(ChooseTokenTest, TheOrderIsThatOfTheProbabilitiesNotOfTheirRoundedWeights) {
  const std::vector<double> p = {0.1, 0.2, 0.7};
  EXPECT_EQ(ChooseToken(p, {.temperature = 1e300, .uniform = 0.0}), 2);
  EXPECT_EQ(ChooseToken(p, {.temperature = 1e300, .uniform = 0.4}), 1);
  EXPECT_EQ(ChooseToken(p, {.temperature = 1e300, .top_k = 2, .uniform = 0.9}), 1);
  EXPECT_EQ(ChooseToken(p, {.temperature = 1e300, .uniform = 0.9}), 0);
}

TEST(ChooseTokenTest, AnImpossibleTokenIsNeverChosen) {
  EXPECT_EQ(ChooseToken({0.0, 1.0, 0.0}, {.temperature = 5.0, .uniform = std::nextafter(1.0, 0.0)}), 1);
}

}  // namespace
}  // namespace edgewise
