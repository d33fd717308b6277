#include "server/http/openapi.h"

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/field_error.h"
#include "http/bodies.pb.h"

namespace edgewise::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using nlohmann::ordered_json;

constexpr char kNumberText[] = "^-?[0-9]+$|^-?[0-9]*[.]?[0-9]+([eE][-+]?[0-9]+)?$|^NaN$|^-?Infinity$";

ordered_json Ref(const std::string& name) { return {{"$ref", absl::StrCat("#/components/schemas/", name)}}; }
ordered_json ListOf(ordered_json items) { return {{"type", "array"}, {"items", std::move(items)}}; }
// As ReadJson has it, null leaves a field out.
ordered_json OrNull(ordered_json schema) {
  if (schema.contains("type") && schema["type"].is_string()) {
    schema["type"] = {schema["type"], "null"};
    return schema;
  }
  return {{"anyOf", {std::move(schema), {{"type", "null"}}}}};
}

template <typename Integer>
ordered_json IntegerOf() {
  return {{"type", "integer"},
          {"minimum", std::numeric_limits<Integer>::min()},
          {"maximum", std::numeric_limits<Integer>::max()}};
}

// The schemas of messages, by the two ways in which ReadJson reads them (JsonDialect): those of the protocol by
// Protobuf's mapping, where their root is one; any in another body with names and numbers as they are.
class Schemas {
 public:
  ordered_json Of(const Descriptor& root) { return Of(root, root.file()->package() == "edgewise.v1"); }

  // The schema that a shape stands for (openapi.h).
  ordered_json OfShape(const ordered_json& shape) {
    if (shape.is_array()) return ListOf(OfShape(shape[0]));
    if (shape.is_object()) {
      ordered_json schema = {{"type", "object"}, {"required", ordered_json::array()}};
      for (const auto& [key, value] : shape.items()) {
        const bool optional = absl::EndsWith(key, "?");
        const std::string name = key.substr(0, key.size() - (optional ? 1 : 0));
        schema["properties"][name] = OfShape(value);
        if (!optional) schema["required"].push_back(name);
      }
      schema["additionalProperties"] = false;
      return schema;
    }
    const std::string name = shape.get<std::string>();
    const auto* message = google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(name);
    if (message != nullptr) return Of(*message);
    const std::vector<std::string> types = absl::StrSplit(name, '|');
    return {{"type", types.size() > 1 ? ordered_json(types) : ordered_json(name)}};
  }

  // The schema of errors, which the API writes with a field and without.
  ordered_json OfError(ErrorBody error) {
    const auto written = [&](const absl::Status& status) { return ordered_json::parse(error(status, 400)); };
    const ordered_json with = written(FieldError("model", "is missing"));
    return Like(with, written(absl::InvalidArgumentError("is wrong")));
  }

  ordered_json Take() { return std::move(schemas_); }

 private:
  ordered_json Of(const Descriptor& type, bool mapped) {
    if (&type == http::Json::descriptor()) return ordered_json::object();
    if (&type == http::Content::descriptor()) return OfContent();
    const std::string name = absl::StrCat(mapped ? "v1." : "", type.name());
    if (!schemas_.contains(name)) {
      schemas_[name] = nullptr;  // it may have itself in it
      ordered_json properties = ordered_json::object();
      for (int i = 0; i < type.field_count(); ++i) {
        const FieldDescriptor& field = *type.field(i);
        properties[mapped ? field.json_name() : field.name()] = OfField(field, mapped);
      }
      schemas_[name] = {{"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
    }
    return Ref(name);
  }

  ordered_json OfField(const FieldDescriptor& field, bool mapped) {
    ordered_json schema = field.message_type() != nullptr ? Of(*field.message_type(), mapped) : OfScalar(field, mapped);
    if (field.is_repeated()) schema = ListOf(std::move(schema));
    return schema.empty() ? schema : OrNull(std::move(schema));
  }

  static ordered_json OfScalar(const FieldDescriptor& field, bool mapped) {
    ordered_json number;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        return {{"type", "boolean"}};
      case FieldDescriptor::CPPTYPE_STRING:
        if (field.type() == FieldDescriptor::TYPE_BYTES) return {{"type", "string"}, {"contentEncoding", "base64"}};
        return {{"type", "string"}};
      case FieldDescriptor::CPPTYPE_ENUM: {
        ordered_json names = ordered_json::array();
        for (int i = 0; i < field.enum_type()->value_count(); ++i) names.push_back(field.enum_type()->value(i)->name());
        return {{"anyOf", {{{"type", "string"}, {"enum", names}}, IntegerOf<int32_t>()}}};
      }
      case FieldDescriptor::CPPTYPE_INT32:
        number = IntegerOf<int32_t>();
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        number = IntegerOf<uint32_t>();
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        number = IntegerOf<int64_t>();
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        number = IntegerOf<uint64_t>();
        break;
      default:
        number = {{"type", "number"}};
    }
    if (!mapped) return number;
    return {{"anyOf", {std::move(number), {{"type", "string"}, {"pattern", kNumberText}}}}};
  }

  ordered_json OfContent() {
    const ordered_json text = {{"type", "string"}}, ids = ListOf(IntegerOf<int32_t>());
    schemas_["Content"] = {
        {"anyOf", {text, ListOf(text), ids, ListOf(ids), ListOf(Of(*http::Part::descriptor(), false))}}};
    return Ref("Content");
  }

  static ordered_json Like(const ordered_json& with, const ordered_json& without) {
    if (!with.is_object()) return {{"type", with.is_number() ? "integer" : "string"}};
    ordered_json schema = {{"type", "object"}, {"required", ordered_json::array()}};
    for (const auto& [key, value] : with.items()) {
      const bool always = without.is_object() && without.contains(key);
      const ordered_json& other = always ? without[key] : value;
      // A value that is null without a field is a text at other times.
      const bool may_be_null = value.is_null() || other.is_null();
      schema["properties"][key] = may_be_null ? OrNull({{"type", "string"}}) : Like(value, other);
      if (always) schema["required"].push_back(key);
    }
    schema["additionalProperties"] = false;
    return schema;
  }

  ordered_json schemas_ = ordered_json::object();
};

// "/models/{}/embed" with names for what it leaves open.
std::string PathOf(const Route& route, ordered_json& parameters) {
  static constexpr const char* kNames[] = {"name", "version"};
  std::string path = route.path;
  for (size_t i = 0, at; (at = path.find("{}")) != std::string::npos; ++i) {
    const std::string name = i < std::size(kNames) ? kNames[i] : absl::StrCat("segment", i);
    path.replace(at, 2, absl::StrCat("{", name, "}"));
    parameters.push_back({{"name", name}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}});
  }
  return path;
}

