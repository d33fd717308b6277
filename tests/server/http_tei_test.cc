// The APIs of TEI and Cohere over a real port: the numbers of Predict, or the documented function of them, in the
// shapes of these APIs.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/server/http_fixture.h"

namespace edgewise::server {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Sentences() { return tests::TestdataFolder() + "_sentence"; }

ServerOptions OneOfEach() {
  ServerOptions options = HttpOptions("");
  options.models = {{"encoder", Sentences() + "/mean/1"},
                    {"ranker", Sentences() + "/cross_encoder/1"},
                    {"classes", Sentences() + "/cross_encoder_labels/1"}};
  return options;
}

class TeiFixture : public ::testing::Test {
 protected:
  explicit TeiFixture(const ServerOptions& options) : http_(options) {}

  v1::PredictResponse Predict(v1::PredictRequest request) {
    request.mutable_ensemble()->set_seed(1);
    v1::PredictResponse response;
    const grpc::Status status = http_.server.Predict(request, response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  static v1::PredictRequest Texts(const std::string& model, const std::vector<std::string>& texts) {
    v1::PredictRequest request;
    request.set_model(model);
    for (const std::string& text : texts) request.add_inputs()->mutable_sequence()->set_text(text);
    return request;
  }
  static v1::PredictRequest Pairs(const std::string& model, const std::string& query,
                                  const std::vector<std::string>& texts) {
    v1::PredictRequest request = Texts(model, std::vector<std::string>(texts.size(), query));
    for (size_t i = 0; i < texts.size(); ++i) {
      request.mutable_inputs(static_cast<int>(i))->mutable_second()->set_text(texts[i]);
    }
    return request;
  }
  static std::vector<float> Of(const v1::PredictResponse& response, int input) {
    const auto& embedding = response.predictions(input).embedding();
    return {embedding.begin(), embedding.end()};
  }
  // The error of a request that is refused with that code.
  std::string Refused(int code, const std::string& path, const json& body) {
    const HttpReply reply = http_.Post(path, body);
    EXPECT_EQ(reply.code, code) << path << body << reply.body;
    const json error = json::parse(reply.body);
    EXPECT_EQ(error.size(), 2u) << error;
    EXPECT_EQ(error["error_type"], code == 424 ? "Backend" : "Validation") << error;
    return error["error"];
  }

  HttpServerFixture http_;
};

class TeiTest : public TeiFixture {
 protected:
  TeiTest() : TeiFixture(HttpOptions(Sentences())) {}
};

std::vector<float> Normalized(std::vector<float> numbers) {
  double squares = 0.0;
  for (const float number : numbers) squares += double{number} * double{number};
  for (float& number : numbers) number = static_cast<float>(double{number} / std::sqrt(squares));
  return numbers;
}

TEST_F(TeiTest, EmbeddingsAreThoseOfPredictWithLength1UnlessNormalizeIsFalse) {
  const v1::PredictResponse expected = Predict(Texts("mean", {"the cat", "a dog sat"}));
  json body = {{"model", "mean"}, {"inputs", {"the cat", "a dog sat"}}, {"normalize", false}};
  const json raw = http_.Answer("/embed", body);
  body["normalize"] = true;
  const json normalized = http_.Answer("/embed", body);
  ASSERT_EQ(raw.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(raw[i].get<std::vector<float>>(), Of(expected, i));
    EXPECT_EQ(normalized[i].get<std::vector<float>>(), Normalized(Of(expected, i)));
  }
  // One text is a list of one embedding; a name may stand in the path.
  EXPECT_EQ(http_.Answer("/models/mean/embed", {{"inputs", "the cat"}}), json::array({normalized[0]}));
  EXPECT_EQ(http_.Answer("/models/mean@1/embed", {{"inputs", "the cat"}}), json::array({normalized[0]}));
  // Tokens are taken as sent.
  const json tokens = http_.Answer("/embed", {{"model", "mean"}, {"inputs", {{2, 6, 7, 3}, {6}}}});
  EXPECT_EQ(tokens[0], normalized[0]);
  EXPECT_EQ(http_.Answer("/embed", {{"model", "mean"}, {"inputs", "the cat"}, {"dimensions", 4}})[0].size(), 4u);
}

TEST_F(TeiTest, EmbedAllGivesTheRowOfEveryToken) {
  v1::PredictRequest request = Texts("mean", {"the cat", "a dog sat"});
  request.mutable_outputs()->set_token_embeddings(true);
  const v1::PredictResponse expected = Predict(request);
  const json found = http_.Answer("/embed_all", {{"model", "mean"}, {"inputs", {"the cat", "a dog sat"}}});
  ASSERT_EQ(found.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    const auto rows = found[i].get<std::vector<std::vector<float>>>();
    ASSERT_EQ(rows.size(), expected.predictions(i).token_embeddings().tokens());
    ASSERT_EQ(rows.size(), i == 0 ? 4u : 5u);  // with [CLS] and [SEP]
    std::vector<float> flat;
    for (const std::vector<float>& row : rows) flat.insert(flat.end(), row.begin(), row.end());
    const auto& values = expected.predictions(i).token_embeddings().values();
    EXPECT_EQ(flat, std::vector<float>(values.begin(), values.end()));
    const std::vector<float> embedding = Of(expected, i);
    for (size_t c = 0; c < embedding.size(); ++c) {
      double sum = 0.0;
      for (const std::vector<float>& row : rows) sum += row[c];
      EXPECT_NEAR(sum / static_cast<double>(rows.size()), embedding[c], 1e-5) << c;
    }
  }
}

TEST_F(TeiTest, TruncateCutsTheEndOrTheBeginning) {
  std::string text = "red";
  for (int i = 0; i < 50; ++i) text += " cat";
  json body = {{"model", "mean"}, {"inputs", text}, {"normalize", false}};
  EXPECT_THAT(Refused(422, "/embed", body), ::testing::StartsWith("inputs has more than"));
  body["truncate"] = true;
  v1::PredictRequest request = Texts("mean", {text});
  request.mutable_inputs(0)->mutable_sequence()->set_truncate(v1::TAIL);
  EXPECT_EQ(http_.Answer("/embed", body)[0].get<std::vector<float>>(), Of(Predict(request), 0));
  body["truncation_direction"] = "Left";
  request.mutable_inputs(0)->mutable_sequence()->set_truncate(v1::HEAD);
  EXPECT_EQ(http_.Answer("/embed", body)[0].get<std::vector<float>>(), Of(Predict(request), 0));
  body["truncation_direction"] = "Up";
  EXPECT_THAT(Refused(422, "/embed", body), HasSubstr("truncation_direction is \"Up\""));
  body["edgewise"] = {{"truncate", "TAIL"}};
  EXPECT_THAT(Refused(422, "/embed", body), HasSubstr("edgewise.truncate"));
}

TEST_F(TeiTest, ErrorsNameTheInputAsTheBodyDoes) {
  std::string text = "red";
  for (int i = 0; i < 50; ++i) text += " cat";
  const json sentences = {{"source_sentence", "a"}, {"sentences", {"a", text}}};
  EXPECT_THAT(Refused(422, "/similarity", {{"model", "mean"}, {"inputs", sentences}}),
              ::testing::StartsWith("inputs.sentences[1] has more than"));
  const json source = {{"source_sentence", text}, {"sentences", {"a"}}};
  EXPECT_THAT(Refused(422, "/similarity", {{"model", "mean"}, {"inputs", source}}),
              ::testing::StartsWith("inputs.source_sentence has more than"));
  EXPECT_THAT(Refused(422, "/rerank", {{"model", "cross_encoder"}, {"query", "a"}, {"texts", {"a", text}}}),
              ::testing::StartsWith("texts[1] has more than"));
  EXPECT_THAT(Refused(422, "/embed", {{"model", "mean"}, {"inputs", {{1, 2}, {1, -7}}}}),
              ::testing::StartsWith("inputs[1][1] is -7"));
}

TEST_F(TeiTest, PromptsGoBeforeTextsByTheirNames) {
  v1::PredictRequest request = Texts("cls_prompts", {"the cat"});
  request.mutable_inputs(0)->mutable_sequence()->set_prompt_name("query");
  const std::vector<float> expected = Of(Predict(request), 0);
  json body = {{"model", "cls_prompts"}, {"inputs", "the cat"}, {"prompt_name", "query"}};
  EXPECT_EQ(http_.Answer("/embed", body)[0].get<std::vector<float>>(), expected);
  body.erase("prompt_name");
  EXPECT_NE(http_.Answer("/embed", body)[0].get<std::vector<float>>(), expected);
  body["prompt_name"] = "qery";
  EXPECT_THAT(Refused(422, "/embed", body), HasSubstr("did you mean query?"));
}

TEST_F(TeiTest, SimilaritiesAreCosinesToTheSource) {
  const v1::PredictResponse expected = Predict(Texts("mean", {"the cat", "a dog sat", "the cat"}));
  const json found = http_.Answer(
      "/similarity", {{"model", "mean"},
                      {"inputs", {{"source_sentence", "the cat"}, {"sentences", {"a dog sat", "the cat"}}}},
                      {"parameters", {{"truncate", true}}}});
  ASSERT_EQ(found.size(), 2u);
  const std::vector<float> source = Normalized(Of(expected, 0)), other = Normalized(Of(expected, 1));
  double product = 0.0;
  for (size_t i = 0; i < source.size(); ++i) product += double{source[i]} * double{other[i]};
  EXPECT_NEAR(found[0].get<double>(), product, 1e-6);
  EXPECT_NEAR(found[1].get<double>(), 1.0, 1e-6);
  EXPECT_THAT(Refused(422, "/similarity", {{"model", "mean"}, {"inputs", {{"sentences", {"a"}}}}}),
              HasSubstr("inputs.source_sentence is missing"));
}

TEST_F(TeiTest, RanksFallAndScoresAreSigmoidsOrRawLogits) {
  const std::vector<std::string> texts = {"the dog is old!", "a cat", "the red house"};
  for (const std::string model : {"cross_encoder", "cross_encoder_logits"}) {
    const v1::PredictResponse expected = Predict(Pairs(model, "is the dog good", texts));
    json body = {{"model", model}, {"query", "is the dog good"}, {"texts", texts}, {"return_text", true}};
    const json ranks = http_.Answer("/rerank", body);
    body["raw_scores"] = true;
    const json raw = http_.Answer("/rerank", body);
    ASSERT_EQ(ranks.size(), 3u);
    for (int i = 0; i < 3; ++i) {
      const int index = ranks[i]["index"];
      const float value = expected.predictions(index).values(0), score = ranks[i]["score"], logit = raw[i]["score"];
      EXPECT_EQ(raw[i]["index"], index);
      EXPECT_EQ(ranks[i]["text"], texts[index]);
      if (i > 0) {
        EXPECT_LE(score, ranks[i - 1]["score"].get<float>());
      }
      EXPECT_NEAR(score, 1.0 / (1.0 + std::exp(-logit)), 1e-7);
      EXPECT_EQ(model == "cross_encoder" ? score : logit, value);
    }
    body["return_text"] = false;
    EXPECT_FALSE(http_.Answer("/rerank", body)[0].contains("text"));
  }
}

TEST_F(TeiTest, PredictionsHaveEveryLabelByFallingScore) {
  v1::PredictRequest request = Pairs("cross_encoder_labels", "the cat", {"a dog"});
  request.mutable_outputs()->set_logits(true);
  const v1::Prediction expected = Predict(request).predictions(0);
  const std::string path = "/models/cross_encoder_labels/predict";
  const json scores = http_.Answer(path, {{"inputs", {"the cat", "a dog"}}});
  const json raw = http_.Answer(path, {{"inputs", {"the cat", "a dog"}}, {"raw_scores", true}});
  ASSERT_EQ(scores.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    const int label = scores[i]["label"].get<std::string>().back() - '0';
    EXPECT_EQ(scores[i]["label"], "LABEL_" + std::to_string(label));
    EXPECT_EQ(scores[i]["score"].get<float>(), expected.probabilities(label));
    EXPECT_EQ(raw[i]["label"], scores[i]["label"]);
    EXPECT_EQ(raw[i]["score"].get<float>(), expected.logits(label));
    if (i > 0) {
      EXPECT_LE(scores[i]["score"].get<float>(), scores[i - 1]["score"].get<float>());
    }
  }
  // A list of lists is several inputs; a list of two texts is a pair.
  const json batch = http_.Answer(path, {{"inputs", {{"the cat", "a dog"}, {"the cat"}}}});
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch[0], scores);
  EXPECT_EQ(batch[1], http_.Answer(path, {{"inputs", "the cat"}}));
  EXPECT_NE(batch[1], batch[0]);
  // A model with one label answers with it.
  const json one = http_.Answer("/predict", {{"model", "cross_encoder"}, {"inputs", {"the cat", "a dog"}}});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0]["label"], "LABEL_0");
  EXPECT_EQ(one[0]["score"].get<float>(),
            Predict(Pairs("cross_encoder", "the cat", {"a dog"})).predictions(0).values(0));
  for (const json& wrong :
       {json(3), json::array(), json{"a", "b", "c"}, json{{"a"}, "b"}, json{{1}, {2}}, json::object()}) {
    EXPECT_THAT(Refused(422, path, {{"inputs", wrong}}), HasSubstr("inputs"));
  }
}

