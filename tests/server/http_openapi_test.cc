// The document at /openapi.json: every route that the server counts, and every field that a body may have.
#include <gmock/gmock.h>

#include <regex>
#include <set>

#include "edgewise/v1/inference.pb.h"
#include "http/bodies.pb.h"
#include "tests/server/http_fixture.h"

namespace edgewise::server {
namespace {

using nlohmann::json;

class OpenApiTest : public ::testing::Test {
 protected:
  HttpServerFixture http_;
  const json document_ = json::parse(http_.Get("/openapi.json").body);
  const json& schemas() const { return document_["components"]["schemas"]; }
};

TEST_F(OpenApiTest, HasEveryRouteOfTheServer) {
  std::set<std::string> documented, served;
  for (const auto& [path, _] : document_["paths"].items()) {
    documented.insert(std::regex_replace(path, std::regex("\\{[^}]*\\}"), "{}"));
  }
  const std::string metrics = http_.server.HttpGet("/metrics");
  const std::regex series("edgewise_http_requests_total\\{[^\n]*route=\"([^\"]*)\"");
  for (auto match = std::sregex_iterator(metrics.begin(), metrics.end(), series); match != std::sregex_iterator();
       ++match) {
    served.insert((*match)[1]);
  }
  EXPECT_EQ(served.erase("_other"), 1u);
  EXPECT_GT(served.size(), 30u);
  EXPECT_EQ(documented, served);
}

TEST_F(OpenApiTest, HasEveryFieldOfABodyAndNoOther) {
  const auto expect_fields = [&](const google::protobuf::Descriptor& type, const std::string& name, bool camel) {
    std::set<std::string> expected, found;
    for (int i = 0; i < type.field_count(); ++i) {
      expected.insert(camel ? type.field(i)->json_name() : type.field(i)->name());
    }
    ASSERT_TRUE(schemas().contains(name)) << name;
    for (const auto& [field, _] : schemas()[name]["properties"].items()) found.insert(field);
    EXPECT_EQ(found, expected) << name;
    EXPECT_EQ(schemas()[name]["additionalProperties"], false) << name;
  };
  expect_fields(*http::OpenAiGeneration::descriptor(), "OpenAiGeneration", false);
  expect_fields(*http::Options::descriptor(), "Options", false);
  expect_fields(*v1::AttentionOverride::descriptor(), "AttentionOverride", false);
  expect_fields(*v1::PredictRequest::descriptor(), "v1.PredictRequest", true);
  expect_fields(*v1::PredictResponse::descriptor(), "v1.PredictResponse", true);
  expect_fields(*v1::AttentionOverride::descriptor(), "v1.AttentionOverride", true);
}

TEST_F(OpenApiTest, EveryReferenceLeadsToASchemaAndEveryBodyOfOursToOne) {
  const std::string text = document_.dump();
  const std::regex reference("\"#/components/schemas/([^\"]*)\"");
  for (auto match = std::sregex_iterator(text.begin(), text.end(), reference); match != std::sregex_iterator();
       ++match) {
    EXPECT_TRUE(schemas().contains((*match)[1].str())) << (*match)[1];
  }
  for (const char* path : {"/v1/completions", "/v1/embeddings", "/embed", "/tokenize", "/v2/rerank", kPredict}) {
    const json& operation = document_["paths"][path]["post"];
    const json& body = operation["requestBody"]["content"]["application/json"]["schema"];
    EXPECT_TRUE(body.contains("$ref")) << path << body;
    EXPECT_TRUE(operation["responses"].contains("200")) << path;
    EXPECT_EQ(document_["paths"]["/models/{name}/embed"]["post"]["parameters"][0]["name"], "name");
  }
  EXPECT_EQ(document_["openapi"], "3.1.0");
}

TEST_F(OpenApiTest, ErrorsAreAsTheyAreWritten) {
  const auto error_of = [&](const char* path) {
    return document_["paths"][path]["post"]["responses"]["4XX"]["content"]["application/json"]["schema"];
  };
  EXPECT_EQ(error_of("/v1/completions")["properties"]["error"]["required"], json({"message", "type", "param", "code"}));
  EXPECT_EQ(error_of("/embed")["required"], json({"error", "error_type"}));
  EXPECT_EQ(error_of(kPredict)["required"], json({"code", "status", "message"}));
  EXPECT_TRUE(error_of(kPredict)["properties"].contains("field"));
}

}  // namespace
}  // namespace edgewise::server
