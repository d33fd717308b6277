// JSON in and out.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>

#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "edgewise/v1/inference.pb.h"
#include "http/bodies.pb.h"
#include "server/http/json_in.h"
#include "server/http/json_message.h"
#include "server/http/json_out.h"

namespace edgewise::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Message>
absl::Status Read(const std::string& text, Message& message, JsonDialect dialect = JsonDialect::kPlain) {
  message.Clear();
  MemoryHold memory;
  return ReadJson(text, dialect, message, memory);
}

absl::Status ReadBody(const std::string& text) {
  http::OpenAiGeneration body;
  return Read(text, body);
}

TEST(JsonOutTest, TextsAreEscapedAndAlwaysUtf8) {
  JsonOut json;
  json.BeginObject().Key("a\"").String(std::string("\n\x01\\\x7f", 4)).Key("b").BeginArray();
  json.String("\xC3\xA9\xF0\x9F\x98\x80").String("\xFFx\xE2\x82").EndArray().EndObject();
  EXPECT_EQ(json.text(),
            "{\"a\\\"\":\"\\n\\u0001\\\\\\u007f\",\"b\":[\"\xC3\xA9\xF0\x9F\x98\x80\","
            "\"\xEF\xBF\xBDx\xEF\xBF\xBD\"]}");
}

TEST(JsonOutTest, NumbersAreReadAsTheSame) {
  for (const float value : {0.1f, 1e-45f, 3.4e38f, -0.0f, 16777216.0f}) {
    JsonOut json;
    json.Number(value);
    EXPECT_EQ(std::strtof(json.text().c_str(), nullptr), value) << json.text();
  }
  JsonOut json;
  json.BeginArray().Number(0.1).Number(std::nan("")).Number(std::numeric_limits<float>::infinity());
  json.Unsigned(18446744073709551615u).Integer(-5).Bool(true).Null().EndArray();
  EXPECT_EQ(json.text(), "[0.1,null,null,18446744073709551615,-5,true,null]");
}

// Says no from the second time on.
struct OnePiece final : WorkBounds {
  absl::Status Continue() override { return ++asked > 1 ? absl::CancelledError("gone") : absl::OkStatus(); }
  int asked = 0;
};

TEST(JsonOutTest, ALongTextEndsWhenItsBoundsSayNo) {
  OnePiece bounds;
  JsonOut json(bounds);
  json.BeginArray();
  for (int i = 0; i < 100000; ++i) json.Key("k").Number(0.5).String("text").BeginObject().EndObject();
  json.EndArray();
  EXPECT_TRUE(absl::IsCancelled(json.status())) << json.status();
  EXPECT_EQ(json.text(), "");
  EXPECT_EQ(bounds.asked, 2) << "nothing is written after that";
}

// Sets every field of a message, with two elements of each that is repeated. `depth` ends messages within themselves.
void SetAll(google::protobuf::Message& message, int depth) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& set = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    for (int element = 0; element < (field->is_repeated() ? 2 : 1); ++element) {
      const auto put = [&](auto one, auto added, auto value) {
        field->is_repeated() ? (set.*added)(&message, field, value) : (set.*one)(&message, field, value);
      };
      using Reflection = google::protobuf::Reflection;
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_BOOL:
          put(&Reflection::SetBool, &Reflection::AddBool, true);
          break;
        case FieldDescriptor::CPPTYPE_INT32:
          put(&Reflection::SetInt32, &Reflection::AddInt32, -i - 1);
          break;
        case FieldDescriptor::CPPTYPE_UINT32:
          put(&Reflection::SetUInt32, &Reflection::AddUInt32, 4000000000u + static_cast<uint32_t>(i));
          break;
        case FieldDescriptor::CPPTYPE_INT64:
          put(&Reflection::SetInt64, &Reflection::AddInt64, int64_t{-1} << 60);
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          put(&Reflection::SetUInt64, &Reflection::AddUInt64, ~uint64_t{0} - static_cast<uint64_t>(i));
          break;
        case FieldDescriptor::CPPTYPE_ENUM:
          put(&Reflection::SetEnumValue, &Reflection::AddEnumValue, 1);
          break;
        case FieldDescriptor::CPPTYPE_FLOAT:
          put(&Reflection::SetFloat, &Reflection::AddFloat,
              element == 0 ? 0.1f : std::numeric_limits<float>::infinity());
          break;
        case FieldDescriptor::CPPTYPE_DOUBLE:
          put(&Reflection::SetDouble, &Reflection::AddDouble,
              i % 2 == 0 ? 0.1 : -std::numeric_limits<double>::infinity());
          break;
        case FieldDescriptor::CPPTYPE_STRING:
          put(&Reflection::SetString, &Reflection::AddString, std::string("\"a\n\xC3\xA9"));
          break;
        case FieldDescriptor::CPPTYPE_MESSAGE:
          if (depth > 0) {
            SetAll(field->is_repeated() ? *set.AddMessage(&message, field) : *set.MutableMessage(&message, field),
                   depth - 1);
          }
          break;
      }
    }
  }
}