TEST_F(TeiTest, TokensCountCharactersAndDecodeToTheirText) {
  const json tokens = http_.Answer("/tokenize", {{"model", "mean"}, {"inputs", "你 Cats"}});
  ASSERT_EQ(tokens.size(), 1u);
  const auto token = [](int id, const std::string& text, int start, int stop) {
    return json{{"id", id}, {"text", text}, {"special", false}, {"start", start}, {"stop", stop}};
  };
  const auto special = [](int id, const std::string& text) {
    return json{{"id", id}, {"text", text}, {"special", true}, {"start", nullptr}, {"stop", nullptr}};
  };
  EXPECT_THAT(tokens[0], ElementsAre(special(2, "[CLS]"), token(36, "你", 0, 1), token(7, "Cat", 2, 5),
                                     token(17, "s", 5, 6), special(3, "[SEP]")));
  const json plain =
      http_.Answer("/tokenize", {{"model", "mean"}, {"inputs", {"a", "你 Cats"}}, {"add_special_tokens", false}});
  ASSERT_EQ(plain.size(), 2u);
  EXPECT_EQ(plain[1].size(), 3u);
  // The prompt is a part of the text.
  const json prompted =
      http_.Answer("/tokenize", {{"model", "cls_prompts"}, {"inputs", "cat"}, {"prompt_name", "query"}});
  EXPECT_EQ(prompted[0].size(), 2u + 5u);

  EXPECT_THAT(http_.Answer("/decode", {{"model", "mean"}, {"ids", {2, 7, 17, 3}}}), ElementsAre("cats"));
  EXPECT_THAT(http_.Answer("/decode", {{"model", "mean"}, {"ids", {{7}, {2, 8}}}, {"skip_special_tokens", false}}),
              ElementsAre("cat", "[CLS] dog"));
  EXPECT_THAT(Refused(422, "/decode", {{"model", "mean"}, {"ids", "x"}}), HasSubstr("ids"));
  EXPECT_THAT(Refused(422, "/tokenize", {{"model", "mean"}, {"inputs", {1, 2}}}), HasSubstr("inputs"));
}

