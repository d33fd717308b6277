#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/tokenizers/pattern.h"

namespace edgewise::tokenizers {
namespace {

using ::testing::ElementsAre;

// The matched parts of `text`.
std::vector<std::string> Matches(const std::string& expression, const std::string& text) {
  const auto pattern = Pattern::Expression(expression);
  EXPECT_TRUE(pattern.ok()) << expression << ": " << pattern.status();
  if (!pattern.ok()) return {};
  const auto parts = pattern->Find(text);
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

TEST(ExpressionTest, MeansWhatOnigurumaMeans) {
  EXPECT_THAT(Matches("a.b", "a\rb a\nb a\u2028b"), ElementsAre("a\rb", "a\u2028b")) << ". is all but \\n";
  EXPECT_THAT(Matches(R"(\s)", "a\v\u0085\u00a0\u200b"), ElementsAre("\v", "\u0085", "\u00a0"));
  EXPECT_THAT(Matches(R"(\w+)", "a²½ x\u200cy"), ElementsAre("a²½", "x", "y")) << "as in Oniguruma, not as in ICU";
  EXPECT_THAT(Matches(R"([\w-]+)", "a²-½ b"), ElementsAre("a²-½", "b"));
  EXPECT_THAT(Matches(R"((?i:'s|'ll)|x)", "'S 'LL 'ſ X x"), ElementsAre("'S", "'LL", "'ſ", "x"));
  EXPECT_THAT(Matches(R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]+)", "a[b]{c}-#"), ElementsAre("[", "]{", "}-#"));
  EXPECT_THAT(Matches(R"(a{2,3}|b{2}|c{2,}|d++|e*+f|g+?)", "aaaa bbb cccc ddd eef gg"),
              ElementsAre("aaa", "bb", "cccc", "ddd", "eef", "g", "g"));
  EXPECT_THAT(Matches(R"(\.{2,}|(?:ab){1,}|[xy]{2,}z|\d{2,})", "..... .a abababa xyxyz xz 123 4"),
              ElementsAre(".....", "ababab", "xyxyz", "123"));
  EXPECT_THAT(Matches(R"((?<=a)b(?!c)|(?<!a)d(?=e))", "ab abc xde ade"), ElementsAre("b", "d"));
  EXPECT_THAT(Matches("[一-龥]+", "a東京b"), ElementsAre("東京"));
  EXPECT_THAT(Matches(R"(😀\.)", "😀.x😀."), ElementsAre("😀.", "😀."));
  EXPECT_THAT(Matches("x*", "axxb"), ElementsAre("", "xx", "")) << "no empty match where one has ended";
}

TEST(ExpressionTest, RefusesWhatMayMeanSomethingElse) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(\h)", "has the escape \\\\h at byte 0, which is not served"},
      {R"(a\b)", "has the escape \\\\b at byte 1, which is not served"},
      {"^a", "has a bare ^ at byte 0, which is not served"},
      {"a$", "has a bare $ at byte 1, which is not served"},
      {"a(?i)b", "has (?i) at byte 1, which is not served"},
      {"(?m:a)", "has (?m: at byte 0, which is not served"},
      {"(?i:é)", "has something other than ASCII letters inside (?i:...) at byte 4, which is not served"},
      {R"((?i:[a]))", "has something other than ASCII letters inside (?i:...) at byte 4, which is not served"},
      {R"(\p{Alpha})", "has the property \\\\p{Alpha} at byte 0, which is not served"},
      {R"(\p{^L})", "has the property \\\\p{^L} at byte 0, which is not served"},
      {"[a[b]]", "has a set inside [...] at byte 2, which is not served"},
      {"[a&&b]", "has a set inside [...] at byte 2, which is not served"},
      {R"([a-\d])", "has a range that does not end at byte 5, which is not served"},
      {"[]", "has an empty [...] at byte 1, which is not served"},
      {"[a", "has an open [ at byte 2, which is not served"},
      {"(a", "has an open ( at byte 2, which is not served"},
      {"a)", "has a ) too many at byte 1, which is not served"},
      {"*", "has a quantifier of nothing at byte 0, which is not served"},
      {"a**", "has a quantifier of nothing at byte 2, which is not served"},
      {"a{2}?", "has a second quantifier at byte 4, which is not served"},
      {"a{x}", "has a bare { at byte 1, which is not served"},
      {"a{3,2}", "has a bare { at byte 1, which is not served"},
      {"a\\", "has the escape \\\\ at byte 1, which is not served"}};
  for (const auto& [expression, message] : cases) {
    EXPECT_EQ(ToIcuExpression(expression).status().message(), message) << expression;
  }
}

TEST(ExpressionTest, StopsWhereItWouldTakeForever) {
  for (const char* linear : {" {2,}", " +", "a+", R"(\s+(?!\S)|\s+)", R"(\.+)"}) {
    const auto pattern = Pattern::Expression(linear);
    ASSERT_TRUE(pattern.ok());
    for (const char c : {' ', 'a', '.'})
      EXPECT_TRUE(pattern->Find(std::string(1 << 20, c)).ok()) << linear << " of " << c;
  }
  const auto pattern = Pattern::Expression("(?:a+)+b");
  ASSERT_TRUE(pattern.ok());
  const auto parts = pattern->Find(std::string(5000, 'a'));
  EXPECT_EQ(parts.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(parts.status().message()), ::testing::HasSubstr("takes too long for this text"));
}

}  // namespace
}  // namespace edgewise::tokenizers
