// JSON texts: what each dialect takes, and where a text that is none is wrong.
#include "base/json_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/json_object.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;

std::string Refusal(const absl::StatusOr<json>& parsed) {
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(parsed.status().message());
}

TEST(JsonTextTest, StandardJsonIsReadAsNlohmannReadsIt) {
  for (const char* text : {
           "0",
           "-0",
           "1",
           "-7",
           "12345678901234567890",
           "18446744073709551615",
           "18446744073709551616",
           "-9223372036854775808",
           "-9223372036854775809",
           "0.1",
           "-1.5e-3",
           "1E+2",
           "5e-324",
           "1e-400",
           "1.7976931348623157e308",
           "123456789.123456789123456789",
           "true",
           "false",
           "null",
           "\"\"",
           R"("\"\\\/\b\f\n\r\t\u0041\u00e9\u20AC\ud83d\ude00 é €")",
           "[]",
           "{}",
           " [ 1 , [ ] , { } ]\r\n\t",
           R"({"b": [1, {"a": null}], "a": "x", "": 2})",
           "\xEF\xBB\xBF{\"a\": 1}",
       }) {
    const absl::StatusOr<json> strict = ParseStrictJson(text), python = ParsePythonJson(text);
    ASSERT_TRUE(strict.ok()) << text << ": " << strict.status();
    ASSERT_TRUE(python.ok()) << text << ": " << python.status();
    const json expected = json::parse(text);
    EXPECT_EQ(*strict, expected) << text;
    EXPECT_EQ(*python, expected) << text;
    EXPECT_EQ(strict->type(), expected.type()) << text;  // counts are told from numbers by it
  }
}

// A line and a column for whoever opens the file in an editor, what is there, and what should be.
TEST(JsonTextTest, AMessageSaysWhereAndWhatIsExpected) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "line 1, column 1: the text ends; a value is expected"},
      {"{\n  \"a\": 1,\n  \"b\": True\n}", "line 3, column 8: found \"True\"; a value is expected"},
      {"{\"a\": 1,\n}", "line 2, column 1: found \"}\"; a key in double quotes is expected"},
      {"{'a': 1}", "line 1, column 2: found \"'\"; a key in double quotes is expected"},
      {"{\"é\": \"€\" \"b\": 1}", "line 1, column 11: found a \"; a comma or } is expected"},
      {"{\"a\" 1}", "line 1, column 6: found \"1\"; a colon is expected after the key"},
      {"[1 2]", "line 1, column 4: found \"2\"; a comma or ] is expected"},
      {"[1,", "line 1, column 4: the text ends; a value is expected"},
      {"[01]", "line 1, column 2: found \"01\", which is no number of JSON"},
      {"[1.]", "line 1, column 2: found \"1.\", which is no number of JSON"},
      {"[-x]", "line 1, column 2: found \"-x\", which is no number of JSON"},
      {"[.5]", "line 1, column 2: found \".5\"; a value is expected"},
      {"{} {}", "line 1, column 4: found \"{\"; nothing is expected after the value"},
      {"version https://x", "line 1, column 1: found \"version\"; a value is expected"},
      {"[\"a\nb\"]",
       "line 1, column 4: the line ends; the string of line 1, column 2 has no end before it (a line break in a string "
       "is \\n, a tab \\t)"},
      {"{\"a\": \"b", "line 1, column 7: this string has no end; a closing \" is expected"},
      {"[\"\\x41\"]",
       "line 1, column 3: a backslash; \\\" \\\\ \\/ \\b \\f \\n \\r \\t or \\u with four hexadecimal digits is "
       "expected"},
      {"[\"\\ud83d!\"]", "line 1, column 3: half of a surrogate pair; both halves are expected"},
      {"[\"\\ude00\"]", "line 1, column 3: half of a surrogate pair; both halves are expected"},
      {"[\n\"é\xff\"]", "line 2, column 3: the byte 0xff is not UTF-8; UTF-8 is expected"},
      {std::string("[1\0]", 4), "line 1, column 3: found the byte 0x00; a comma or ] is expected"},
      {std::string("[\"\0\"]", 5),
       "line 1, column 3: found the byte 0x00; the string of line 1, column 2 has no end before it (a line break in a "
       "string is \\n, a tab \\t)"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(Refusal(ParseStrictJson(text)), "not valid JSON: " + message) << text;
    EXPECT_EQ(Refusal(ParsePythonJson(text)), "not valid JSON: " + message) << text;
  }
}

