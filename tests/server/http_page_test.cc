// The page at /: its files and what is said of them. tests/ecosystem/test_page.py runs it in a browser.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>

#include <regex>
#include <set>

#include "server/http/page.h"
#include "tests/server/http_fixture.h"
#include "tests/support/paths.h"

namespace edgewise::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(HttpPageTest, ItsFilesAloneNeedNoToken) {
  TestFolder folder;
  folder.Write("tokens", "0123456789abcdef\n");
  ServerOptions options = HttpOptions();
  options.security.auth_token_file = folder.path() + "/tokens";
  HttpServerFixture http(options);
  for (const PageFile& file : PageFiles()) {
    const HttpReply reply = http.Get(file.path);
    EXPECT_EQ(reply.code, 200) << file.path;
    EXPECT_EQ(reply.body, file.bytes);
    EXPECT_EQ(reply.field("Content-Type"), file.type);
    const std::string policy = reply.field("Content-Security-Policy");
    EXPECT_THAT(policy, StartsWith("default-src 'none'; script-src 'self'; style-src 'self';"));
    EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
    EXPECT_EQ(reply.field("X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(reply.field("Referrer-Policy"), "no-referrer");
  }
  EXPECT_EQ(http.Get("/edgewise/v1/models").code, 401);
  for (const char* path : {"/page/", "/page", "/page/x.js", "/page/../page.cc", "/page/%2e%2e"}) {
    EXPECT_THAT(http.Get(path).code, ::testing::AnyOf(401, 404)) << path;
  }
}

TEST(HttpPageTest, AllThatItLoadsIsAmongItsFiles) {
  std::set<std::string> paths;
  for (const PageFile& file : PageFiles()) paths.insert(file.path);
  EXPECT_EQ(paths.count("/"), 1u);
  const std::regex reference(R"re((?:href|src)="([^"#]+)"|from "\./([^"]+)")re");
  size_t references = 0;
  for (const PageFile& file : PageFiles()) {
    const std::string text(file.bytes);
    for (std::sregex_iterator at(text.begin(), text.end(), reference), end; at != end; ++at, ++references) {
      const std::string found = (*at)[1].matched ? "/" + (*at)[1].str() : "/page/" + (*at)[2].str();
      EXPECT_EQ(paths.count(found), 1u) << file.path << " names " << found;
    }
    const std::string elsewhere =
        std::regex_replace(text, std::regex("http://www.w3.org/2000/svg"), std::string("the namespace"));
    for (const char* forbidden : {"http:", "https:", "url(", " style=\"", "<script>", "innerHTML", "localStorage",
                                  "sessionStorage", "document.cookie"}) {
      EXPECT_THAT(elsewhere, Not(HasSubstr(forbidden))) << file.path;
    }
  }
  EXPECT_GE(references, 10u);
}

TEST(HttpPageTest, ABrowserKeepsItsCopyWhileTheTagIsTheSame) {
  HttpServerFixture http;
  HttpClient client(http.port());
  const HttpReply first = client.Ask("GET", "/");
  const std::string tag = first.field("ETag");
  EXPECT_EQ(first.field("Cache-Control"), "no-cache");
  ASSERT_EQ(tag.size(), 34u) << tag;
  for (const std::string& sent : {tag, "W/" + tag, "\"other\", " + tag, std::string("*")}) {
    const HttpReply kept = client.Ask("GET", "/", "If-None-Match: " + sent + "\r\n");
    EXPECT_EQ(kept.code, 304) << sent;
    EXPECT_EQ(kept.body, "");
    EXPECT_EQ(kept.field("ETag"), tag);
    EXPECT_EQ(kept.field("Content-Length"), "");
  }
  EXPECT_EQ(client.Ask("GET", "/", "If-None-Match: \"other\"\r\n").body, first.body) << "on the same connection";
  EXPECT_EQ(client.Ask("GET", "/livez").field("Cache-Control"), "no-store");
  std::set<std::string> tags;
  for (const PageFile& file : PageFiles()) EXPECT_TRUE(tags.insert(file.tag).second) << file.path;
}

TEST(HttpPageTest, ItIsReadAndNothingElse) {
  HttpServerFixture http;
  HttpClient client(http.port());
  for (const PageFile& file : PageFiles()) {
    const HttpReply head = client.Ask("HEAD", file.path);
    EXPECT_EQ(head.code, 200);
    EXPECT_EQ(head.field("Content-Length"), std::to_string(file.bytes.size()));
  }
  const HttpReply posted = client.Post("/page/page.css", "{}");
  EXPECT_EQ(posted.code, 405);
  EXPECT_EQ(posted.field("Allow"), "GET, HEAD");
  HttpClient other(http.port());
  EXPECT_THAT(other.Ask("PUT", "/").field("Allow"), ::testing::AllOf(HasSubstr("GET, HEAD"), HasSubstr("POST")));
  // TEI's route at the same path.
  EXPECT_EQ(http.Post("/", {{"inputs", "x"}}).code, 422);
}

TEST(HttpPageTest, ModelsAreThoseOfGrpc) {
  HttpServerFixture http;
  const auto same = [](const std::string& text, const google::protobuf::Message& expected) {
    std::unique_ptr<google::protobuf::Message> found(expected.New());
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text, found.get()).ok()) << text;
    EXPECT_EQ(found->SerializeAsString(), expected.SerializeAsString());
  };
  v1::ListModelsResponse list;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(http.server.stub().ListModels(&context, {}, &list).ok());
  }
  same(http.Get("/edgewise/v1/models").body, list);
  v1::GetModelRequest request;
  request.set_model("lm-dense");
  v1::GetModelResponse model;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(http.server.stub().GetModel(&context, request, &model).ok());
  }
  same(http.Get("/edgewise/v1/models/lm-dense").body, model);
  same(http.Get("/edgewise/v1/models/lm-dense@1").body, model);
  EXPECT_EQ(http.Get("/edgewise/v1/models/lm-dense@7").code, 404);
  const HttpReply unknown = http.Get("/edgewise/v1/models/nothing");
  EXPECT_EQ(unknown.code, 404);
  EXPECT_EQ(json::parse(unknown.body)["status"], "NOT_FOUND");
}

