// Chat templates against transformers (tests/reference/make_chat_goldens.py), what is refused, and the bounds.
#include "model/chat/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "tests/model/counting_bounds.h"
#include "tests/support/paths.h"

namespace edgewise::chat {
namespace {

using nlohmann::json;

constexpr absl::CivilSecond kNow(2026, 3, 4, 15, 6, 7);  // as in make_chat_goldens.py

json Cases() {
  std::ifstream file(tests::TestdataFolder() + "_chat.json");
  return json::parse(file);
}

Tokens TokensOf(const json& object) {
  Tokens tokens;
  for (const auto& [name, text] : object.items()) tokens[name] = text.get<std::string>();
  return tokens;
}

TEST(ChatTemplateTest, RendersAsTransformersDoes) {
  const json cases = Cases();
  ASSERT_GE(cases.size(), 22u);
  for (const json& one : cases) {
    const auto read = ChatTemplate::Read(one["template"].get<std::string>(), TokensOf(one["tokens"]));
    ASSERT_TRUE(read.ok()) << one["name"] << ": " << read.status();
    for (const json& answer : one["answers"]) {
      std::vector<Message> messages;
      for (const json& message : answer["messages"]) messages.push_back({message[0], message[1]});
      const auto arguments = Arguments::Read(answer.value("arguments", ""));
      ASSERT_TRUE(arguments.ok()) << arguments.status();
      const absl::StatusOr<std::string> prompt = read->Render(messages, kNow, NoBounds(), *arguments);
      if (answer.contains("prompt")) {
        ASSERT_TRUE(prompt.ok()) << one["name"] << ": " << prompt.status();
        EXPECT_EQ(*prompt, answer["prompt"].get<std::string>()) << one["name"];
      } else {
        ASSERT_FALSE(prompt.ok()) << one["name"] << *prompt;
        EXPECT_EQ(prompt.status().message(), answer["refused"].get<std::string>()) << one["name"];
      }
    }
  }
}

std::string Unread(const std::string& source) {
  const auto read = ChatTemplate::Read(source, {});
  EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << source << ": " << read.status();
  return std::string(read.status().message());
}

TEST(ChatTemplateTest, WhatIsNotServedIsRefusedByNameAndLine) {
  EXPECT_EQ(Unread("a\n{% macro f() %}{% endmacro %}"),
            "line 2: the block \"macro\" is not served; served: if, for, set, generation");
  EXPECT_EQ(Unread("{{ x | sort }}"),
            "line 1: the filter sort is not served; served: capitalize, count, default, first, items, join, last, "
            "length, list, lower, reject, rejectattr, replace, select, selectattr, string, tojson, trim, upper");
  EXPECT_NE(Unread("{{ x.title() }}").find("line 1: the method title is not served"), std::string::npos);
  EXPECT_NE(Unread("\n\n{{ dict(a=1) }}").find("line 3: the function dict is not served"), std::string::npos);
  EXPECT_NE(Unread("{{ x is even }}").find("the test even is not served"), std::string::npos);
  EXPECT_EQ(Unread("{{ x | default(value=4) }}"), "line 1: named arguments of default are not served");
  for (const char* arguments : {"4", "indent=17", "indent=-1", "indent=x", "ensure_ascii=true", "sort_keys=true",
                                "separators=(',',)", "separators=(x, ':')", "separators=','"}) {
    EXPECT_EQ(Unread("{{ x | tojson(" + std::string(arguments) + ") }}"),
              "line 1: of tojson's arguments are served: indent=0 to 16, ensure_ascii=false, separators=(text, text)")
        << arguments;
  }
  EXPECT_NE(Unread("{{ x | select('even') }}").find("the test even is not served"), std::string::npos);
  for (const char* use : {"{{ x | select }}", "{% if x | select %}{% endif %}", "{{ x | select | length }}",
                          "{{ (x | select) is defined }}"}) {
    EXPECT_EQ(Unread(use), "line 1: select is served before list, first and join, and in for") << use;
  }
  EXPECT_EQ(Unread("{{ x | select(y) }}"), "line 1: the test of select is served as a text");
  for (const char* use : {"{{ x | selectattr() }}", "{{ x | selectattr | list }}"}) {
    EXPECT_EQ(Unread(use), "line 1: selectattr needs the name of an attribute") << use;
  }
  EXPECT_EQ(Unread("{{ x | reject('eq') }}"), "line 1: the test eq has another number of arguments");
  for (const char* format : {"%", "%-", "%Z", "a %-Y", "%Ã©", "%_d"}) {
    const std::string message = Unread("{{ strftime_now('" + std::string(format) + "') }}");
    EXPECT_EQ(message.find("line 1: strftime_now has %"), 0u) << message;
    EXPECT_EQ(FirstInvalidByte(message), message.size());
  }
  EXPECT_EQ(Unread("{{ strftime_now('" + std::string(257, 'a') + "') }}"),
            "line 1: the format of strftime_now has 257 bytes; served are at most 256");
  EXPECT_EQ(Unread("{{ 'a\xff' }}"), "byte 5 is not UTF-8");
  EXPECT_EQ(Unread(std::string(131073, ' ')), "it has 131073 bytes; served are at most 131072");
  EXPECT_EQ(Unread("{{ x | " + std::string(5000, 'y') + " }}").size(), 1003u);
  EXPECT_EQ(Unread("{% set x %}a{% endset %}"), "line 1: \"=\" is expected before %}");
  EXPECT_EQ(Unread("{{ (1, 2) == [1, 2] }}"), "line 1: a tuple, which equals no list, is served behind in alone");
  EXPECT_EQ(Unread("{% if x %}a"), "line 1: a block has no endif");
  EXPECT_EQ(Unread("{% endif %}"), "line 1: the block \"endif\" is not served; served: if, for, set, generation");
  EXPECT_EQ(Unread("{{ 'a }}"), "line 1: the text has no end");
  EXPECT_EQ(Unread("{{ a"), "line 1: the tag has no }}");
  EXPECT_EQ(Unread("{# a"), "line 1: the comment has no end");
  EXPECT_EQ(Unread("{{ 1.5 }}"), "line 1: numbers are served as whole ones of 64 bits");
  EXPECT_EQ(Unread("{{ {'a': 1} }}"), "line 1: a name is expected before \"{\"");
  EXPECT_EQ(Unread("{{ 1 < 2 < 3 }}"), "line 1: chains of comparisons are not served");
  EXPECT_EQ(Unread("{{ a b }}"), "line 1: }} is expected before \"b\"");
  EXPECT_EQ(Unread("{{ '\\x41' }}"), "line 1: of escapes \\n, \\t, \\r, \\\\, \\' and \\\" are served");
  EXPECT_NE(Unread("{{ " + std::string(500, '(') + "1" + std::string(500, ')') + " }}").find("nested too deeply"),
            std::string::npos);
  EXPECT_NE(Unread("{{ " + std::string(500, '-') + " 1 }}").find("nested too deeply"), std::string::npos);
  std::string sum = "{{ 1", blocks;
  for (int i = 0; i < 2000; ++i) sum += " + 1";
  for (int i = 0; i < 200; ++i) blocks += "{% if x %}";
  EXPECT_NE(Unread(sum + " }}").find("too long"), std::string::npos);
  EXPECT_NE(Unread(blocks).find("nested too deeply"), std::string::npos);
}

absl::Status Failure(const std::string& source) {
  const auto read = ChatTemplate::Read(source, {});
  EXPECT_TRUE(read.ok()) << source << ": " << read.status();
  return read.ok() ? read->Render({{"user", "Hello"}}, kNow).status() : absl::OkStatus();
}

TEST(ChatTemplateTest, WhatHasNoMeaningIsAnError) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ 1 + 'a' }}", "line 1: + is not served of a number and a text"},
      {"\n{{ messages }}", "line 2: a list cannot be printed; tojson can"},
      {"{{ x.y }}", "line 1: an entry of what is undefined"},
      {"{{ 1 // 0 }}", "line 1: division by zero"},
      {"{% for x in none %}{% endfor %}", "line 1: for is not served over none"},
      {"{% set x.y = 1 %}", "line 1: x is no namespace, so its y cannot be set"},
      {"{% set n = namespace(a=1) %}{% set n.b = n %}", "line 1: a namespace cannot be kept in another value"},
      {"{{ [[1]] | length }}", "line 1: lists in lists are not served"},
      {"{{ strftime_now(1) }}", "line 1: strftime_now takes a text"},
      {"{{ strftime_now('%' + 'Z') }}",
       "line 1: strftime_now has %Z; served: %a, %A, %b, %B, %d, %e, %H, %I, %j, %m, %M, %p, %S, %y, %Y, %%, %-d, %-H, "
       "%-I, %-j, %-m, %-M, %-S"},
      {"{{ range }}", "line 1: the function range is served in calls and tests of defined"},
      {"{{ 9223372036854775807 + 1 }}", "line 1: a number is beyond 64 bits"},
      {"{{ 1 | select | list }}", "line 1: select is of lists, not of a number"},
      {"{{ messages | selectattr(1) | list }}", "line 1: selectattr takes the name of an attribute, of letters and _"},
      {"{{ messages | selectattr('a.b') | list }}",
       "line 1: selectattr takes the name of an attribute, of letters and _"},
      {"{{ raise_exception(messages[0].role + '!') }}", "user!"},
  };
  for (const auto& [source, message] : cases) {
    EXPECT_EQ(Failure(source), absl::InvalidArgumentError(message)) << source;
  }
}

