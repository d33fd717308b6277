// A word that is sent wherever a client may write one is found nowhere in the log, whatever models quote it in errors.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "oip/v2/open_inference.pb.h"
#include "server/observe/library_log.h"
#include "tests/server/http_fixture.h"
#include "tests/server/written_log.h"

namespace edgewise::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::json;

// Parts of it are searched for without regard to case; the letter is for errors that name a character.
constexpr char kAscii[] = "xyzzy", kWord[] = "xyzzy\u0416", kLetter[] = "\\u0416";
// Some have tokenizers that quote words or characters, one a chat template that quotes messages.
constexpr const char* kModels[] = {"words", "chars", "chat", "encoder", "ranker", "classes", "sbm", "lm"};
// Ids of requests are in the log.
constexpr const char* kLogged[] = {"request_id", "id"};

class WordsInLogTest : public ::testing::Test {
 protected:
  WordsInLogTest() {
    RouteLibraryLogs();
    namespace fs = std::filesystem;
    const std::string data = tests::TestdataFolder(), chat = folder_.path() + "/chat/1";
    fs::create_directories(chat);
    fs::copy(data + "_hugging_face/gpt2_untied/1", chat);
    fs::permissions(chat + "/chat_template.jinja", fs::perms::owner_all);
    folder_.Write("chat/1/chat_template.jinja",
                  "{{ raise_exception('no: ' + messages[0]['role'] + ' ' + messages[0]['content'] + ' ' + "
                  "(xyzzy | default(''))) }}");
    ServerOptions options = HttpOptions("");
    options.models = {{"words", tests::ExamplesFolder() + "/listops/1"},
                      {"chars", tests::ExamplesFolder() + "/shakespeare-ssa/1"},
                      {"chat", chat},
                      {"encoder", data + "_sentence/mean/1"},
                      {"ranker", data + "_sentence/cross_encoder/1"},
                      {"classes", data + "_hugging_face/bert_sequence/1"},
                      {"sbm", data + "/sbm/1"},
                      {"lm", data + "/lm-ssa-local/1"}};
    options.limits.allow_graphs = true;
    options.limits.max_new_tokens = 2;
    options.reflection = true;
    options.clock = clock_.read();
    test_ = std::make_unique<TestServer>(options);
  }

  int http_port() const { return test_->server().http_port(); }
  // Seconds go by, so that no line is held back.
  void Call(const std::string& path, const std::string& bytes) {
    clock_.Advance(seconds(2));
    test_->Call(path, bytes);
  }

  // Looks for the word in the log, which has at least that number of refusals.
  void Check(size_t refusals) {
    test_.reset();
    const std::string& text = log_.Stop();
    EXPECT_GE(log_.Lines({"refused"}).size(), refusals);
    const std::string lower = absl::AsciiStrToLower(text);
    for (const char* part : {kAscii, kLetter}) {
      const size_t at = lower.find(part);
      if (at == std::string::npos) continue;
      const size_t line = lower.rfind('\n', at) + 1;
      ADD_FAILURE() << part << " in " << text.substr(line, text.find('\n', line) - line);
    }
  }

  TestFolder folder_;
  TestClock clock_;
  WrittenLog log_;
  std::unique_ptr<TestServer> test_;
};

using Path = std::vector<const FieldDescriptor*>;

// The paths to fields of text in a message.
void AddPaths(const Descriptor& message, Path& path, std::vector<Path>& paths) {
  if (path.size() > 6) return;
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor* field = message.field(i);
    path.push_back(field);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) paths.push_back(path);
    if (field->message_type() != nullptr && std::count(path.begin(), path.end(), field) == 1) {
      AddPaths(*field->message_type(), path, paths);
    }
    path.pop_back();
  }
}

void SetWord(Message& root, const Path& path) {
  Message* message = &root;
  for (const FieldDescriptor* field : path) {
    const Reflection& reflection = *message->GetReflection();
    if (field->message_type() == nullptr) {
      field->is_repeated() ? reflection.AddString(message, field, kWord) : reflection.SetString(message, field, kWord);
    } else if (!field->is_repeated()) {
      message = reflection.MutableMessage(message, field);
    } else if (reflection.FieldSize(*message, field) > 0) {
      message = reflection.MutableRepeatedMessage(message, field, 0);
    } else {
      message = reflection.AddMessage(message, field);
    }
  }
}

