// Every reader of JSON that strangers send refuses the same bad texts, each in the way of its own errors.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/json_text.h"
#include "client/cli/request/inputs.h"
#include "edgewise/v1/inference.pb.h"
#include "http/bodies.pb.h"
#include "model/chat/arguments.h"
#include "server/http/json_in.h"
#include "server/oip/infer.h"
#include "server/oip/json.h"

namespace edgewise::server {
namespace {

using Reader = std::function<absl::Status(const std::string& text)>;

// A reader, and a text that it takes.
struct KnownReader {
  const char* name;
  const char* good;
  Reader read;
};

template <typename Body>
Reader BodyReaderOf(JsonDialect dialect) {
  return [dialect](const std::string& text) {
    Body body;
    MemoryHold memory;
    return ReadJson(text, dialect, body, memory);
  };
}

const KnownReader kReaders[] = {
    {"a body", R"({"model":"m","input":"x"})", BodyReaderOf<http::OpenAiEmbeddings>(JsonDialect::kPlain)},
    {"a body by Protobuf's mapping", R"({"model":"m"})", BodyReaderOf<v1::PredictRequest>(JsonDialect::kProtobuf)},
    {"the body of infer", R"({"inputs":[]})",
     [](const std::string& text) {
       MemoryHold memory;
       InferBody body;
       return ReadInferBody(text, "", memory, body);
     }},
    {"the header of a binary body", R"({"inputs":[]})",
     [](const std::string& text) {
       MemoryHold memory;
       InferBody body;
       return ReadInferBody(text, std::to_string(text.size()), memory, body);
     }},
    {"parameters.override", R"({"kind":"ssa"})",
     [](const std::string& text) {
       MemoryHold memory;
       InferCall call;
       inference::InferParameter parameter;
       parameter.set_string_param(text);
       return SetInferParameter("override", parameter, {}, {memory}, call);
     }},
    {"template_arguments", R"({"a":1})", [](const std::string& text) { return chat::Arguments::Read(text).status(); }},
    {"a line of the CLI", R"({"text":"x"})",
     [](const std::string& text) { return cli::ParseInputLine(text).status(); }},
    {"a file of a model", R"({"a":1})", [](const std::string& text) { return ParseStrictJson(text).status(); }},
    {"a file of a Python library", R"({"a":1})",
     [](const std::string& text) { return ParsePythonJson(text).status(); }},
};

// Texts that make a good one bad before it and behind it.
const std::pair<std::string, std::string> kAround[] = {
    {"", std::string(1, '\0')},
    {"", std::string("\0}{][garbage\xff", 13)},
    {"", std::string("\0{}", 3)},
    {"", std::string(" \0 ", 3)},
    {"", std::string("\n\0", 2)},
    {std::string(1, '\0'), ""},
    {"", "{}"},
    {"", " x"},
    {"", ","},
    {"", "]"},
    {"", "\x1a"},
    {"", "\xff"},
    {"", "\xC2\xA0"},
    {"", "\xEF\xBB\xBF"},
    {"[", ""},
    {"//\n", ""},
    {"\xFE\xFF", ""},
};

TEST(JsonReadersTest, EveryReaderRefusesTheSameBadTexts) {
  for (const KnownReader& reader : kReaders) {
    const std::string good = reader.good;
    EXPECT_TRUE(reader.read(good).ok()) << reader.name << ": " << reader.read(good);
    EXPECT_TRUE(reader.read(" " + good + "\t ").ok()) << reader.name;
    std::vector<std::string> bad = {good.substr(0, good.size() - 1), good.substr(1)};
    for (const auto& [before, behind] : kAround) bad.push_back(before + good + behind);
    for (size_t at = 0; at <= good.size(); ++at) {  // in names, strings and between them
      bad.push_back(std::string(good).insert(at, 1, '\0'));
    }
    for (const std::string& text : bad) {
      EXPECT_TRUE(absl::IsInvalidArgument(reader.read(text)))
          << reader.name << " takes "
          << nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    }
  }
}

}  // namespace
}  // namespace edgewise::server
