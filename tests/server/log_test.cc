#include "server/observe/log.h"

#include <gtest/gtest.h>

#include <limits>

namespace edgewise::server {
namespace {

TEST(LogTest, HostileStringsStayOneEscapedJsonString) {
  EXPECT_EQ(JsonString("a\"b\\c\n\x1b[31m\x7f\xff"), "\"a\\\"b\\\\c\\u000a\\u001b[31m\\u007f\\u00ff\"");
  EXPECT_EQ(JsonString(std::string_view("\0", 1)), "\"\\u0000\"");
}

TEST(LogTest, StringsAreCutAt256Bytes) {
  EXPECT_EQ(JsonString(std::string(256, 'x')).size(), 258u);
  EXPECT_EQ(JsonString(std::string(257, 'x')), "\"" + std::string(256, 'x') + "...\"");
}

TEST(LogTest, NumbersAreJsonNumbers) {
  EXPECT_EQ(LogBody("e", {{"a", 1}, {"b", uint64_t{18446744073709551615u}}, {"c", 0.25}, {"d", "x"}}),
            "\"event\":\"e\",\"a\":1,\"b\":18446744073709551615,\"c\":0.25,\"d\":\"x\"");
  EXPECT_EQ(LogBody("e", {{"n", std::numeric_limits<double>::quiet_NaN()}}), "\"event\":\"e\",\"n\":null");
}

TEST(LogTest, LevelsParse) {
  LogLevel level = LogLevel::kOff;
  EXPECT_TRUE(ParseLogLevel("warning", level));
  EXPECT_EQ(level, LogLevel::kWarning);
  EXPECT_FALSE(ParseLogLevel("loud", level));
}

TEST(LogLimiterTest, TenLinesASecondForEachKeyThenACount) {
  LogLimiter limiter(10);
  auto now = std::chrono::steady_clock::time_point() + std::chrono::hours(1);
  uint64_t suppressed = 99;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(limiter.Allow("bad", now, suppressed));
  EXPECT_EQ(suppressed, 0u);
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(limiter.Allow("bad", now, suppressed));
  EXPECT_TRUE(limiter.Allow("other", now, suppressed));
  EXPECT_TRUE(limiter.Allow("bad", now + std::chrono::seconds(1), suppressed));
  EXPECT_EQ(suppressed, 7u);
  EXPECT_TRUE(limiter.Allow("bad", now + std::chrono::seconds(1), suppressed));
  EXPECT_EQ(suppressed, 0u);
}

}  // namespace
}  // namespace edgewise::server