TEST_F(TeiTest, InfoDescribesTheModel) {
  const json encoder = json::parse(http_.Get("/models/last_token/info").body);
  EXPECT_EQ(encoder["model_id"], "last_token");
  EXPECT_EQ(encoder["model_type"], json({{"embedding", {{"pooling", "last_token"}}}}));
  EXPECT_EQ(encoder["model_dtype"], "float32");
  EXPECT_GT(encoder["max_input_length"].get<int>(), 0);
  EXPECT_EQ(encoder["max_client_batch_size"], 1024);
  EXPECT_EQ(encoder["auto_truncate"], false);
  const json ranker = json::parse(http_.Get("/models/cross_encoder/info").body);
  EXPECT_EQ(ranker["model_type"],
            json({{"reranker", {{"id2label", {{"0", "LABEL_0"}}}, {"label2id", {{"LABEL_0", 0}}}}}}));
  EXPECT_TRUE(json::parse(http_.Get("/models/cross_encoder_labels/info").body)["model_type"].contains("classifier"));
  EXPECT_EQ(http_.Get("/info").code, 422) << "there are several";
}

TEST_F(TeiTest, WhatIsNotTakenIsNamed) {
  EXPECT_THAT(Refused(422, "/embed", {{"inputs", "a"}}), HasSubstr("model is missing, and"));
  EXPECT_THAT(Refused(422, "/embed", {{"inputs", "a"}}), HasSubstr("cls_prompts, dense, "));
  EXPECT_THAT(Refused(424, "/embed", {{"model", "cross_encoder"}, {"inputs", "a"}}),
              HasSubstr("which does regression; needed is one that embeds texts"));
  EXPECT_THAT(Refused(424, "/rerank", {{"model", "mean"}, {"query", "a"}, {"texts", {"b"}}}), HasSubstr("reranks"));
  EXPECT_THAT(Refused(404, "/embed", {{"model", "nothing"}, {"inputs", "a"}}), HasSubstr("nothing"));
  EXPECT_THAT(Refused(422, "/models/mean/embed", {{"model", "dense"}, {"inputs", "a"}}), HasSubstr("model is"));
  EXPECT_THAT(Refused(422, "/embed", {{"model", "mean"}}), HasSubstr("inputs is missing"));
  EXPECT_THAT(Refused(422, "/embed", {{"model", "mean"}, {"inputs", "a"}, {"raw_scores", true}}),
              HasSubstr("raw_scores is no field"));
  for (const char* name : {"top_k", "min_p", "repetition_penalty"}) {
    EXPECT_THAT(Refused(422, "/embed", {{"model", "mean"}, {"inputs", "a"}, {"edgewise", {{name, 1}}}}),
                ::testing::StartsWith(std::string("edgewise.") + name));
    EXPECT_EQ(http_
                  .Post("/v2/rerank",
                        {{"model", "cross_encoder"}, {"query", "a"}, {"documents", {"b"}}, {"edgewise", {{name, 1}}}})
                  .code,
              400);
  }
  EXPECT_THAT(Refused(422, "/embed", {{"model", "mean"}, {"inputs", "a"}, {"priority", 1}}),
              ::testing::StartsWith("priority is no field"));
  EXPECT_THAT(Refused(422, "/embed", {{"model", "mean"}, {"inputs", "a"}, {"edgewise", {{"max_density", 2.0}}}}),
              ::testing::StartsWith("edgewise.max_density is 2"));
  EXPECT_THAT(Refused(422, "/rerank", {{"model", "cross_encoder"}, {"texts", {"b"}}}), HasSubstr("query is missing"));
  EXPECT_THAT(Refused(422, "/rerank", {{"model", "cross_encoder"}, {"query", "a"}}), HasSubstr("texts is missing"));
  EXPECT_THAT(Refused(413, "/rerank",
                      {{"model", "cross_encoder"}, {"query", "a"}, {"texts", std::vector<std::string>(1025, "b")}}),
              HasSubstr("texts has 1025 entries; the server takes at most 1024"));
  EXPECT_THAT(Refused(413, "/embed", {{"model", "mean"}, {"inputs", std::vector<std::string>(1025, "b")}}),
              HasSubstr("inputs has 1025 entries; the server takes at most 1024"));
  // The query is a part of each pair, and these are a message.
  EXPECT_THAT(Refused(413, "/rerank",
                      {{"model", "cross_encoder"},
                       {"query", std::string(5000, 'a')},
                       {"texts", std::vector<std::string>(1000, "b")}}),
              HasSubstr("the inputs take 5001000 bytes"));
  EXPECT_EQ(
      Refused(
          413, "/embed",
          {{"model", "mean"}, {"prompt_name", std::string(5000, 'a')}, {"inputs", std::vector<std::string>(1000, "b")}})
          .find("the inputs take 5000000 bytes"),
      0u);
  EXPECT_EQ(http_.Get("/embed").code, 405);
  const HttpReply sparse = http_.Post("/embed_sparse", {{"inputs", "a"}});
  EXPECT_EQ(sparse.code, 404);
  EXPECT_THAT(sparse.body, HasSubstr("sparse embeddings are not served"));
  for (const char* field : {"normalize", "dimensions"}) {
    EXPECT_THAT(Refused(422, "/embed_all",
                        {{"model", "mean"}, {"inputs", "a"}, {field, json::parse(field[0] == 'n' ? "false" : "4")}}),
                HasSubstr(std::string(field) + " is no field of /embed_all"));
  }
}

