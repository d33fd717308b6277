// Generate over a real port: tokens, texts, numbers and refusals.
#include <gmock/gmock.h>

#include <cmath>
#include <thread>

#include "tests/model/model_builder.h"
#include "tests/server/generate_calls.h"

namespace edgewise::server {
namespace {

TEST(GenerateTest, EveryTokenIsAMessageAndTheLastOneSaysHowItWent) {
  TestServer server;
  v1::GenerateRequest request = ShortRequest();
  request.set_request_id("id-9");
  const Generated generated = Generate(server, request);
  ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
  ASSERT_EQ(generated.messages.size(), 8u);
  double edges = 0.0, pairs = 0.0;
  for (size_t t = 0; t < 8; ++t) {
    const v1::GenerateResponse& message = generated.messages[t];
    EXPECT_EQ(message.edges().pairs(), 2u * 2u * (5 + t));
    EXPECT_EQ(message.edges().density(), 1.0);
    EXPECT_LT(message.log_probability(), 0.0);
    EXPECT_EQ(message.done(), t == 7);
    EXPECT_EQ(message.has_timing(), t == 7);
    edges += message.edges().edges();
    pairs += static_cast<double>(message.edges().pairs());
  }
  const v1::GenerateResponse& last = generated.messages.back();
  EXPECT_EQ(last.finish_reason(), "length");
  for (const v1::GenerateResponse* message : {&generated.messages.front(), &last}) {
    EXPECT_EQ(message->seed(), 7u);
    EXPECT_EQ(message->model(), "lm-dense");
    EXPECT_EQ(message->version(), 1);
    EXPECT_EQ(message->device().substr(0, 4), "cpu/");
    EXPECT_EQ(message->request_id(), "id-9");
  }
  EXPECT_EQ(last.prompt_tokens(), 5u);
  EXPECT_EQ(last.generated_tokens(), 8u);
  EXPECT_GT(last.timing().compute_us(), 0u);
  EXPECT_GE(last.timing().total_us(), last.timing().compute_us());
  EXPECT_EQ(last.timing().batch_inputs(), 1u);
  EXPECT_EQ(last.timing().batch_tokens(), 13u);
  EXPECT_EQ(server.Metric(Ended("lm-dense", "OK")), 1.0);
  EXPECT_EQ(server.Metric(Of("lm-dense", "generated_tokens_total")), 8.0);
  EXPECT_EQ(server.Metric(Of("lm-dense", "prompt_tokens_total")), 5.0);
  EXPECT_EQ(server.Metric(Of("lm-dense", "first_token_duration_seconds_count")), 1.0);
  EXPECT_EQ(server.Metric(Of("lm-dense", "token_duration_seconds_count")), 7.0);
  EXPECT_EQ(server.Metric(Of("lm-dense", "attention_edges_total")), edges);
  EXPECT_EQ(server.Metric(Of("lm-dense", "attention_pairs_total")), pairs);
  EXPECT_EQ(server.Metric(Of("lm-dense", "generations_running")), 0.0);
  EXPECT_EQ(server.Metric(Of("lm-dense", "requests_in_flight")), 0.0);
  EXPECT_EQ(server.Metric(
                R"(edgewise_rpc_requests_total{code="OK",method="Generate",service="edgewise.v1.InferenceService"})"),
            1.0);
}

TEST(GenerateTest, SameSeedGivesTheSameTokensWhateverElseRunsAndNoSeedIsReturned) {
  TestServer server;
  for (const char* model : {"lm-dense", "lm-ssa-local", "lm-block-local"}) {
    v1::GenerateRequest request = ShortRequest(model, 60);  // beyond the context of 48
    request.mutable_ensemble()->set_samples(3);
    const Generated alone = Generate(server, request);
    ASSERT_EQ(alone.messages.size(), 60u) << alone.status.error_message();
    std::vector<Generated> beside(4);
    std::vector<std::jthread> clients;
    for (Generated& one : beside) clients.emplace_back([&] { one = Generate(server, request); });
    for (std::jthread& client : clients) client.join();
    for (const Generated& one : beside) {
      ASSERT_EQ(one.tokens(), alone.tokens()) << model;
      for (size_t t = 0; t < 60; ++t) {
        EXPECT_EQ(one.messages[t].log_probability(), alone.messages[t].log_probability());
        EXPECT_EQ(one.messages[t].edges().SerializeAsString(), alone.messages[t].edges().SerializeAsString());
      }
    }
    request.mutable_ensemble()->clear_seed();
    const Generated drawn = Generate(server, request);
    ASSERT_TRUE(drawn.status.ok()) << drawn.status.error_message();
    request.mutable_ensemble()->set_seed(drawn.messages.back().seed());
    EXPECT_EQ(Generate(server, request).tokens(), drawn.tokens());
  }
}

TEST(GenerateTest, ProbabilitiesAreThoseThatPredictGivesTheText) {
  TestServer server;
  for (const char* model : {"lm-dense", "lm-ssa-local", "lm-relative"}) {
    const Generated generated = Generate(server, ShortRequest(model, 20));
    ASSERT_EQ(generated.messages.size(), 20u) << generated.status.error_message();
    v1::PredictRequest score;
    score.set_model(model);
    *score.add_inputs()->mutable_sequence() = ShortRequest().prompt();
    for (const int32_t id : generated.tokens()) {
      score.mutable_inputs(0)->mutable_sequence()->mutable_token_ids()->add_values(id);
    }
    score.mutable_ensemble()->set_seed(7);
    score.mutable_outputs()->set_each_sample(true);
    v1::PredictResponse response;
    ASSERT_TRUE(server.Predict(score, response).ok());
    for (int t = 0; t < 20; ++t) {
      const double p = response.predictions(0).sample_outputs(0).token_probabilities(4 + t);
      EXPECT_NEAR(std::exp(generated.messages[static_cast<size_t>(t)].log_probability()) / p, 1.0, 2e-4) << model;
    }
  }
}

TEST(GenerateTest, AlternativesAreOfTheDistributionBeforePenalties) {
  TestServer server;
  v1::GenerateRequest request = ShortRequest("lm-ssa-local", 6);
  request.mutable_ensemble()->set_samples(2);
  request.set_temperature(0.0);
  const Generated plain = Generate(server, request);
  request.set_alternatives(24);
  EXPECT_EQ(Generate(server, request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_alternatives(20);
  const Generated with = Generate(server, request);
  ASSERT_EQ(with.messages.size(), 6u) << with.status.error_message();
  EXPECT_EQ(with.tokens(), plain.tokens());
  request.set_presence_penalty(2.0);
  request.set_frequency_penalty(2.0);
  const Generated penalized = Generate(server, request);
  for (size_t t = 0; t < 6; ++t) {
    const v1::GenerateResponse& message = with.messages[t];
    EXPECT_EQ(plain.messages[t].alternatives_size(), 0);
    EXPECT_EQ(plain.messages[t].predictive_entropy(), message.predictive_entropy());
    EXPECT_GT(message.predictive_entropy(), 0.0);
    EXPECT_LT(message.mutual_information(), message.predictive_entropy());
    ASSERT_EQ(message.alternatives_size(), 20);
    EXPECT_EQ(message.alternatives(0).token_id(), message.token_id()) << "it is greedy";
    EXPECT_EQ(message.alternatives(0).log_probability(), message.log_probability());
    EXPECT_EQ(message.alternatives(0).token_bytes(), "") << "the model has no tokenizer";
  }
  // The first token is not penalized yet; as long as the texts agree, so do the distributions.
  EXPECT_EQ(penalized.messages[0].alternatives(0).log_probability(), with.messages[0].log_probability());
  for (const v1::GenerateResponse& message : penalized.messages) {
    bool listed = false;
    for (const v1::TokenAlternative& one : message.alternatives()) {
      listed |= one.token_id() == message.token_id() && one.log_probability() == message.log_probability();
    }
    EXPECT_TRUE(listed || message.log_probability() < message.alternatives(19).log_probability());
  }
}

TEST(GenerateTest, BudgetCapsEveryRowAndOneBelowTheLeastIsRefused) {
  TestServer server;
  v1::GenerateRequest request = ShortRequest("lm-ssa-local", 30);
  request.mutable_budget()->set_max_edges(12);
  request.mutable_ensemble()->set_samples(2);
  const Generated generated = Generate(server, request);
  ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
  bool capped = false;
  for (const v1::GenerateResponse& message : generated.messages) {
    EXPECT_EQ(message.edges().budget(), 12u);
    EXPECT_LE(message.edges().max_sample_edges(), 12u);
    EXPECT_EQ(message.edges().expected_edges(), 0.0) << "of Predict only";
    capped |= message.edges().capped();
  }
  EXPECT_TRUE(capped);
  request.set_attention(v1::DENSE);
  const Generated refused = Generate(server, request);
  EXPECT_EQ(refused.status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(refused.status.error_message(), ::testing::HasSubstr("budget.max_edges is 12; a row of this text needs"));
  EXPECT_THAT(refused.status.error_details(), ::testing::HasSubstr("budget.max_edges"));
  EXPECT_TRUE(refused.messages.empty());
  EXPECT_EQ(server.Metric(R"(edgewise_rejections_total{model="lm-ssa-local",reason="budget",version="1"})"), 1.0);
  EXPECT_EQ(server.Metric(Of("lm-ssa-local", "generations_running")), 0.0);
}

TEST(GenerateTest, StopStringEndsTheTextBeforeItAndTextIsWholeCharacters) {
  TestFolder folder;
  nlohmann::json config = edgewise::testing::SmallConfig();
  for (const char* field : {"pooling", "num_labels", "classifier_hidden_size"}) config.erase(field);
  config["task"] = "causal-lm";
  config["vocab_size"] = 257;
  config["attention"] = {{"kind", "dense"}};
  config["tokenizer"] = {{"kind", "byte"}};
  edgewise::testing::WriteModel(folder.path() + "/bytes/1", config);
  TestServer server(TestOptions(folder.path()));
  v1::GenerateRequest request;
  request.set_model("bytes");
  request.mutable_prompt()->set_text("begin");
  request.set_max_new_tokens(200);
  request.set_temperature(1.5);
  request.mutable_ensemble()->set_seed(2);
  const Generated whole = Generate(server, request);  // random bytes: most are no characters
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  ASSERT_EQ(whole.messages.size(), 200u);
  std::string stop;  // something that comes in the middle
  for (const v1::GenerateResponse& message : whole.messages) {
    for (const char c : message.text()) {
      if (c >= 0x21 && c < 0x7f && stop.empty() && whole.text().find(c) > 5) stop = std::string(1, c);
    }
  }
  ASSERT_FALSE(stop.empty());
  request.add_stop(stop);
  const Generated stopped = Generate(server, request);
  ASSERT_TRUE(stopped.status.ok()) << stopped.status.error_message();
  EXPECT_EQ(stopped.messages.back().finish_reason(), "stop");
  EXPECT_TRUE(stopped.messages.back().done());
  EXPECT_EQ(stopped.text(), whole.text().substr(0, whole.text().find(stop)));
}

TEST(GenerateTest, BadRequestsHaveTheirCodeAndCountAsGenerations) {
  TestServer server;
  EXPECT_EQ(Generate(server, ShortRequest("unknown")).status.error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(Generate(server, ShortRequest("../x")).status.error_code(), grpc::INVALID_ARGUMENT);
  const Generated sbm = Generate(server, ShortRequest("sbm"));
  EXPECT_EQ(sbm.status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(sbm.status.error_details(), ::testing::HasSubstr("google.rpc.BadRequest"));
  EXPECT_EQ(server.Metric(Ended("sbm", "INVALID_ARGUMENT")), -1.0) << "it has no series of generations";
  EXPECT_EQ(server.Metric(R"(edgewise_generations_total{code="INVALID_ARGUMENT",model="_other",version="_other"})"),
            2.0);
  EXPECT_EQ(server.Metric(R"(edgewise_generations_total{code="NOT_FOUND",model="_other",version="_other"})"), 1.0);
  EXPECT_EQ(server.Metric(R"(edgewise_requests_total{code="INVALID_ARGUMENT",model="sbm",version="1"})"), 0.0);
  EXPECT_TRUE(Generate(server, ShortRequest()).status.ok());
}

}  // namespace
}  // namespace edgewise::server
