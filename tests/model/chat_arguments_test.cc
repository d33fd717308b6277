// What a request tells a chat template beside the messages, and the tokens that a template may name.
#include <gtest/gtest.h>

#include "base/field_error.h"
#include "base/utf8.h"
#include "model/chat/chat_template.h"
#include "tests/model/counting_bounds.h"

namespace edgewise::chat {
namespace {

constexpr absl::CivilSecond kToday(2026, 3, 4, 15, 6, 7);
const std::vector<Message> kHello = {{"user", "Hello"}};

absl::StatusOr<std::string> Render(const std::string& source, const std::string& json, const Tokens& tokens = {}) {
  const auto read = ChatTemplate::Read(source, tokens);
  EXPECT_TRUE(read.ok()) << source << ": " << read.status();
  const auto arguments = Arguments::Read(json);
  if (!arguments.ok()) return arguments.status();
  return read->Render(kHello, kToday, NoBounds(), *arguments);
}

// The message of a refusal of the field.
std::string Refused(const std::string& json, const std::string& field = "template_arguments") {
  const absl::Status status = Render("", json, {{"image_token", "<i>"}, {"none_token", std::nullopt}}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << json << ": " << status;
  EXPECT_EQ(FieldOf(status), field) << json;
  return std::string(status.message());
}

TEST(TemplateArgumentsTest, WhatIsNoObjectIsRefused) {
  EXPECT_EQ(Refused("[1]"), "template_arguments is a list; a JSON object is expected");
  EXPECT_EQ(Refused("\"a\""), "template_arguments is a text; a JSON object is expected");
  EXPECT_EQ(Refused(R"({"a": 1, "a": 2})"), "template_arguments has the field \"a\" twice");
  EXPECT_EQ(Refused(R"({"a": {"b": 1, "c": 2, "b": 3}})"), "template_arguments has the field \"b\" twice");
  for (const char* text :
       {"{", "{'a': 1}", R"({"a": NaN})", R"({"a": Infinity})", R"({"a": 1e999})", R"({"a": 1} x)", R"({"a": 01})",
        R"({"a": 1,})", R"({"a": "\ud800"})", "{\"a\": \"\xff\"}", "true false", "[\"\u00b0\"\u00b0",
        R"({"a": "ääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääää" 1})"}) {
    EXPECT_EQ(Refused(text).find("template_arguments is not JSON: "), 0u) << text << Refused(text);
    EXPECT_EQ(FirstInvalidByte(Refused(text)), Refused(text).size()) << text;
  }
  EXPECT_NE(Refused(std::string("{}\0", 3)).find("parse error at byte 3: a NUL"), std::string::npos);
  for (const char* number : {"9223372036854775808", "-9223372036854775809", "123456789012345678901234567890"}) {
    EXPECT_EQ(Refused(std::string(R"({"a": [)") + number + "]}"),
              "template_arguments has a whole number beyond 64 bits");
  }
  for (const char* name : {"", "a-b", "1a", "a b", "\u00e4"}) {
    EXPECT_NE(Refused(std::string("{\"") + name + "\": 1}").find("; names have letters, digits and _"),
              std::string::npos);
  }
  for (const char* list : {"1", "{}", "\"x\"", "[1]", "[{}, []]"}) {
    for (const std::string name : {"tools", "documents"}) {
      EXPECT_NE(Refused("{\"" + name + "\": " + list + "}", "template_arguments." + name)
                    .find("; a list of JSON objects is expected"),
                std::string::npos);
    }
  }
}

TEST(TemplateArgumentsTest, NamesThatATemplateHasAreRefused) {
  for (const std::string name : {"messages", "add_generation_prompt", "bos_token", "mask_token", "image_token",
                                 "none_token", "range", "namespace", "raise_exception", "strftime_now", "dict", "loop",
                                 "true", "None", "chat_template", "continue_final_message"}) {
    const std::string message = Refused("{\"x\": 1, \"" + name + "\": null}", "template_arguments." + name);
    EXPECT_EQ(message.find("template_arguments." + name + " is a name that chat templates have already"), 0u)
        << message;
  }
  EXPECT_EQ(*Render("{{ think_token }}", R"({"documents": [{}], "tools": null})", {{"think_token", "<t>"}}), "<t>");
}

TEST(TemplateArgumentsTest, SizeAndDepthAreBounded) {
  const auto nested = [](size_t lists) {
    return R"({"a": )" + std::string(lists, '[') + std::string(lists, ']') + "}";
  };
  EXPECT_TRUE(Arguments::Read(nested(Arguments::kMaxDepth - 1)).ok());
  EXPECT_EQ(Refused(nested(Arguments::kMaxDepth)), "template_arguments is nested deeper than 32 levels");
  EXPECT_EQ(Refused(std::string(1'000'000, '[')), "template_arguments has 1000000 bytes; allowed are at most 262144");
  const std::string full = R"({"a": ")" + std::string(Arguments::kMaxBytes - 9, 'x') + "\"}";
  EXPECT_EQ(full.size(), Arguments::kMaxBytes);
  EXPECT_TRUE(Arguments::Read(full).ok());
}

// An object of `count` fields.
std::string Fields(size_t count, const std::string& value) {
  std::string json = R"({"m": {)";
  for (size_t i = 0; i < count; ++i) json += (i > 0 ? ", \"k" : "\"k") + std::to_string(i) + "\": " + value;
  return json + "}}";
}

TEST(TemplateArgumentsTest, EndWhereTheirBoundsSaySoAndReserveWhatTheyHold) {
  const std::string json = Fields(10'000, "[1]");
  tests::CountingBounds whole;
  {
    const auto arguments = Arguments::Read(json, whole);
    ASSERT_TRUE(arguments.ok()) << arguments.status();
    EXPECT_GE(whole.reserved, 10'000u * 2 * sizeof(Value));
    EXPECT_GE(whole.asks, 20'000u * 16 / kWorkPiece);
  }
  EXPECT_EQ(whole.reserved, 0u);
  tests::CountingBounds ending, narrow;
  ending.ends_at = whole.asks / 2;
  EXPECT_EQ(Arguments::Read(json, ending).status(), absl::DeadlineExceededError("late"));
  narrow.most = whole.reserved_peak / 2;
  EXPECT_EQ(Arguments::Read(json, narrow).status(), absl::ResourceExhaustedError("no more bytes"));
}

// What looks through all fields in each of its steps takes more of them.
TEST(TemplateArgumentsTest, ManyFieldsAreWorkToLookThrough) {
  const std::string json = Fields(10'000, "1");
  for (const char* use : {"m.k9999", "m['x']", "m.get('x')", "'x' in m", "m == m", "m | tojson"}) {
    const std::string source = std::string("{% for i in range(4000) %}{% if ") + use + " %}{% endif %}{% endfor %}";
    EXPECT_TRUE(Render(source, R"({"m": {"k9999": 1}})").ok());
    const absl::Status status = Render(source, json).status();
    EXPECT_EQ(status, absl::InvalidArgumentError("line 1: the template takes more than 4194304 steps")) << use;
  }
}

TEST(TemplateArgumentsTest, NamesOfPythonsMethodsAreNotTakenForFields) {
  const std::string json = R"({"m": {"items": {"a": 1}, "type": "array"}, "n": {}})";
  EXPECT_EQ(*Render("{{ m['items'].a }}{{ m.type }}{{ n.type is defined }}{{ n['type'] is defined }}", json),
            "1arrayFalseFalse");
  for (const char* use : {"m.items", "n.items", "n['items']", "n.keys", "n['values']", "m.get", "m.pop"}) {
    const absl::Status status = Render("{{ " + std::string(use) + " is defined }}", json).status();
    EXPECT_NE(status.message().find("is a method of mappings, which is served where it is called"), std::string::npos)
        << use << status;
  }
}

TEST(TemplateArgumentsTest, ToolsChooseTheTemplateForTools) {
  const auto served = ChatTemplate::Read("plain", {}, "{{ tools | tojson }}");
  const auto unserved = ChatTemplate::Read("plain", {}, "\n{% macro f() %}");
  ASSERT_TRUE(served.ok() && unserved.ok());
  const auto render = [](const ChatTemplate& read, const std::string& json) {
    return read.Render(kHello, kToday, NoBounds(), *Arguments::Read(json));
  };
  for (const std::string json : {"", R"({"tools": null})", R"({"documents": [{}]})"}) {
    EXPECT_EQ(*render(*served, json), "plain");
    EXPECT_EQ(*render(*unserved, json), "plain");
  }
  EXPECT_EQ(*render(*served, R"({"tools": []})"), "[]");
  EXPECT_EQ(*render(*served, R"({"tools": [{"b": 1, "a": 2}]})"), R"([{"b": 1, "a": 2}])");
  EXPECT_EQ(
      render(*unserved, R"({"tools": []})").status().message(),
      "template_arguments.tools is set; of the model's chat templates the one for tools (tool_use) is not served: "
      "line 2: the block \"macro\" is not served; served: if, for, set, generation");
}

TEST(ChatTokensTest, ATokenThatNoFileGivesIsNeverWrittenAsNothing) {
  for (const char* source :
       {"{{ bos_token }}", "{% if false %}{% for m in messages if m == eos_token %}{% endfor %}{% endif %}",
        "{{ [1, 'a' ~ image_token] | join }}", "{% set x = bos_token | trim %}", "{{ bos_token is none }}",
        "{% set ns = namespace(a=bos_token) %}", "{% set ns = namespace() %}{% set ns.bos_token = bos_token %}"}) {
    const absl::Status status = ChatTemplate::Read(source, {{"unk_token", "<u>"}}).status();
    EXPECT_EQ(status.message().find("line 1: it writes "), 0u) << source << status;
    EXPECT_NE(status.message().find("_token, which no file of the folder gives"), std::string::npos) << status;
  }
}

TEST(ChatTokensTest, TokensThatAreNoneAndQuestionsForThemAreServed) {
  const Tokens none = {{"bos_token", std::nullopt}};
  EXPECT_EQ(*Render("{{ bos_token }}|{{ bos_token is defined }}", "", none), "|False") << "as transformers has null";
  EXPECT_EQ(*Render("{% if bos_token is defined %}{{ bos_token }}{% endif %}x", ""), "x");
  EXPECT_EQ(*Render("{{ eos_token | default('e') }}", ""), "e");
  EXPECT_EQ(*Render("{% set eos_token = 'e' %}{{ eos_token }}", ""), "e");
  EXPECT_EQ(*Render("{% for one_token in ['a', 'b'] %}{{ one_token }}{% endfor %}", ""), "ab");
}

}  // namespace
}  // namespace edgewise::chat
