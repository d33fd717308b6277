#include "server/observe/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace edgewise::server {
namespace {

TEST(LogTest, HostileStringsStayOneEscapedJsonString) {
  EXPECT_EQ(JsonString("a\"b\\c\n\x1b[31m\x7f\xff"), "\"a\\\"b\\\\c\\u000a\\u001b[31m\\u007f\\u00ff\"");
  EXPECT_EQ(JsonString(std::string_view("\0", 1)), "\"\\u0000\"");
}

// What a JSON parser makes of it is the text that was there.
TEST(LogTest, CharactersAreThoseOfTheText) {
  for (const char* text : {"r\u00e9/Mod\u00e8le", "\u20ac \ufffd \u0800", "\U0001f600\U0010ffff", "\u0080\u07ff"}) {
    const std::string string = JsonString(text);
    EXPECT_EQ(nlohmann::json::parse(string).get<std::string>(), text);
    EXPECT_TRUE(std::all_of(string.begin(), string.end(), [](char c) { return c >= 0x20 && c < 0x7F; })) << string;
  }
  // Neither overlong, nor half of a pair, nor too large, nor cut short.
  EXPECT_EQ(JsonString("\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80\xe2\x82"),
            "\"\\u00c0\\u00af\\u00ed\\u00a0\\u0080\\u00f4\\u0090\\u0080\\u0080\\u00e2\\u0082\"");
  EXPECT_EQ(JsonString("abc\u20ac", 5), "\"abc...\"") << "no half of a character";
}

TEST(LogTest, StringsAreCutAt512Bytes) {
  EXPECT_EQ(JsonString(std::string(512, 'x')).size(), 514u);
  EXPECT_EQ(JsonString(std::string(513, 'x')), "\"" + std::string(512, 'x') + "...\"");
}

TEST(LogTest, NumbersAreJsonNumbers) {
  EXPECT_EQ(LogBody("e", {{"a", 1}, {"b", uint64_t{18446744073709551615u}}, {"c", 0.25}, {"d", "x"}}),
            "\"event\":\"e\",\"a\":1,\"b\":18446744073709551615,\"c\":0.25,\"d\":\"x\"");
  EXPECT_EQ(LogBody("e", {{"n", std::numeric_limits<double>::quiet_NaN()}}), "\"event\":\"e\",\"n\":null");
}

// The lines that `log` logs from level info on. Nobody reads stderr before `log` returns.
std::string Written(const std::function<void()>& log) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const int real = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  close(ends[1]);
  StartLog(LogLevel::kInfo);
  log();
  std::string text;
  std::thread reader([&] {
    char part[1 << 16];
    for (ssize_t got = 0; (got = read(ends[0], part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(got));
  });
  EXPECT_TRUE(StopLog());
  dup2(real, STDERR_FILENO);  // closes the pipe
  close(real);
  reader.join();
  close(ends[0]);
  return text;
}

// The numbers of the lines of `text`.
std::vector<int> Numbers(const std::string& text) {
  std::vector<int> numbers;
  const std::string key = "\"event\":\"e\",\"n\":";
  for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
    numbers.push_back(std::stoi(text.substr(at + key.size())));
  }
  return numbers;
}

TEST(LogTest, LinesAreWrittenInOrderFromTheirLevelOnAndTheLastOnesAtTheEnd) {
  const std::string text = Written([] {
    for (int i = 0; i < 100; ++i) Log(i % 2 == 0 ? LogLevel::kDebug : LogLevel::kError, "e", {{"n", i}});
  });
  std::vector<int> odd;
  for (int i = 1; i < 100; i += 2) odd.push_back(i);
  EXPECT_EQ(Numbers(text), odd);
  EXPECT_EQ(text.substr(0, 11), "{\"time\":\"20");
  EXPECT_NE(text.find("Z\",\"level\":\"error\",\"event\":\"e\",\"n\":1}\n"), std::string::npos);
  Log(LogLevel::kError, "nobody writes any more");
}

TEST(LogTest, OldLinesAreDroppedWhileStderrTakesNone) {
  const std::vector<int> numbers = Numbers(Written([] {
    for (int i = 0; i < 20000; ++i) Log(LogLevel::kInfo, "e", {{"n", i}});
  }));
  ASSERT_LT(numbers.size(), 20000u);
  ASSERT_GE(numbers.size(), 8192u);
  EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
  EXPECT_EQ(numbers.back(), 19999);
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

TEST(LogLimiterTest, LinesHeldBackAreTakenOnceTheirSecondIsOver) {
  LogLimiter limiter(1);
  const auto now = std::chrono::steady_clock::time_point() + std::chrono::hours(1);
  uint64_t suppressed = 0;
  for (int i = 0; i < 3; ++i) limiter.Allow("bad", now, suppressed);
  EXPECT_TRUE(limiter.suppresses());
  EXPECT_TRUE(limiter.TakeSuppressed(now + std::chrono::milliseconds(999)).empty());
  const std::map<std::string, uint64_t> taken = limiter.TakeSuppressed(now + std::chrono::seconds(1));
  EXPECT_EQ(taken, (std::map<std::string, uint64_t>{{"bad", 2}}));
  EXPECT_FALSE(limiter.suppresses());
  EXPECT_TRUE(limiter.Allow("bad", now + std::chrono::seconds(1), suppressed));
  EXPECT_EQ(suppressed, 0u) << "they were told of";
}

}  // namespace
}  // namespace edgewise::server
