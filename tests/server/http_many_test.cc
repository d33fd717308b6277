// Many requests of several clients at once over real sockets, one of four of them damaged.
#include <gmock/gmock.h>

#include <cstdlib>
#include <random>
#include <set>
#include <thread>

#include "tests/server/http_fixture.h"

namespace edgewise::server {
namespace {

using nlohmann::json;

constexpr int kClients = 8;
constexpr const char* kTexts[] = {"the dog", "a cat is old", "the red house is good", "house dog", "is the cat a dog"};

// EDGEWISE_HTTP_REQUESTS of all clients together.
int RequestsOfClient() {
  const char* text = std::getenv("EDGEWISE_HTTP_REQUESTS");
  return (text != nullptr ? std::atoi(text) : 10000) / kClients;
}

struct Ask {
  std::string path, body;
  std::string essence = "";  // of its answer
};

ServerOptions ModelsOfEachTask() {
  ServerOptions options = HttpOptions("");
  const std::string data = tests::TestdataFolder();
  options.models = {{"encoder", data + "_sentence/mean/1"},
                    {"ranker", data + "_sentence/cross_encoder/1"},
                    {"classes", data + "_hugging_face/bert_sequence/1"},
                    {"writer", data + "_hugging_face/gpt2_untied/1"},
                    {"sbm", data + "/sbm/1"}};
  return options;
}

std::vector<Ask> Asks() {
  std::vector<Ask> asks;
  int i = 0;
  for (const std::string text : kTexts) {
    ++i;
    const json message = {{"role", "user"}, {"content", text}};
    const json sequence = {{"tokenIds", {{"values", {1, 2, 3, i}}}}};
    const std::pair<const char*, json> bodies[] = {
        {"/embed", {{"inputs", text}}},
        {"/similarity", {{"inputs", {{"source_sentence", text}, {"sentences", {"a cat", text + " now"}}}}}},
        {"/predict", {{"model", "classes"}, {"inputs", text}}},
        {"/rerank", {{"query", text}, {"texts", {"the red house", "a cat"}}, {"return_text", true}}},
        {"/tokenize", {{"model", "encoder"}, {"inputs", text}}},
        {"/v2/rerank", {{"model", "ranker"}, {"query", text}, {"documents", {"a stone", "the dog"}}}},
        {"/v1/embeddings", {{"model", "encoder"}, {"input", {text, "b"}}}},
        {"/v1/completions", {{"model", "writer"}, {"prompt", text}, {"max_tokens", 3}, {"seed", i}}},
        {"/v1/chat/completions",
         {{"model", "writer"}, {"messages", {message}}, {"max_tokens", 3}, {"seed", i}, {"stream", true}}},
        {kPredict, {{"model", "sbm"}, {"inputs", {{{"sequence", sequence}}}}, {"ensemble", {{"seed", i}}}}}};
    for (const auto& [path, body] : bodies) asks.push_back({path, body.dump()});
  }
  return asks;
}

// The part of an answer that is the same each time.
std::string EssenceOf(const std::string& body) {
  if (body.compare(0, 6, "data: ") == 0) {
    std::string texts;
    for (size_t at = 0, end; (end = body.find("\n\n", at)) != std::string::npos; at = end + 2) {
      const std::string event = body.substr(at + 6, end - at - 6);
      texts += event == "[DONE]" ? event : json::parse(event)["choices"].dump();
    }
    return texts;
  }
  const json answer = json::parse(body);
  if (!answer.is_object()) return body;
  for (const char* field : {"predictions", "choices", "results", "data"}) {
    if (!answer.contains(field)) continue;
    json kept = answer[field];
    for (json& one : kept) one.erase("timing");
    return kept.dump();
  }
  return body;
}

void Call(int port, int client, const std::vector<Ask>& asks) {
  std::mt19937_64 random(static_cast<uint64_t>(client));
  auto connection = std::make_unique<HttpClient>(port);
  for (int i = 0, most = RequestsOfClient(); i < most; ++i) {
    const Ask& ask = asks[random() % asks.size()];
    const std::string id = std::to_string(client) + "-" + std::to_string(i);
    if (random() % 4 == 0) {
      const bool body_alone = random() % 2 == 0;
      const std::string body = body_alone ? Damaged(ask.body, random) : ask.body;
      const std::string bytes = HttpClient::Posted(ask.path, body, "X-Request-Id: " + id + "\r\n");
      connection->Send(body_alone ? bytes : Damaged(bytes, random));
      if (!body_alone) shutdown(connection->fd(), SHUT_WR);  // or both would wait for the rest
      const HttpReply reply = connection->Read();
      EXPECT_TRUE(reply.code == 0 || (reply.code >= 200 && reply.code < 500)) << reply.code << bytes << reply.body;
      EXPECT_TRUE(!body_alone || reply.field("X-Request-Id") == id) << bytes << reply.head;
      const linger reset{1, 0};  // or ports run out: the system keeps those of connections that end otherwise
      setsockopt(connection->fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      connection = std::make_unique<HttpClient>(port);
      continue;
    }
    const HttpReply reply = connection->Post(ask.path, ask.body, "X-Request-Id: " + id + "\r\n");
    ASSERT_EQ(reply.code, 200) << ask.path << ask.body << reply.body;
    EXPECT_EQ(reply.field("X-Request-Id"), id);
    EXPECT_EQ(EssenceOf(reply.body), ask.essence) << ask.path << ask.body;
  }
}

TEST(HttpManyTest, RequestsHaveTheirOwnAnswersAndDamagedOnesHarmNobody) {
  HttpServerFixture http(ModelsOfEachTask());
  std::vector<Ask> asks = Asks();
  std::set<std::string> essences;
  for (Ask& ask : asks) {
    const HttpReply reply = HttpClient(http.port()).Post(ask.path, ask.body);
    ASSERT_EQ(reply.code, 200) << ask.path << ask.body << reply.body;
    ask.essence = EssenceOf(reply.body);
    essences.insert(ask.path + ask.essence);
  }
  ASSERT_EQ(essences.size(), asks.size()) << "the answer of another would not be noticed";
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] { Call(http.port(), client, asks); });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(http.server.WaitForMetric("edgewise_call_memory_bytes", 0.0));
}

}  // namespace
}  // namespace edgewise::server