TEST(JsonTextTest, OurOwnFilesHaveStandardNumbersAndEachKeyOnce) {
  for (const char* word : {"NaN", "Infinity", "-Infinity"}) {
    EXPECT_NE(Refusal(ParseStrictJson(std::string("{\"a\": ") + word + "}")).find("line 1, column 7: "),
              std::string::npos);
  }
  EXPECT_EQ(Refusal(ParseStrictJson("[1e400]")),
            "not valid JSON: line 1, column 2: found \"1e400\"; a number below 1.8e308 in size is expected");
  EXPECT_EQ(Refusal(ParseStrictJson("{\"a\": {\"b\": 1,\n \"b\": 2}}")),
            "line 2, column 2: key \"b\" stands twice in one object");
  EXPECT_TRUE(ParseStrictJson(R"([{"b": 1}, {"b": 2}])").ok());
}

// As json.load of Python: of float("inf"), of a key that was edited in twice, and of transformers' spelling of it.
TEST(JsonTextTest, PythonsFilesHaveItsNumbersAndTheLastOfTwoValues) {
  const auto read = [](const char* text) {
    const absl::StatusOr<json> value = ParsePythonJson(text);
    EXPECT_TRUE(value.ok()) << text << ": " << value.status();
    return value.value_or(json());
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const char* text : {"Infinity", "1e400", R"({"__float__": "Infinity"})"}) EXPECT_EQ(read(text), kInfinity);
  for (const char* text : {"-Infinity", "-1e400", R"({"__float__": "-Infinity"})"}) EXPECT_EQ(read(text), -kInfinity);
  for (const char* text : {"NaN", R"({"__float__": "NaN"})"}) EXPECT_TRUE(std::isnan(read(text).get<double>())) << text;
  EXPECT_TRUE(read(R"({"__float__": "x"})").is_object());
  EXPECT_TRUE(read(R"({"__float__": "NaN", "a": 1})").is_object());
  EXPECT_EQ(read(R"({"a": [1, 2], "b": 0, "a": 3})"), json({{"a", 3}, {"b", 0}}));
  EXPECT_EQ(read(R"({"a": {"x": 1}, "a": {"y": 2}})"), json({{"a", {{"y", 2}}}}));
  EXPECT_FALSE(ParsePythonJson("nan").ok());
  EXPECT_FALSE(ParsePythonJson("+Infinity").ok());
}

TEST(JsonTextTest, DepthAndObjectsAreBounded) {
  const auto nested = [](int levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  EXPECT_TRUE(ParsePythonJson(nested(16)).ok());
  EXPECT_EQ(Refusal(ParsePythonJson(nested(17))), "nested deeper than 16 levels");
  EXPECT_EQ(Refusal(ParsePythonJson(std::string(1'000'000, '['))), "nested deeper than 16 levels");
}

// A message shows what the file has, whatever number it is.
TEST(ShowJsonTest, NumbersThatAreNotFiniteAreShownAsPythonWritesThem) {
  EXPECT_EQ(ShowJson(*ParsePythonJson(R"({"b": [NaN, -Infinity, 0.5], "a": Infinity})")),
            R"({"a":Infinity,"b":[NaN,-Infinity,0.5]})");
  EXPECT_EQ(ShowJson(json(std::vector<int>(1000, 7))), "[" +
                                                           std::string("7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,"
                                                                       "7,7,7,7,7,7,7,7,7,") +
                                                           "7...");
  json fields = *ParsePythonJson(R"({"eps": NaN})");
  JsonObject object(fields, "");
  object.Number("eps", 0.0, 1.0, 0.5);
  EXPECT_EQ(object.status().message(), "eps is NaN; allowed: a number from 0 to 1");
}

}  // namespace
}  // namespace edgewise::testing