TEST(JsonMessageTest, IsReadByProtobufAsTheSameMessage) {
  const auto expect_same = [](auto message, int depth) {
    SetAll(message, depth);
    JsonOut json;
    WriteMessage(message, JsonDialect::kProtobuf, json);
    decltype(message) read;
    const auto status = google::protobuf::util::JsonStringToMessage(json.text(), &read);
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(read, message)) << json.text();
    std::string theirs;  // has the same members in the same order; numbers may be longer
    ASSERT_TRUE(google::protobuf::util::MessageToJsonString(message, &theirs).ok());
    const auto names = [](const std::string& text) {
      std::vector<std::string> found;
      const nlohmann::json::parser_callback_t add = [&](int, nlohmann::json::parse_event_t event,
                                                        nlohmann::json& value) {
        if (event == nlohmann::json::parse_event_t::key) found.push_back(value.get<std::string>());
        return true;
      };
      EXPECT_TRUE(nlohmann::json::parse(text, add).is_object());
      return found;
    };
    EXPECT_EQ(names(json.text()), names(theirs));
  };
  for (const int depth : {0, 1, 5}) {
    expect_same(v1::PredictResponse(), depth);
    expect_same(v1::GenerateResponse(), depth);
    expect_same(v1::ListModelsResponse(), depth);
  }
  JsonOut empty;
  WriteMessage(v1::PredictResponse(), JsonDialect::kProtobuf, empty);
  EXPECT_EQ(empty.text(), "{}");
}

TEST(JsonInTest, AContentIsATextOrTokensOrListsOfThem) {
  http::OpenAiGeneration body;
  ASSERT_TRUE(Read(R"({"prompt":"one"})", body).ok());
  EXPECT_FALSE(body.prompt().list());
  EXPECT_THAT(body.prompt().texts(), ElementsAre("one"));
  ASSERT_TRUE(Read(R"({"prompt":["a","b"]})", body).ok());
  EXPECT_THAT(body.prompt().texts(), ElementsAre("a", "b"));
  ASSERT_TRUE(Read(R"({"prompt":[1,2]})", body).ok());
  ASSERT_EQ(body.prompt().ids_size(), 1);
  EXPECT_THAT(body.prompt().ids(0).values(), ElementsAre(1, 2));
  ASSERT_TRUE(Read(R"({"prompt":[[1,2],[3]]})", body).ok());
  ASSERT_EQ(body.prompt().ids_size(), 2);
  EXPECT_THAT(body.prompt().ids(1).values(), ElementsAre(3));
  ASSERT_TRUE(Read(R"({"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]})", body).ok());
  EXPECT_EQ(body.messages(0).content().parts(0).text(), "x");
}