TEST_F(TeiTest, NoInputHasMoreEdgesThanItsBudget) {
  const json edgewise = {{"seed", 1},
                         {"samples", 2},
                         {"max_edges", 100},
                         {"override", {{"kind", "ssa"}, {"windows", 2}, {"sigma", {0.4}}}}};
  v1::PredictRequest request = Pairs("cross_encoder", "the cat", {"a dog sat"});
  request.mutable_override()->set_kind("ssa");
  request.mutable_override()->set_windows(2);
  request.mutable_override()->add_sigma(0.4);
  request.mutable_budget()->set_max_edges(100);
  request.mutable_ensemble()->set_samples(2);
  const v1::Prediction expected = Predict(request).predictions(0);
  const json body = {
      {"model", "cross_encoder"}, {"query", "the cat"}, {"texts", {"a dog sat"}}, {"edgewise", edgewise}};
  const HttpReply reply = http_.Post("/rerank", body);
  ASSERT_EQ(reply.code, 200) << reply.body;
  EXPECT_EQ(json::parse(reply.body)[0]["score"].get<float>(), expected.values(0));
  const json report = json::parse(reply.field("X-Edgewise"));
  EXPECT_EQ(report["edges"], expected.edges().edges());
  EXPECT_LE(report["edges"], 100.0);
  EXPECT_EQ(report["seed"], 1);
}