std::vector<std::string> TokensOf(const v1::Prediction& prediction) {
  std::vector<std::string> tokens;
  for (const v1::InputToken& token : prediction.input_tokens()) tokens.push_back(token.token_bytes());
  return tokens;
}

v1::Prediction Predicted(TestServer& server, const char* model, const char* text) {
  v1::PredictRequest request;
  request.set_model(model);
  request.add_inputs()->mutable_sequence()->set_text(text);
  request.mutable_outputs()->set_input_tokens(true);
  request.mutable_outputs()->set_graph(true);
  v1::PredictResponse response;
  const grpc::Status status = server.Predict(request, response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.predictions_size() == 1 ? response.predictions(0) : v1::Prediction();
}

TEST(InputTokensTest, EveryPositionOfAGraphHasItsToken) {
  HttpServerFixture http(HttpOptions(tests::ExamplesFolder()));
  const v1::Prediction words = Predicted(http.server, "sentiment", "a zzzz film");
  EXPECT_EQ(TokensOf(words), (std::vector<std::string>{" a", "<unk>", " film"}));
  EXPECT_EQ(words.graph().layers(0).heads(0).row_offsets_size() - 1, words.input_tokens_size());
  EXPECT_EQ(TokensOf(Predicted(http.server, "long", "the delhi?")),
            (std::vector<std::string>{"<cls>", " the", " delhi?"}));
  EXPECT_EQ(TokensOf(Predicted(http.server, "shakespeare-ssa", "O!")), (std::vector<std::string>{"O", "!"}));
}

TEST(InputTokensTest, PadsAreMarkedAndRowsOfFeaturesAreCounted) {
  HttpServerFixture http;
  v1::PredictRequest request = SmallRequest();
  request.mutable_outputs()->set_input_tokens(true);
  v1::TokenIds& ids = *request.mutable_inputs(0)->mutable_sequence()->mutable_token_ids();
  ids.clear_values();
  for (const int id : {0, 3, 0, 5}) ids.add_values(id);
  v1::PredictResponse response;
  ASSERT_TRUE(http.server.Predict(request, response).ok());
  std::vector<std::pair<int, bool>> tokens;
  for (const v1::InputToken& token : response.predictions(0).input_tokens()) {
    tokens.emplace_back(token.token_id(), token.pad());
    EXPECT_EQ(token.token_bytes(), "");
  }
  EXPECT_EQ(tokens, (std::vector<std::pair<int, bool>>{{0, true}, {3, false}, {0, true}, {5, false}}));

  request.set_model("features");
  v1::Features& features = *request.mutable_inputs(0)->mutable_sequence()->mutable_features();
  features.set_rows(2);
  features.set_columns(6);
  for (int i = 0; i < 12; ++i) features.add_values(0.5f);
  ASSERT_TRUE(http.server.Predict(request, response).ok());
  EXPECT_EQ(response.predictions(0).input_tokens_size(), 2);
}

TEST(InputTokensTest, TheyCountInTheSizeOfAnAnswer) {
  ServerOptions options = HttpOptions(tests::ExamplesFolder());
  options.limits.max_response_bytes = 16384;
  HttpServerFixture http(options);
  std::string text = "the";
  for (int i = 0; i < 2000; ++i) text += " the";
  json request = {{"model", "long"}, {"inputs", {{{"sequence", {{"text", text}}}}}}};
  EXPECT_EQ(http.Post(kPredict, request).code, 200);
  request["outputs"] = {{"inputTokens", true}};
  EXPECT_EQ(http.Post(kPredict, request).code, 413);
}

TEST(InputTokensTest, AModelSaysWhichRowsItsAnswerIsReadFrom) {
  HttpServerFixture http;
  const auto pooling = [&](const std::string& model) {
    return json::parse(http.Get("/edgewise/v1/models/" + model).body)["model"].value("pooling", "");
  };
  EXPECT_EQ(pooling("sbm"), "mean");
  EXPECT_EQ(pooling("sbm-cls"), "first");
  EXPECT_EQ(pooling("lm-dense"), "last");
  EXPECT_EQ(pooling("sbm-tokens"), "");
}

}  // namespace
}  // namespace edgewise::server