TEST(ChatTemplateTest, WorkAndMemoryAreBounded) {
  for (const char* source : {
           "{% for a in range(5000) %}{% for b in range(5000) %}{% endfor %}{% endfor %}",
           "{{ range(999999999999) | length }}",
           "{% set n = namespace(t='0123456789') %}{% for i in range(99) %}{% set n.t = n.t + n.t %}{% endfor %}",
           "{% set n = namespace(l=[1]) %}{% for i in range(99) %}{% set n.l = n.l + n.l %}{% endfor %}",
           "{% set n = namespace(t='0123456789') %}{% for i in range(20) %}{% set n.t = n.t ~ n.t %}{% endfor %}"
           "{% for i in range(99) %}{{ n.t }}{% endfor %}",
           "{% set n = namespace(t='a') %}{% for i in range(99) %}{% set n.t = n.t.replace('a', 'aa') %}{% endfor %}",
           "{% set n = namespace(t='a') %}{% for i in range(99) %}{% set n.t = [n.t, n.t] | tojson %}{% endfor %}",
       }) {
    EXPECT_TRUE(absl::IsInvalidArgument(Failure(source))) << source << ": " << Failure(source);
  }
}

TEST(ChatTemplateTest, EndsWhereItsBoundsSaySoAndReservesWhatItHolds) {
  const auto read = ChatTemplate::Read("{% for m in messages %}{{ m.role + ': ' + m.content + '!' }}{% endfor %}", {});
  ASSERT_TRUE(read.ok());
  const std::vector<Message> messages(4, {"user", std::string(100'000, 'a')});
  tests::CountingBounds whole;
  const auto prompt = read->Render(messages, kNow, whole);
  ASSERT_TRUE(prompt.ok());
  EXPECT_GE(whole.asks, prompt->size() / kWorkPiece / 2);
  EXPECT_GE(whole.reserved_peak, 2 * prompt->size()) << "the messages, and the prompt made of them";
  EXPECT_LE(whole.reserved_peak, 10 * prompt->size());
  EXPECT_EQ(whole.reserved, 0u);
  for (const uint64_t part : {2, 3}) {
    tests::CountingBounds ending, narrow;
    ending.ends_at = whole.asks / part;
    EXPECT_EQ(read->Render(messages, kNow, ending).status(), absl::DeadlineExceededError("late"));
    narrow.most = whole.reserved_peak / part;
    EXPECT_EQ(read->Render(messages, kNow, narrow).status(), absl::ResourceExhaustedError("no more bytes"));
  }
}

// What takes a time that is a product of lengths elsewhere ends here too.
TEST(ChatTemplateTest, LongTextsAreSearchedInLinearTime) {
  const std::string grown =
      "{% set n = namespace(t='a') %}{% for i in range(20) %}{% set n.t = n.t + n.t %}{% endfor %}";
  for (const char* use :
       {"{{ (n.t + 'b') in (n.t + n.t) }}", "{{ n.t.strip(n.t + 'b') }}", "{{ (n.t + n.t).split(n.t + 'b')|length }}",
        "{{ (n.t + n.t).replace(n.t + 'b', '') == '' }}"}) {
    EXPECT_EQ(Failure(grown + use), absl::OkStatus()) << use;
  }
  std::string many;
  for (int i = 0; i < 65; ++i) many += "{% set n.a" + std::to_string(i) + " = 1 %}";
  EXPECT_EQ(Failure(grown + many), absl::InvalidArgumentError("line 1: a namespace has more than 64 attributes"));
}

TEST(ChatTemplateTest, ALongRefusalIsCutBetweenCharacters) {
  const absl::Status status = Failure(
      "{% set n = namespace(t='ä') %}{% for i in range(12) %}{% set n.t = n.t + n.t %}"
      "{% endfor %}{{ raise_exception('x' + n.t) }}");
  std::string expected = "x";
  for (int i = 0; i < 499; ++i) expected += "ä";
  EXPECT_EQ(status, absl::InvalidArgumentError(expected + "..."));
}

}  // namespace
}  // namespace edgewise::chat