TEST_F(TeiTest, RerankOfCohereHasItsShape) {
  const std::vector<std::string> texts = {"the dog is old!", "a cat", "the red house"};
  const json ranks = http_.Answer("/rerank", {{"model", "cross_encoder"}, {"query", "the dog"}, {"texts", texts}});
  for (const std::string path : {"/v1/rerank", "/v2/rerank"}) {
    json body = {{"model", "cross_encoder"}, {"query", "the dog"}, {"documents", texts}};
    const json answer = http_.Answer(path, body);
    EXPECT_FALSE(answer["id"].get<std::string>().empty());
    ASSERT_EQ(answer["results"].size(), 3u);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(answer["results"][i]["index"], ranks[i]["index"]);
      EXPECT_EQ(answer["results"][i]["relevance_score"], ranks[i]["score"]);
      EXPECT_FALSE(answer["results"][i].contains("document"));
      EXPECT_GT(answer["results"][i]["edgewise"]["edges"], 0.0);
    }
    EXPECT_EQ(answer["meta"]["billed_units"]["search_units"], 1);
    EXPECT_EQ(answer["usage"]["total_tokens"], answer["meta"]["tokens"]["input_tokens"]);
    // Documents may be objects, come back, and be the best ones only.
    body["documents"] = json::array();
    for (const std::string& text : texts) body["documents"].push_back({{"text", text}});
    body["return_documents"] = true;
    body["top_n"] = 2;
    const json best = http_.Answer(path, body)["results"];
    ASSERT_EQ(best.size(), 2u);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(best[i]["relevance_score"], ranks[i]["score"]);
      EXPECT_EQ(best[i]["document"]["text"], texts[best[i]["index"].get<int>()]);
    }
  }
  // A document that is too long is cut, as the documents of that API say.
  std::string text = "red";
  for (int i = 0; i < 50; ++i) text += " cat";
  http_.Answer("/v2/rerank", {{"model", "cross_encoder"}, {"query", "the dog"}, {"documents", {text}}});
}