TEST(JsonInTest, AnotherValueNamesItsField) {
  for (const auto& [text, field, what] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {R"({"prompt":["a",1]})", "prompt[1]", "is of another kind than those before it"},
           {R"({"prompt":[1,"a"]})", "prompt[1]", "is of another kind than those before it"},
           {R"({"prompt":[[1],2]})", "prompt[1]", "is of another kind than those before it"},
           {R"({"prompt":[1,[2]]})", "prompt[1]", "is of another kind than those before it"},
           {R"({"prompt":[[1,"x"]]})", "prompt[0][1]", "is a string; expected an integer of 32 bits"},
           {R"({"prompt":[1.5]})", "prompt[0]", "is 1.5; expected an integer of 32 bits"},
           {R"({"prompt":[2147483648]})", "prompt[0]", "is 2147483648; expected an integer of 32 bits"},
           {R"({"prompt":7})", "prompt", "is 7; expected a string or a list"},
           {R"({"prompt":{}})", "prompt", "is an object; expected a string or a list"},
           {R"({"max_tokens":"abcd"})", "max_tokens", "is \"abcd\"; expected an integer from 1 to 4096"},
           {R"({"max_tokens":-1})", "max_tokens", "is -1; expected an integer from 1 to 4096"},
           {R"({"max_tokens":5000000000})", "max_tokens", "is 5000000000; expected an integer from 1 to 4096"},
           {R"({"edgewise":{"seed":18446744073709551616}})", "edgewise.seed",
            "is 18446744073709551616; expected an integer from 0 to 18446744073709551615"},
           {R"({"max_tokens":[5]})", "max_tokens", "is a list; expected an integer from 1 to 4096"},
           {R"({"temperature":true})", "temperature", "is true; expected a number of 0 or more"},
           {R"({"stream":1})", "stream", "is 1; expected true or false"},
           {R"({"model":null,"model":"a"})", "model", "is given twice"},
           {R"({"messages":{}})", "messages", "is an object; expected a list"},
           {R"({"messages":"my words"})", "messages", "is a string; expected a list"},
           {R"({"messages":["my words"]})", "messages[0]", "is a string; expected an object"},
           {R"({"messages":[[]]})", "messages[0]", "is a list; expected an object"},
           {R"({"messages":[{"content":{"type":"text"}}]})", "messages[0].content",
            "is an object; expected a string or a list"},
           {R"({"prompt":[[1,{}]]})", "prompt[0][1]", "is an object; expected a token id, an integer of 32 bits"},
           {R"({"edgewise":"my words"})", "edgewise", "is a string; expected an object"},
           {R"({"edgewise":[]})", "edgewise", "is a list; expected an object"},
           {R"({"model":{}})", "model", "is an object; expected a string"},
           {R"({"edgewise":{"truncate":"MIDDLE"}})", "edgewise.truncate",
            "is \"MIDDLE\"; expected REFUSE, HEAD, TAIL, or the number of one of these"},
           {R"({"messages":[{"role":"user","content":"x","colour":1}]})", "messages[0].colour",
            "is no field that is taken here"},
           {R"({"messages":[null]})", "messages[0]", "is null; it must be left out"},
           {R"({"edgewise":{"max_density":"x"}})", "edgewise.max_density",
            "is \"x\"; expected a number above 0, up to 1"},
           {R"({"maxTokens":5})", "maxTokens", "is no field that is taken here"},
           {R"({"top_k":5})", "top_k", "is no field that is taken here; it is in edgewise"},
           {R"({"metadata":{"a":1,"a":2}})", "metadata", "has the field \"a\" twice"},
       }) {
    const absl::Status status = ReadBody(text);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_EQ(FieldOf(status), field) << text;
    EXPECT_EQ(status.message(), absl::StrCat(field, " ", what)) << text;
  }
  for (const char* text : {"", "[]", "null", "5", "\"x\"", "{", "{}{}", "{\"model\":\"\xFF\"}", "{\"model\":'a'}",
                           "{\"n\":1e999}", "{\"n\":01}", "{model:1}", "{\"model\":\"\\ud800\"}", "{} x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReadBody(text))) << text;
  }
}

TEST(JsonInTest, NullLeavesAFieldOut) {
  http::OpenAiGeneration body;
  ASSERT_TRUE(Read(R"({"n":null,"prompt":null,"messages":null,"edgewise":null,"stream":null,"user":null})", body).ok());
  EXPECT_EQ(body.ByteSizeLong(), 0u);
  ASSERT_TRUE(Read(R"({"colour":null,"n":2,"messages":[{"shape":null,"role":"user"}]})", body).ok());
  EXPECT_EQ(body.n(), 2u);
  EXPECT_EQ(body.messages(0).role(), "user");
  for (const char* value : {"1", "true", "\"x\"", "[]", "[null]", "{}", "{\"a\":null}"}) {
    const absl::Status status = ReadBody(absl::StrCat("{\"colour\":", value, "}"));
    EXPECT_EQ(FieldOf(status), "colour") << value;
  }
  v1::PredictRequest strict;
  EXPECT_EQ(FieldOf(Read(R"({"colour":null})", strict, JsonDialect::kProtobuf)), "colour");
}

TEST(JsonInTest, AnOptionOfTheServersOwnIsFoundWhereItIsServed) {
  const auto hinted = [](const absl::Status& status) { return absl::EndsWith(status.message(), "it is in edgewise"); };
  http::CohereRerank rerank;
  http::OpenAiEmbeddings embeddings;
  EXPECT_TRUE(hinted(ReadBody(R"({"top_k":1})")));
  EXPECT_TRUE(hinted(Read(R"({"truncate":true})", embeddings)));
  EXPECT_TRUE(hinted(Read(R"({"max_density":0.1})", rerank)));
  EXPECT_FALSE(hinted(Read(R"({"top_k":1})", rerank)));
  EXPECT_FALSE(hinted(Read(R"({"truncate":true})", rerank)));
  EXPECT_FALSE(hinted(Read(R"({"min_p":0.1})", embeddings)));
}

