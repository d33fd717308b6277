// Hugging Face folders over a real port: embeddings, masks, and what sparse attention does on weights trained densely.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/server/answered.h"
#include "tests/server/test_server.h"

namespace edgewise::server {
namespace {

using ::testing::HasSubstr;

v1::PredictRequest TextOf(const std::string& model, int tokens, const std::vector<int>& masks = {}) {
  v1::PredictRequest request;
  request.set_model(model);
  v1::TokenIds* ids = request.add_inputs()->mutable_sequence()->mutable_token_ids();
  for (int i = 0; i < tokens; ++i) ids->add_values(6 + i * 7 % 34);
  for (const int place : masks) ids->set_values(place, 5);
  request.mutable_ensemble()->set_seed(3);
  return request;
}

void Subsample(v1::PredictRequest& request, uint32_t samples) {
  request.mutable_override()->set_kind("ssa");
  request.mutable_override()->set_windows(4);
  request.mutable_override()->add_sigma(0.3);
  request.mutable_ensemble()->set_samples(samples);
}

double LengthOf(const google::protobuf::RepeatedField<float>& numbers) {
  double squares = 0.0;
  for (const float number : numbers) squares += static_cast<double>(number) * number;
  return std::sqrt(squares);
}

class ServerHuggingFaceTest : public ::testing::Test {
 protected:
  std::string Refused(const v1::PredictRequest& request) {
    const grpc::Status status = server_.Predict(request, response_);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    return status.error_message();
  }