// The message with the name of the model, and a text where it takes one.
void FillUsual(const std::string& model, Message& message) {
  const Descriptor& type = *message.GetDescriptor();
  for (const char* name : {"model", "model_name", "name"}) {
    const FieldDescriptor* field = type.FindFieldByName(name);
    if (field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      message.GetReflection()->SetString(&message, field, model);
    }
  }
  if (auto* predict = dynamic_cast<v1::PredictRequest*>(&message)) {
    predict->add_inputs()->mutable_sequence()->set_text("1");
  } else if (auto* generate = dynamic_cast<v1::GenerateRequest*>(&message)) {
    generate->mutable_prompt()->set_text("a");
    generate->set_max_new_tokens(1);
  } else if (auto* infer = dynamic_cast<inference::ModelInferRequest*>(&message)) {
    auto* input = infer->add_inputs();
    input->set_name("text");
    input->set_datatype("BYTES");
    input->add_shape(1);
    input->mutable_contents()->add_bytes_contents("1");
  }
}

TEST_F(WordsInLogTest, NothingOfGrpcIsLogged) {
  size_t calls = 0;
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  for (const char* name : {"edgewise.v1.InferenceService", "inference.GRPCInferenceService", "grpc.health.v1.Health",
                           "grpc.reflection.v1.ServerReflection"}) {
    const auto* service = pool->FindServiceByName(name);
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i) {
      const auto& method = *service->method(i);
      if (method.name() == "Watch") continue;  // it waits
      const std::string path = absl::StrCat("/", name, "/", method.name());
      std::vector<Path> paths;
      Path none;
      AddPaths(*method.input_type(), none, paths);
      std::unique_ptr<Message> usual(
          google::protobuf::MessageFactory::generated_factory()->GetPrototype(method.input_type())->New());
      Call(path, kWord);
      for (const char* model : kModels) {
        usual->Clear();
        FillUsual(model, *usual);
        for (const Path& field : paths) {
          const bool logged = std::count(std::begin(kLogged), std::end(kLogged), field[0]->name()) > 0;
          if (logged && field.size() == 1) continue;
          std::unique_ptr<Message> message(usual->New());
          message->CopyFrom(*usual);
          SetWord(*message, field);
          Call(path, message->SerializeAsString());
          ++calls;
        }
      }
    }
  }
  EXPECT_GT(calls, 500u);
  // Chats, whose words a template quotes, and values of parameters that are known.
  for (const char* part : {"role", "content", "template_arguments"}) {
    v1::GenerateRequest chat;
    chat.set_model("chat");
    chat.set_max_new_tokens(1);
    v1::ChatMessage& message = *chat.add_messages();
    message.set_role(part == std::string("role") ? kWord : "user");
    message.set_content(part == std::string("content") ? kWord : "a");
    if (part == std::string("template_arguments")) chat.set_template_arguments(R"({"xyzzy":"xyzzy"})");
    Call("/edgewise.v1.InferenceService/Generate", chat.SerializeAsString());
  }
  for (const char* key : {"profile", "override", "attention", "truncate", "prompt_name", "samples", "sequence_xyzzy"}) {
    inference::ModelInferRequest infer;
    FillUsual("encoder", infer);
    (*infer.mutable_parameters())[key].set_string_param(kWord);
    Call("/inference.GRPCInferenceService/ModelInfer", infer.SerializeAsString());
  }
  // Paths and metadata.
  for (const char* path :
       {"/xyzzy/xyzzy", "/edgewise.v1.InferenceService/xyzzy", "/inference.GRPCInferenceService/xyzzy"}) {
    Call(path, kWord);
  }
  for (const char* key : {"xyzzy", "authorization", "x-request-id", "grpc-encoding", "grpc-accept-encoding", "te"}) {
    grpc::ClientContext context;
    context.AddMetadata(key, kAscii);
    v1::PredictResponse response;
    clock_.Advance(seconds(2));
    test_->stub().Predict(&context, SmallRequest("xyzzy"), &response);
  }
  // A stream, whose ids may be in use.
  grpc::ClientContext context;
  const auto stream = test_->stub().PredictStream(&context);
  v1::PredictRequest wrong;
  FillUsual("words", wrong);
  wrong.mutable_inputs(0)->mutable_sequence()->set_text(kWord);
  for (int i = 0; i < 3; ++i) stream->Write(wrong);
  stream->WritesDone();
  v1::PredictStreamResponse response;
  while (stream->Read(&response)) {
  }
  stream->Finish();
  Check(400);
}