TEST_F(TeiTest, CoheresErrorsHaveAMessage) {
  const auto message = [&](int code, const json& more, const std::string& without = "") {
    json body = {{"model", "cross_encoder"}, {"query", "the dog"}, {"documents", {"a"}}};
    body.update(more);
    if (!without.empty()) body.erase(without);
    const HttpReply reply = http_.Post("/v2/rerank", body);
    EXPECT_EQ(reply.code, code) << more << reply.body;
    return json::parse(reply.body).value("message", "");
  };
  EXPECT_THAT(message(404, {{"model", "nothing"}}), HasSubstr("nothing"));
  EXPECT_THAT(message(400, {{"model", "mean"}}), HasSubstr("reranks"));
  EXPECT_THAT(message(422, json::object(), "model"), HasSubstr("models fit: cross_encoder, "));
  EXPECT_THAT(message(400, json::object(), "query"), HasSubstr("query is missing"));
  EXPECT_THAT(message(400, json::object(), "documents"), HasSubstr("documents is missing"));
  EXPECT_THAT(message(400, {{"documents", "a"}}), HasSubstr("a list is expected"));
  EXPECT_THAT(message(400, {{"top_n", 0}}), HasSubstr("top_n is 0"));
  EXPECT_THAT(message(400, {{"max_tokens_per_doc", 3}}), HasSubstr("max_tokens_per_doc is 3; allowed are 24"));
  EXPECT_THAT(message(400, {{"rank_fields", {"title"}}}), HasSubstr("rank_fields"));
  EXPECT_THAT(message(400, {{"priority", 4}}), ::testing::StartsWith("priority is 4"));
  EXPECT_THAT(message(400, {{"edgewise", {{"priority", 4}}}}), ::testing::StartsWith("edgewise.priority is 4"));
  EXPECT_THAT(message(400, {{"relevant_spans", {{"mode", "x"}}}}), HasSubstr("relevant_spans"));
  message(200, {{"max_tokens_per_doc", 4096}, {"rank_fields", {"text"}}, {"priority", 0}});
}

