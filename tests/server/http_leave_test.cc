// Clients of HTTP that go while their request is computed: its work ends, whatever the route is, however they go, and
// whatever they have sent behind the request. All calls take longer than any test waits.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/model/model_builder.h"
#include "tests/server/http_fixture.h"

namespace edgewise::server {
namespace {

using nlohmann::json;

constexpr int kTokens = 1 << 17;
constexpr uint64_t kMessageBytes = 2 << 20;

json LongConfig(int layers) {
  json config = testing::SmallConfig();
  config["max_position_embeddings"] = kTokens;
  config["hidden_size"] = 32;
  config["intermediate_size"] = 16;
  config["num_attention_heads"] = 16;
  config["num_hidden_layers"] = layers;
  config["attention"] = std::vector<json>(static_cast<size_t>(layers), {{"kind", "dense"}});
  return config;
}

class HttpLeaveTest : public ::testing::Test {
 protected:
  HttpLeaveTest() {
    testing::WriteModel(folder_.path() + "/classes/1", LongConfig(1));
    json language = LongConfig(2);  // of a prompt the last layer attends for the last token only
    language["task"] = "causal-lm";
    language["pad_token_id"] = -1;
    for (const char* field : {"pooling", "num_labels", "classifier_hidden_size"}) language.erase(field);
    testing::WriteModel(folder_.path() + "/writer/1", language);
    ServerOptions options = HttpOptions(folder_.path());
    options.models = {{"encoder", tests::TestdataFolder() + "_sentence/mean/1"}};
    options.max_message_bytes = kMessageBytes;
    http_ = std::make_unique<HttpServerFixture>(options);
    for (int i = 1; i < kTokens; ++i) ids_.push_back(1 + i % 49);
  }

  struct Call {
    const char* path;
    const char* model;
    json body;
  };
  std::vector<Call> Calls() const {
    const auto size = static_cast<int64_t>(ids_.size());
    const std::vector<std::string> texts(1024, "a warm film and a dull mess");
    const json many = {{"samples", 256}, {"override", {{"kind", "ssa"}, {"windows", 2}, {"sigma", {0.4}}}}};
    return {{"/edgewise/v1/predict",
             "classes",
             {{"model", "classes"}, {"inputs", {{{"sequence", {{"tokenIds", {{"values", ids_}}}}}}}}}},
            {"/edgewise/v1/generate",
             "writer",
             {{"model", "writer"}, {"prompt", {{"tokenIds", {{"values", ids_}}}}}, {"maxNewTokens", 1}}},
            {"/v1/completions", "writer", {{"model", "writer"}, {"prompt", ids_}, {"max_tokens", 1}}},
            {"/v1/completions", "writer", {{"model", "writer"}, {"prompt", ids_}, {"max_tokens", 1}, {"stream", true}}},
            {"/v1/embeddings", "encoder", {{"model", "encoder"}, {"input", texts}, {"edgewise", many}}},
            {"/embed", "encoder", {{"model", "encoder"}, {"inputs", texts}, {"edgewise", many}}},
            {"/v2/models/classes/infer",
             "classes",
             {{"inputs", {{{"name", "input_ids"}, {"datatype", "INT64"}, {"shape", {1, size}}, {"data", ids_}}}}}}};
  }

  enum class Way { kClose, kReset, kHalfClose };
  // Sends the call with that number of bytes behind it, and goes once it is computed.
  void Leave(const Call& call, Way way, size_t behind) {
    SCOPED_TRACE(absl::StrCat(call.path, ", way ", static_cast<int>(way), ", ", behind, " bytes behind"));
    const bool writes = call.model == std::string("writer");
    const std::string cancelled =
        absl::StrCat("edgewise_requests_total{code=\"CANCELLED\",model=\"", call.model, "\",version=\"1\"}");
    const std::string ended = writes ? Ended(call.model, "CANCELLED") : cancelled;
    const std::string computed = Of(call.model, "executions_total");
    const double before = http_->server.Metric(ended), executions = http_->server.Metric(computed);
    HttpClient client(http_->port());
    client.Send(HttpClient::Posted(call.path, call.body.dump()) + std::string(behind, ' '));
    ASSERT_TRUE(writes ? http_->server.WaitForMetric(Of(call.model, "generations_running"), 1)
                       : http_->server.WaitForMetric(computed, executions + 1));
    if (way == Way::kReset) {
      const linger reset{1, 0};
      setsockopt(client.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
    way == Way::kHalfClose ? void(shutdown(client.fd(), SHUT_WR)) : client.Close();
    EXPECT_TRUE(http_->server.WaitForMetric(ended, before + 1));
    EXPECT_TRUE(http_->server.WaitForMetric(Of(call.model, "requests_in_flight"), 0));
  }

  TestFolder folder_;
  std::unique_ptr<HttpServerFixture> http_;
  std::vector<int> ids_;
};

TEST_F(HttpLeaveTest, TheWorkEndsWhateverTheRouteIsAndHoweverTheClientGoes) {
  for (const Call& call : Calls()) {
    for (const Way way : {Way::kClose, Way::kReset, Way::kHalfClose}) Leave(call, way, 0);
    Leave(call, Way::kClose, 9000);
  }
  EXPECT_TRUE(http_->server.WaitForMetric("edgewise_call_memory_bytes", 0.0));
}

TEST_F(HttpLeaveTest, TheWorkEndsWhateverLiesBehindTheRequest) {
  const Call call = Calls()[0];
  for (const size_t behind : {100, 8192, 100000, 1500000, 2500000}) Leave(call, Way::kClose, behind);
  for (const Way way : {Way::kReset, Way::kHalfClose}) Leave(call, way, 100000);
  EXPECT_TRUE(http_->server.WaitForMetric("edgewise_call_memory_bytes", 0.0));
}

// The server does not read for ever what it cannot keep.
TEST_F(HttpLeaveTest, AConnectionThatSendsOnAndOnIsClosed) {
  const Call call = Calls()[0];
  HttpClient client(http_->port());
  client.Send(HttpClient::Posted(call.path, call.body.dump()));
  ASSERT_TRUE(http_->server.WaitForMetric(Of(call.model, "executions_total"), 1));
  while (client.Send(std::string(1 << 20, ' '))) {
  }
  EXPECT_TRUE(http_->server.WaitForMetric(Of(call.model, "requests_in_flight"), 0));
  EXPECT_TRUE(http_->server.WaitForMetric("edgewise_call_memory_bytes", 0.0));
}

}  // namespace
}  // namespace edgewise::server