// A field of HTTP/2 that is a literal.
std::string Literal(const std::string& name, const std::string& value) {
  std::string text(1, '\0');
  for (const std::string& part : {name, value}) text += static_cast<char>(part.size()) + part;
  return text;
}
std::string Frame(char type, char flags, char stream, const std::string& bytes) {
  return std::string{'\0', '\0', static_cast<char>(bytes.size()), type, flags, '\0', '\0', '\0', stream} + bytes;
}

// gRPC's own library reads these, and its messages quote what it cannot read.
TEST_F(WordsInLogTest, NothingOfAHeadThatGrpcCannotReadIsLogged) {
  for (const char* key :
       {"grpc-timeout", "grpc-encoding", "te", "content-type", "grpc-previous-rpc-attempts", "x-bin"}) {
    HttpClient client(test_->server().port());
    const std::string fields =
        absl::StrCat(Literal(":method", "POST"), Literal(":scheme", "http"), Literal(":authority", kAscii),
                     Literal(":path", "/edgewise.v1.InferenceService/ListModels"), Literal(key, kAscii));
    client.Send(absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Frame(4, 0, 0, ""), Frame(1, 4, 1, fields),
                             Frame(0, 1, 1, std::string(5, '\0')), Frame('x', 0, 1, kAscii)));
    shutdown(client.fd(), SHUT_WR);
    char bytes[4096];
    while (recv(client.fd(), bytes, sizeof bytes, 0) > 0) {
    }
  }
  for (int i = 0; i < 10; ++i) Call("/no/Method", "");
  Check(10);
}

// The word as a value of this schema, and in what it may hold.
void AddValues(const json& schemas, const json& schema, int depth, std::vector<json>& values) {
  if (depth == 0) values.push_back(kWord);
  if (depth > 4) return;
  if (schema.contains("$ref")) {
    const std::string name = schema["$ref"];
    return AddValues(schemas, schemas[name.substr(name.rfind('/') + 1)], depth, values);
  }
  for (const char* choice : {"anyOf", "oneOf", "allOf"}) {
    const json choices = schema.value(choice, json::array());
    for (const json& one : choices) AddValues(schemas, one, depth + 1, values);
  }
  const auto inside = [&](const json& part) {
    std::vector<json> found = {kWord};
    AddValues(schemas, part, depth + 1, found);
    return found;
  };
  if (schema.contains("items")) {
    for (const json& value : inside(schema["items"])) values.push_back(json::array({value}));
  }
  const json properties = schema.value("properties", json::object());
  for (const auto& [name, part] : properties.items()) {
    for (const json& value : inside(part)) values.push_back({{name, value}});
  }
  values.push_back({{kWord, 1}});
}

