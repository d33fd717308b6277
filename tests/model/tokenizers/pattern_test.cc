#include "model/tokenizers/pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace edgewise::tokenizers {
namespace {

using ::testing::ElementsAre;

// The parts of `text`.
absl::StatusOr<std::vector<Part>> PartsOf(const Pattern& pattern, std::string_view text,
                                          WorkBounds& bounds = NoBounds()) {
  std::vector<Part> parts;
  Work work(bounds);
  const absl::Status status = pattern.Find(text, work, [&](const Part& part) {
    parts.push_back(part);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return parts;
}

// The matched parts of `text`.
std::vector<std::string> Matches(const std::string& expression, const std::string& text) {
  const auto pattern = Pattern::Expression(expression);
  EXPECT_TRUE(pattern.ok()) << expression << ": " << pattern.status();
  if (!pattern.ok()) return {};
  const auto parts = PartsOf(*pattern, text);
  EXPECT_TRUE(parts.ok()) << parts.status();
  std::vector<std::string> matches;
  uint32_t end = 0;
  for (const Part& part : *parts) {
    EXPECT_EQ(part.begin, end) << "every byte is in one part";
    end = part.end;
    if (part.matched) matches.push_back(text.substr(part.begin, part.end - part.begin));
  }
  EXPECT_EQ(end, text.size());
  return matches;
}

TEST(PatternTest, MatchesAsTokenizersDoes) {
  EXPECT_THAT(Matches("a.b", "a\rb a\nb a\u2028b"), ElementsAre("a\rb", "a\u2028b")) << ". is all but \\n";
  EXPECT_THAT(Matches(R"(\s)", "a\v\u0085\u00a0\u200b"), ElementsAre("\v", "\u0085", "\u00a0"));
  EXPECT_THAT(Matches(R"(\w+)", "a²½ x\u200cy"), ElementsAre("a²½", "x", "y"));
  EXPECT_THAT(Matches(R"([\w-]+)", "a²-½ b"), ElementsAre("a", "-", "b")) << "a set does not hold what \\w alone does";
  EXPECT_THAT(Matches(R"((?i:'s|'ll)|x)", "'S 'LL 'ſ X x"), ElementsAre("'S", "'LL", "'ſ", "x"));
  EXPECT_THAT(Matches(R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]+)", "a[b]{c}-#"), ElementsAre("[", "]{", "}-#"));
  EXPECT_THAT(Matches(R"(a{2,3}|b{2}|c{2,}|d++|e*+f|g+?)", "aaaa bbb cccc ddd eef gg"),
              ElementsAre("aaa", "bb", "cccc", "ddd", "eef", "g", "g"));
  EXPECT_THAT(Matches(R"(\.{2,}|(?:ab){1,}|[xy]{2,}z|\d{2,})", "..... .a abababa xyxyz xz 123 4"),
              ElementsAre(".....", "ababab", "xyxyz", "123"));
  EXPECT_THAT(Matches(R"((?<=a)b(?!c)|(?<!a)d(?=e))", "ab abc xde ade"), ElementsAre("b", "d"));
  EXPECT_THAT(Matches("[一-龥]+", "a東京b"), ElementsAre("東京"));
  EXPECT_THAT(Matches(R"(😀\.)", "😀.x😀."), ElementsAre("😀.", "😀."));
  EXPECT_THAT(Matches("^a|b$", "aab\nab"), ElementsAre("a", "b", "a", "b")) << "lines";
  EXPECT_THAT(Matches(R"(\bx\b|\h+)", "x xx fF"), ElementsAre("x", "fF"));
  EXPECT_THAT(Matches(R"([a-z&&[^aeiou]]+)", "abcde"), ElementsAre("bcd"));
}

// As the iterator of `tokenizers`: the first empty match behind one that is not is left out.
TEST(PatternTest, EmptyMatchesAreThoseOfTokenizers) {
  EXPECT_THAT(Matches("x*", "axxb"), ElementsAre("", "xx", ""));
  EXPECT_THAT(Matches(R"(\d*)", "a1bbb2"), ElementsAre("", "1", "", "", "2"));
  EXPECT_THAT(Matches(R"(\b)", "é b"), ElementsAre("", "", "", ""));
}

TEST(PatternTest, RefusesWhatIsNoExpression) {
  const std::pair<std::string, const char*> cases[] = {
      {"[a", "is not a regular expression of Oniguruma: premature end of char-class"},
      {"(a", "is not a regular expression of Oniguruma: end pattern with unmatched parenthesis"},
      {"*", "is not a regular expression of Oniguruma: target of repeat operator is not specified"},
      {R"(\p{Nothing})", "is not a regular expression of Oniguruma: invalid character property name {Nothing}"},
      {"a(*FAIL)", "is not a regular expression of Oniguruma: target of repeat operator is not specified"},
      {"(?{x})", "is not a regular expression of Oniguruma: undefined group option"},
      {R"(\\|\Ga)", "has \\G or the option L, which are not served"},
      {"(?L)a|ab", "has \\G or the option L, which are not served"},
      {std::string(5000, 'a'), "has 5000 bytes; allowed are at most 4096"}};
  for (const auto& [expression, message] : cases) {
    EXPECT_EQ(Pattern::Expression(expression).status().message(), message) << expression;
  }
}

TEST(PatternTest, LinearSearchesOfLongTextsEnd) {
  for (const char* linear : {" {2,}", " +", "a+", R"(\s+(?!\S)|\s+)", R"(\.+)", R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
                             "nowhere", R"((?=b)|(?<=c)d|[e-g]\w+x)"}) {
    const auto pattern = Pattern::Expression(linear);
    ASSERT_TRUE(pattern.ok());
    for (const char c : {' ', 'a', '.'}) EXPECT_TRUE(PartsOf(*pattern, std::string(1 << 18, c)).ok()) << linear << c;
  }
}

TEST(PatternTest, StopsWhereItWouldTakeForever) {
  for (const char* endless : {"(a+)+b", "(a*)*b|c", "(a|a)*b", "a*a*a*a*b", "(a+)+b|d"}) {
    const auto pattern = Pattern::Expression(endless);
    ASSERT_TRUE(pattern.ok());
    for (const size_t size : {5000, 1 << 16}) {
      EXPECT_EQ(PartsOf(*pattern, std::string(size, 'a') + "cb").status(),
                absl::InvalidArgumentError("the tokenizer's regular expression takes too long for this text"))
          << endless;
    }
  }
}

// No search is long by itself, but all together are.
TEST(PatternTest, TheStepsBackOfATextHaveASum) {
  const auto pattern = Pattern::Expression("(?:a{0,16}){6}b|c");
  ASSERT_TRUE(pattern.ok());
  std::string text;
  while (text.size() < (1 << 18)) text += "aaaaaaaaaaaaaaaaaac";
  EXPECT_TRUE(absl::IsInvalidArgument(PartsOf(*pattern, text).status()));
  EXPECT_TRUE(PartsOf(*pattern, text.substr(0, 19)).ok()) << "one of them is short enough";
}

// The same pattern at work in several threads: each has its own limits and its own match.
TEST(PatternTest, ServesThreadsAtOnce) {
  const auto pattern = Pattern::Expression(R"( ?\p{L}+|\s+(?!\S)|(x)\1)");
  ASSERT_TRUE(pattern.ok());
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "ab é xx   11 ";
  const size_t expected = PartsOf(*pattern, text)->size();
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { right += PartsOf(*pattern, text)->size() == expected; });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 4);
}

}  // namespace
}  // namespace edgewise::tokenizers