TEST(JsonInTest, AnyJsonIsKeptAsItsShortestText) {
  http::OpenAiGeneration body;
  ASSERT_TRUE(Read("{ \"tools\" : [ {\"a\" : [1, 2.50, -3, \"x\\u00e9\", true, null, {} ] } ], \"user\": \"me\","
                   "\"metadata\": {\"k\": {}} }",
                   body)
                  .ok());
  EXPECT_EQ(body.tools().text(), "[{\"a\":[1,2.50,-3,\"x\xC3\xA9\",true,null,{}]}]");
  EXPECT_EQ(body.user().text(), "\"me\"");
  EXPECT_EQ(body.metadata().text(), "{\"k\":{}}");
}

TEST(JsonInTest, SixtyFourLevelsAreTakenAndNoMore) {
  const auto nested = [](int levels) {
    return "{\"metadata\":" + std::string(static_cast<size_t>(levels), '[') +
           std::string(static_cast<size_t>(levels), ']') + "}";
  };
  EXPECT_TRUE(ReadBody(nested(63)).ok());
  EXPECT_THAT(ReadBody(nested(64)).message(), HasSubstr("nests deeper than 64 levels"));
  EXPECT_THAT(ReadBody(nested(100000)).message(), HasSubstr("nests deeper than 64 levels"));
}

TEST(JsonInTest, WhatIsMadeOfATextIsCountedBeforeItIsMade) {
  // Two bytes a text.
  std::string text = "{\"prompt\":[\"\"";
  for (int i = 0; i < 100000; ++i) text += ",\"\"";
  text += "]}";
  MemoryLedger ledger(uint64_t{64} << 20);
  http::OpenAiGeneration body;
  {
    MemoryHold memory(ledger);
    ASSERT_TRUE(ReadJson(text, JsonDialect::kPlain, body, memory).ok());
    EXPECT_GE(memory.bytes(), body.SpaceUsedLong());
  }
  MemoryLedger small(uint64_t{8} << 20);
  MemoryHold memory(small);
  body.Clear();
  EXPECT_TRUE(absl::IsResourceExhausted(ReadJson(text, JsonDialect::kPlain, body, memory)));
  EXPECT_LE(memory.bytes(), small.limit());
  EXPECT_LT(body.SpaceUsedLong(), small.limit());
  // As many parts as no message may have.
  text.resize(text.size() - 2);
  for (int i = 0; i < 40000; ++i) text += ",\"\"";
  MemoryHold unbounded;
  body.Clear();
  EXPECT_THAT(std::string(ReadJson(text + "]}", JsonDialect::kPlain, body, unbounded).message()), HasSubstr("131072"));
}

TEST(JsonInTest, ProtobufsMappingIsReadAsProtobufReadsIt) {
  for (const char* text : {
           R"({"model":"m","version":"7","inputs":[{"sequence":{"tokenIds":{"values":[1,2]}}}]})",
           R"({"model":"m","version":7,"inputs":[{"sequence":{"token_ids":{"values":["1",2.0]}}}]})",
           R"({"inputs":[{"sequence":{"image":"/+8="},"second":{"features":{"rows":1,"values":[0.5,"NaN",1e3]}}}]})",
           R"({"inputs":[{"sequence":{"image":"_-8"}}],"attention":"DENSE","budget":{"maxDensity":0.5,"keep":2}})",
           R"({"ensemble":{"seed":"18446744073709551615","samples":3,"tolerance":"Infinity"}})",
           R"({"override":{"kind":"ssa","sigma":[0.25,1],"threshold":0},"requestId":"x","profile":null})",
           R"({})",
       }) {
    v1::PredictRequest ours, theirs;
    const absl::Status status = Read(text, ours, JsonDialect::kProtobuf);
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text, &theirs).ok()) << text;
    EXPECT_TRUE(status.ok()) << text << status;
    EXPECT_EQ(ours.SerializeAsString(), theirs.SerializeAsString()) << text;
  }
  v1::PredictRequest request;
  EXPECT_EQ(Read(R"({"budget":{"maxEdges":1,"maxDensity":0.5}})", request, JsonDialect::kProtobuf).message(),
            "budget.max_density is given beside another of cap; choose one of them");
  EXPECT_EQ(Read(R"({"requestId":"a","request_id":"b"})", request, JsonDialect::kProtobuf).message(),
            "request_id is given twice");
}

}  // namespace
}  // namespace edgewise::server