ordered_json ContentOf(const std::string& type, ordered_json schema) {
  return {{type, {{"schema", std::move(schema)}}}};
}

ordered_json AnswerOf(const Route& route, Schemas& schemas) {
  if (route.answer.empty()) return ContentOf("application/json", ordered_json::object());
  const ordered_json shape = ordered_json::parse(route.answer);
  if (shape.is_string() && absl::StrContains(route.answer, "/")) {
    return {{shape.get<std::string>(), ordered_json::object()}};
  }
  ordered_json content = ContentOf("application/json", schemas.OfShape(shape));
  if (route.body != nullptr && route.body->FindFieldByName("stream") != nullptr) {
    content["text/event-stream"] = ordered_json::object();
  }
  return content;
}

ordered_json OperationOf(const Route& route, const ordered_json& parameters, Schemas& schemas) {
  const std::string name = absl::StrReplaceAll(route.path, {{"/", "_"}, {"{}", "NAME"}, {".", "_"}});
  ordered_json operation = {{"operationId", absl::StrCat(route.method, name)}};
  if (!parameters.empty()) operation["parameters"] = parameters;
  if (std::string_view(route.method) == "POST") {
    const ordered_json body = route.body != nullptr ? schemas.Of(*route.body) : ordered_json({{"type", "object"}});
    ordered_json content = ContentOf("application/json", body);
    if (route.binary) content["application/octet-stream"] = ordered_json::object();
    operation["requestBody"] = {{"required", true}, {"content", std::move(content)}};
  }
  const ordered_json error = {{"description", "refused, or failed"},
                              {"content", ContentOf("application/json", schemas.OfError(route.error))}};
  operation["responses"] = {
      {"200", {{"description", "the answer"}, {"content", AnswerOf(route, schemas)}}}, {"4XX", error}, {"5XX", error}};
  if (route.open) {  // health, which says the same with 503
    operation["security"] = ordered_json::array();
    operation["responses"]["503"] = operation["responses"]["200"];
  }
  return operation;
}

// The document, made when it is first asked for.
struct Made {
  absl::once_flag once;
  std::string document;
};

}  // namespace

std::string OpenApiOf(const Routes& routes) {
  Schemas schemas;
  ordered_json paths = ordered_json::object();
  for (const Route& route : routes.all()) {
    ordered_json parameters = ordered_json::array();
    const std::string path = PathOf(route, parameters);
    const std::string method = std::string_view(route.method) == "POST" ? "post" : "get";
    paths[path][method] = OperationOf(route, parameters, schemas);
  }
  const ordered_json document = {
      {"openapi", "3.1.0"},
      {"info", {{"title", "Edgewise"}, {"version", EDGEWISE_VERSION}}},
      {"security", {{{"token", ordered_json::array()}}, ordered_json::object()}},  // a server may ask for none
      {"paths", std::move(paths)},
      {"components",
       {{"schemas", schemas.Take()}, {"securitySchemes", {{"token", {{"type", "http"}, {"scheme", "bearer"}}}}}}}};
  return document.dump();
}

void AddOpenApiRoute(Routes& routes) {
  routes.Add({.method = "GET",
              .path = "/openapi.json",
              .error = PlainError,
              .apart = true,
              .answer = R"("object")",
              .serve = [made = std::make_shared<Made>(), &routes](const std::shared_ptr<Exchange>& exchange) {
                absl::call_once(made->once, [&] { made->document = OpenApiOf(routes); });
                exchange->AnswerJson(made->document);
              }});
}

}  // namespace edgewise::server