  TestServer server_{TestOptions(tests::TestdataFolder() + "_hugging_face")};
  v1::PredictResponse response_;
};

TEST_F(ServerHuggingFaceTest, EmbeddingsAreNormalisedWhereTheModelSaysSo) {
  ASSERT_ANSWERED(server_.Predict(TextOf("mpnet_sentence", 20), response_));
  const v1::Prediction sentence = response_.predictions(0);
  ASSERT_EQ(sentence.embedding_size(), 32);
  EXPECT_TRUE(sentence.normalized());
  EXPECT_NEAR(LengthOf(sentence.embedding()), 1.0, 1e-6);
  EXPECT_EQ(sentence.probabilities_size() + sentence.values_size() + sentence.logits_size(), 0);
  EXPECT_EQ(sentence.label(), "");
  ASSERT_ANSWERED(server_.Predict(TextOf("bert_model", 20), response_));
  EXPECT_FALSE(response_.predictions(0).normalized());
  EXPECT_GT(std::abs(LengthOf(response_.predictions(0).embedding()) - 1.0), 0.1);
}

TEST_F(ServerHuggingFaceTest, ACutIsTakenBeforeTheNorm) {
  for (const char* model : {"bert_model", "mpnet_sentence"}) {
    v1::PredictRequest request = TextOf(model, 20);
    ASSERT_ANSWERED(server_.Predict(request, response_));
    const v1::Prediction whole = response_.predictions(0);
    request.mutable_outputs()->set_dimensions(8);
    ASSERT_ANSWERED(server_.Predict(request, response_));
    const v1::Prediction cut = response_.predictions(0);
    ASSERT_EQ(cut.embedding_size(), 8);
    ASSERT_EQ(cut.stddev_size(), 8);
    EXPECT_TRUE(cut.normalized());
    double squares = 0.0;
    for (int i = 0; i < 8; ++i) squares += static_cast<double>(whole.embedding(i)) * whole.embedding(i);
    for (int i = 0; i < 8; ++i) EXPECT_NEAR(cut.embedding(i), whole.embedding(i) / std::sqrt(squares), 1e-6) << model;
  }
}

TEST_F(ServerHuggingFaceTest, AnEnsemblesEmbeddingIsTheMeanOfPooledRowsNormalisedOnce) {
  v1::PredictRequest request = TextOf("mpnet_sentence", 30);
  Subsample(request, 5);
  request.mutable_outputs()->set_each_sample(true);
  ASSERT_ANSWERED(server_.Predict(request, response_));
  const v1::Prediction& prediction = response_.predictions(0);
  EXPECT_LT(prediction.edges().density(), 0.3);
  EXPECT_GT(prediction.stddev(0), 0.0f);
  ASSERT_EQ(prediction.sample_outputs_size(), 5);
  std::vector<float> mean(32);
  double squares = 0.0;
  for (int i = 0; i < 32; ++i) {
    double sum = 0.0;
    for (const v1::SampleOutput& sample : prediction.sample_outputs()) sum += sample.embedding(i);
    mean[i] = static_cast<float>(sum / 5);
    squares += static_cast<double>(mean[i]) * mean[i];
  }
  EXPECT_GT(std::abs(LengthOf(prediction.sample_outputs(0).embedding()) - 1.0), 0.01) << "a sample's is as pooled";
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(prediction.embedding(i), static_cast<float>(mean[i] / std::sqrt(squares)));
  }
}

TEST_F(ServerHuggingFaceTest, PartsOfAnEnsembleMergeToTheBytesOfTheWhole) {
  std::vector<v1::PredictRequest> requests = {TextOf("mpnet_sentence", 30), TextOf("mpnet_sentence", 30),
                                              TextOf("bert_model", 30),     TextOf("bert_masked", 30, {3, 17}),
                                              TextOf("bert_sequence", 30),  TextOf("bert_multi_label", 30)};
  requests[1].mutable_outputs()->set_dimensions(5);
  for (v1::PredictRequest& request : requests) {
    Subsample(request, 9);
    request.mutable_outputs()->set_each_sample(true);
    // A part names the labels that it shows.
    if (request.model() != "mpnet_sentence" && request.model() != "bert_model") request.mutable_outputs()->set_top_k(3);
    v1::PredictResponse whole;
    ExpectPartsMerge(server_, request, whole);
  }
}

TEST_F(ServerHuggingFaceTest, LabelsThatAreQuestionsOfTheirOwnHaveASigmoidEach) {
  v1::PredictRequest request = TextOf("bert_multi_label", 30);
  Subsample(request, 6);
  request.mutable_outputs()->set_logits(true);
  request.mutable_outputs()->set_each_sample(true);
  request.mutable_outputs()->set_top_k(4);
  ASSERT_ANSWERED(server_.Predict(request, response_));
  const v1::Prediction& prediction = response_.predictions(0);
  EXPECT_TRUE(prediction.multi_label());
  ASSERT_EQ(prediction.probabilities_size(), 4);
  double entropy = 0.0, entropies = 0.0;
  const auto of_one = [](double p) { return -p * std::log(p) - (1 - p) * std::log(1 - p); };
  for (int c = 0; c < 4; ++c) {
    double mean = 0.0;
    for (const v1::SampleOutput& sample : prediction.sample_outputs()) {
      EXPECT_NEAR(sample.probabilities(c), 1.0 / (1.0 + std::exp(-sample.logits(c))), 1e-7);
      mean += sample.probabilities(c) / 6.0;
      entropies += of_one(sample.probabilities(c)) / 6.0;
    }
    EXPECT_NEAR(prediction.probabilities(c), mean, 1e-7);
    EXPECT_LE(prediction.probabilities(c), prediction.probabilities(prediction.label_id()));
    entropy += of_one(mean);
  }
  EXPECT_NEAR(prediction.predictive_entropy(), entropy, 1e-12);
  EXPECT_NEAR(prediction.mutual_information(), entropy - entropies, 1e-12);
  EXPECT_GT(prediction.mutual_information(), 0.0);
  EXPECT_EQ(prediction.label(), prediction.top(0).label());
  EXPECT_THAT(std::vector<std::string>({"toxic", "insult", "threat", "obscene"}),
              ::testing::Contains(prediction.label()));
  request.mutable_ensemble()->set_samples(64);
  request.mutable_ensemble()->set_tolerance(0.02);
  ASSERT_ANSWERED(server_.Predict(request, response_));
  const v1::Prediction& enough = response_.predictions(0);
  EXPECT_LT(enough.samples(), 64u);
  for (const float deviation : enough.stddev()) EXPECT_LT(deviation / std::sqrt(enough.samples()), 0.02);

  v1::GetModelRequest get;
  v1::GetModelResponse model;
  for (const std::string name : {"bert_multi_label", "bert_sequence"}) {
    CallContext context;
    get.set_model(name);
    ASSERT_ANSWERED(server_.stub().GetModel(&context, get, &model));
    EXPECT_EQ(model.model().multi_label(), name == "bert_multi_label");
    EXPECT_EQ(model.model().task(), "sequence-classification");
  }
  ASSERT_ANSWERED(server_.Predict(TextOf("distilbert_one_label", 9), response_));
  EXPECT_EQ(response_.predictions(0).label(), "LABEL_0");
  EXPECT_EQ(response_.predictions(0).values_size(), 0);
}

TEST_F(ServerHuggingFaceTest, StreamsCarryEmbeddingsToo) {
  v1::PredictRequest request = TextOf("bert_sentence_cls", 12);
  request.set_request_id("a");
  ASSERT_ANSWERED(server_.Predict(request, response_));
  CallContext context;
  const auto stream = server_.stub().PredictStream(&context);
  ASSERT_TRUE(stream->Write(request));
  v1::PredictStreamResponse answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.response().predictions(0).SerializeAsString(), response_.predictions(0).SerializeAsString());
  EXPECT_EQ(answer.response().predictions(0).embedding_size(), 32);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(ServerHuggingFaceTest, MasksAreFilledEachWithItsMostProbableTokens) {
  v1::PredictRequest request = TextOf("bert_masked", 20, {0, 11});
  request.mutable_outputs()->set_top_k(3);
  request.mutable_outputs()->set_logits(true);
  ASSERT_ANSWERED(server_.Predict(request, response_));
  const v1::Prediction& prediction = response_.predictions(0);
  EXPECT_EQ(prediction.probabilities_size(), 0);
  EXPECT_EQ(prediction.top_size(), 0);
  ASSERT_EQ(prediction.tokens_size(), 2);
  const uint32_t places[] = {0, 11};
  for (int t = 0; t < 2; ++t) {
    const v1::TokenPrediction& token = prediction.tokens(t);
    EXPECT_EQ(token.position(), places[t]);
    EXPECT_EQ(token.probabilities_size(), 40);
    EXPECT_EQ(token.logits_size(), 40);
    ASSERT_EQ(token.top_size(), 3);
    EXPECT_EQ(token.top(0).label_id(), token.label_id());
    EXPECT_EQ(token.top(0).probability(), token.probabilities(token.label_id()));
    EXPECT_GT(token.top(0).probability(), token.top(2).probability());
  }
  EXPECT_NE(prediction.tokens(0).probabilities(7), prediction.tokens(1).probabilities(7));
}

TEST_F(ServerHuggingFaceTest, BudgetsAndGraphsHold) {
  v1::PredictRequest request = TextOf("roberta_sequence", 30);
  Subsample(request, 4);
  request.mutable_budget()->set_max_edges(600);
  ASSERT_ANSWERED(server_.Predict(request, response_));
  EXPECT_LE(response_.predictions(0).edges().max_sample_edges(), 600u);
  EXPECT_TRUE(response_.predictions(0).edges().capped());
  EXPECT_EQ(response_.predictions(0).edges().pairs(), 30u * 30u * 2u * 4u);
  EXPECT_EQ(response_.predictions(0).label(),
            std::vector<std::string>({"no", "maybe", "yes"})[static_cast<size_t>(response_.predictions(0).label_id())]);
}

TEST_F(ServerHuggingFaceTest, WhatDoesNotApplyIsRefused) {
  v1::PredictRequest request = TextOf("bert_masked", 5);
  EXPECT_THAT(Refused(request), HasSubstr("inputs[0].sequence.token_ids has no mask token ([MASK], 5)"));
  request = TextOf("bert_sequence", 5);
  request.mutable_outputs()->set_dimensions(3);
  EXPECT_THAT(Refused(request), HasSubstr("outputs.dimensions is 3; it is for embedding models"));
  request = TextOf("bert_model", 5);
  request.mutable_outputs()->set_dimensions(33);
  EXPECT_THAT(Refused(request), HasSubstr("outputs.dimensions is 33; the model's embeddings have 32"));
  request.mutable_outputs()->set_dimensions(0);
  request.mutable_outputs()->set_top_k(1);
  EXPECT_THAT(Refused(request), HasSubstr("outputs.top_k is set; an embedding model has no labels"));
  request.mutable_outputs()->set_top_k(0);
  request.mutable_outputs()->set_logits(true);
  EXPECT_THAT(Refused(request), HasSubstr("outputs.logits is set; an embedding model has no labels"));
  request.mutable_outputs()->set_logits(false);
  request.mutable_inputs(0)->mutable_sequence()->set_text("hello");
  EXPECT_THAT(Refused(request), HasSubstr("inputs[0].sequence.text"));
  EXPECT_THAT(Refused(request), HasSubstr("token_ids"));
}

TEST_F(ServerHuggingFaceTest, ModelsSayTheirTask) {
  v1::GetModelRequest request;
  v1::GetModelResponse model;
  const auto get = [&](const char* name) {
    request.set_model(name);
    CallContext context;
    const grpc::Status status = server_.stub().GetModel(&context, request, &model);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return model.model();
  };
  EXPECT_EQ(get("bert_masked").task(), "fill-mask");
  EXPECT_EQ(get("bert_masked").mask_token_id(), 5);
  EXPECT_EQ(get("mpnet_sentence").task(), "embedding");
  EXPECT_EQ(get("bert_regression").task(), "regression");
  EXPECT_EQ(get("bert_regression").sha256().size(), 64u);
  EXPECT_EQ(get("roberta_sequence").max_tokens(), 38u);
  EXPECT_EQ(get("xlm_roberta_tokens").labels(1), "maybe");
}

}  // namespace
}  // namespace edgewise::server