TEST_F(WordsInLogTest, NothingOfHttpIsLogged) {
  auto client = std::make_unique<HttpClient>(http_port());
  const json document = json::parse(client->Ask("GET", "/openapi.json").body);
  const json& schemas = document["components"]["schemas"];
  const json usual = {{"max_tokens", 1}, {"prompt", "a"},      {"messages", {{{"role", "user"}, {"content", "a"}}}},
                      {"input", "a"},    {"inputs", "a"},      {"texts", {"a"}},
                      {"query", "a"},    {"documents", {"a"}}, {"ids", {1}}};
  const std::set<std::string> of_texts = {"prompt", "messages",  "input",    "inputs",      "texts",
                                          "query",  "documents", "edgewise", "prompt_name", "chat_template_kwargs"};
  size_t calls = 0;
  const auto send = [&](const std::string& request) {
    clock_.Advance(seconds(2));
    client->Send(request);
    const HttpReply reply = client->Read();
    if (reply.code == 0 || reply.field("Connection") == "close") client = std::make_unique<HttpClient>(http_port());
    ++calls;
  };
  const auto post = [&](const std::string& path, const std::string& body) { send(HttpClient::Posted(path, body)); };
  const auto get = [&](const std::string& path, const char* fields = "") {
    send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n", fields, "\r\n"));
  };
  for (const auto& [route, methods] : document["paths"].items()) {
    const bool open = route.find('{') != std::string::npos;
    for (const char* argument :
         open ? std::vector<const char*>{"words", "encoder", kAscii} : std::vector<const char*>{kAscii}) {
      std::string path = route;
      for (size_t at; (at = path.find('{')) != std::string::npos;) path.replace(at, path.find('}') - at + 1, argument);
      if (methods.contains("get")) {
        get(path);
        get(path + "?xyzzy=xyzzy", "If-None-Match: xyzzy\r\nAccept-Encoding: xyzzy\r\nCookie: xyzzy\r\n");
        get(path + "/xyzzy");
      }
      if (!methods.contains("post")) continue;
      const json& schema = methods["post"]["requestBody"]["content"]["application/json"]["schema"];
      post(path, kWord);
      post(path, absl::StrCat("{\"", kWord, "\":"));
      post(path, absl::StrCat("{\"", kWord, "\":\"", kWord, "\"}"));
      std::vector<json> bodies;
      AddValues(schemas, schema, 0, bodies);
      const std::string name = schema.contains("$ref") ? schema["$ref"].get<std::string>() : "";
      const json properties =
          name.empty() ? json::object() : schemas[name.substr(name.rfind('/') + 1)].value("properties", json::object());
      json base = json::object();
      for (const auto& [key, value] : usual.items()) {
        if (properties.contains(key) && !(key == "prompt" && route.find("chat") != std::string::npos) &&
            !(key == "messages" && route.find("chat") == std::string::npos)) {
          base[key] = value;
        }
      }
      for (const json& part : bodies) {
        if (!part.is_object()) continue;
        const std::string key = part.begin().key();
        for (const char* model : kModels) {
          json body = base;
          if (properties.contains("model")) body["model"] = model;
          body.update(part);
          post(path, body.dump());
          if (!of_texts.contains(key)) break;
        }
      }
    }
  }
  for (const char* part : {R"("chat_template_kwargs":{"xyzzy":"xyzzy"})", R"("tools":[{"xyzzy":"xyzzy"}])",
                           R"("stop":["xyzzy"],"max_tokens":0)", R"("edgewise":{"profile":"xyzzy"})",
                           R"("edgewise":{"xyzzy":1})", R"("xyzzy":1)"}) {
    for (const char* role : {"user", kAscii}) {
      post("/v1/chat/completions",
           absl::StrCat(R"({"model":"chat","messages":[{"role":")", role, R"(","content":"xyzzy"}],)", part, "}"));
    }
  }
  for (const char* name : {"xyzzy", "text"}) {
    for (const char* type : {"xyzzy", "BYTES"}) {
      for (const char* parameter : {"xyzzy", "profile", "prompt_name", "truncate", "override", "sequence_xyzzy"}) {
        const json input = {{"name", name}, {"datatype", type}, {"shape", {1}}, {"data", {kWord}}};
        const json output = {{"name", kWord}};
        post("/v2/models/words/infer",
             json({{"inputs", json::array({input})}, {"parameters", {{parameter, kWord}}}}).dump());
        post("/v2/models/words/infer",
             json({{"inputs", json::array({input})}, {"outputs", json::array({output})}}).dump());
      }
    }
  }
  EXPECT_GT(calls, 1000u);
  // Heads.
  for (const char* head :
       {"GET /xyzzy HTTP/1.1\r\nHost: localhost\r\n", "xyzzy / HTTP/1.1\r\nHost: localhost\r\n",
        "GET xyzzy HTTP/1.1\r\nHost: localhost\r\n", "GET / xyzzy\r\n", "xyzzy\r\n",
        "GET / HTTP/1.1\r\nHost: xyzzy\r\n", "GET /models/xyzzy/info HTTP/1.1\r\nHost: localhost\r\n"}) {
    clock_.Advance(seconds(2));
    HttpClient other(http_port());
    other.Send(absl::StrCat(head, "\r\n"));
    other.Read();
  }
  for (const char* field : {"Host", "Origin", "Authorization", "Content-Type", "X-Request-Timeout-Ms", "Content-Length",
                            "Inference-Header-Content-Length", "Expect", "Transfer-Encoding", "Content-Encoding",
                            "Accept-Encoding", "xyzzy", "Connection", "Upgrade", "Access-Control-Request-Headers"}) {
    for (const char* route :
         {"POST /v1/embeddings", "POST /v2/models/words/infer", "OPTIONS /v1/embeddings", "GET /"}) {
      clock_.Advance(seconds(2));
      HttpClient other(http_port());
      const char* host = field == std::string("Host") ? "" : "Host: localhost\r\n";
      other.Send(absl::StrCat(route, " HTTP/1.1\r\n", host, field, ": xyzzy\r\n\r\n"));
      shutdown(other.fd(), SHUT_WR);
      char bytes[4096];
      while (recv(other.fd(), bytes, sizeof bytes, 0) > 0) {
      }
    }
  }
  Check(1000);
}

}  // namespace
}  // namespace edgewise::server