class TeiAloneTest : public TeiFixture {
 protected:
  TeiAloneTest() : TeiFixture(OneOfEach()) {}
};

TEST_F(TeiAloneTest, WithoutANameTheOnlyModelOfTheTaskAnswers) {
  EXPECT_EQ(http_.Answer("/embed", {{"inputs", "the cat"}}),
            http_.Answer("/embed", {{"model", "encoder"}, {"inputs", "the cat"}}));
  EXPECT_EQ(http_.Answer("/rerank", {{"query", "a"}, {"texts", {"b", "c"}}}),
            http_.Answer("/models/ranker/rerank", {{"query", "a"}, {"texts", {"b", "c"}}}));
  EXPECT_EQ(http_.Answer("/predict", {{"inputs", {"the cat", "a dog"}}}),
            http_.Answer("/predict", {{"model", "classes"}, {"inputs", {"the cat", "a dog"}}}));
  EXPECT_EQ(http_.Answer("/v2/rerank", {{"query", "a"}, {"documents", {"b", "c"}}})["model"], "ranker");
  EXPECT_THAT(Refused(422, "/tokenize", {{"inputs", "the cat"}}), HasSubstr("3 models fit: classes, encoder, ranker"));
}

TEST_F(TeiAloneTest, TheRootAnswersAsItsModelDoes) {
  EXPECT_EQ(http_.Answer("/", {{"model", "encoder"}, {"inputs", "the cat"}}),
            http_.Answer("/embed", {{"inputs", "the cat"}}));
  EXPECT_EQ(http_.Answer("/models/classes", {{"inputs", "the cat"}, {"parameters", json::object()}}),
            http_.Answer("/predict", {{"model", "classes"}, {"inputs", "the cat"}}));
  EXPECT_EQ(http_.Answer("/", {{"query", "a"}, {"texts", {"b"}}}),
            http_.Answer("/rerank", {{"query", "a"}, {"texts", {"b"}}}));
  EXPECT_THAT(Refused(422, "/", {{"inputs", "the cat"}}), HasSubstr("3 models fit"));
}

}  // namespace
}  // namespace edgewise::server
