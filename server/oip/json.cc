#include "server/oip/json.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "http/bodies.pb.h"
#include "server/http/json_in.h"
#include "server/http/json_scalar.h"
#include "server/oip/infer.h"

namespace edgewise::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using inference::InferParameter;
using inference::InferTensorContents;
using nlohmann::json;
using Parameters = google::protobuf::Map<std::string, InferParameter>;

constexpr uint64_t kBytesOfElement = 16;     // of eight, in a list that may have twice its size
constexpr uint64_t kBytesOfParameter = 512;  // read, and set

// The field of contents for the elements of a datatype that a model takes; null: none takes it.
const FieldDescriptor* ContentsOf(const std::string& datatype) {
  const char* name = datatype == "INT64"   ? "int64_contents"
                     : datatype == "INT32" ? "int_contents"
                     : datatype == "FP32"  ? "fp32_contents"
                     : datatype == "BYTES" ? "bytes_contents"
                                           : nullptr;
  return name != nullptr ? InferTensorContents::descriptor()->FindFieldByName(name) : nullptr;
}

// Adds the elements of a list, flat or nested as the shape says, to the contents of a tensor.
class DataReader final : public nlohmann::json_sax<json> {
 public:
  using Shape = google::protobuf::RepeatedField<int64_t>;
  DataReader(const FieldDescriptor& field, const Shape& shape, InferTensorContents& contents)
      : field_(field), shape_(shape), contents_(contents) {}

  const std::string& wrong() const { return wrong_; }

  bool null() override { return Fail("null"); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(json::number_integer_t value) override { return Add(int64_t{value}); }
  bool number_unsigned(json::number_unsigned_t value) override { return Add(uint64_t{value}); }
  bool number_float(json::number_float_t value, const std::string&) override { return Add(value); }
  bool string(std::string& value) override {
    if (field_.type() != FieldDescriptor::TYPE_BYTES) return Fail("a string");
    if (!Count()) return false;
    contents_.add_bytes_contents(std::move(value));
    return true;
  }
  bool binary(json::binary_t&) override { return false; }
  bool start_object(size_t) override { return Fail("an object"); }
  bool key(std::string&) override { return false; }
  bool end_object() override { return false; }
  bool start_array(size_t) override {
    if (!sizes_.empty()) ++sizes_.back();
    sizes_.push_back(0);
    return true;
  }
  bool end_array() override {
    const int64_t size = sizes_.back();
    sizes_.pop_back();
    const auto at = static_cast<int>(sizes_.size());
    const bool flat = at == 0 && depth_ < 2;  // the elements are counted later
    return flat || (at < shape_.size() && size == shape_.Get(at)) || FailShape();
  }
  bool parse_error(size_t, const std::string&, const json::exception&) override { return Fail("no JSON"); }

 private:
  bool Add(JsonScalar value) {
    const std::string wrong = field_.type() == FieldDescriptor::TYPE_BYTES
                                  ? Instead(value, /*shows_text=*/false, "a string")
                                  : SetScalar(field_, JsonDialect::kPlain, std::move(value), {}, contents_);
    if (!wrong.empty()) wrong_ = absl::StrCat("has an element that ", wrong);
    return wrong.empty() && Count();
  }
  // Counts one element; all are equally deep: at 1, or as the shape has sizes.
  bool Count() {
    const auto depth = static_cast<int>(sizes_.size());
    if (depth_ == 0) depth_ = depth;
    ++sizes_.back();
    return (depth == depth_ && (depth == 1 || depth == shape_.size())) || FailShape();
  }
  bool FailShape() {
    wrong_ = "nests otherwise than its shape says; give lists of that shape, or a flat one";
    return false;
  }
  bool Fail(const char* what) {
    wrong_ = absl::StrCat("has ", what, " among its elements");
    return false;
  }

  const FieldDescriptor& field_;
  const Shape& shape_;
  InferTensorContents& contents_;
  std::vector<int64_t> sizes_;  // of the lists that are open, so far
  int depth_ = 0;               // of the elements; 0: there is none yet
  std::string wrong_;
};

absl::Status ReadData(const http::OipInput& input, const std::string& field, MemoryHold& memory,
                      inference::ModelInferRequest::InferInputTensor& tensor) {
  const FieldDescriptor* contents = ContentsOf(tensor.datatype());
  if (contents == nullptr) return absl::OkStatus();  // no model takes it
  const std::string& text = input.data().text();
  REFUSE_IF(text.empty() || text[0] != '[', field + ".data", "is ", KindOfJson(text), "; expected a list");
  const auto elements = static_cast<uint64_t>(std::count(text.begin(), text.end(), ',') + 1);
  RETURN_IF_ERROR(memory.Resize(memory.bytes() + text.size() + kBytesOfElement * elements));
  DataReader reader(*contents, tensor.shape(), *tensor.mutable_contents());
  REFUSE_IF(!json::sax_parse(text, &reader), field + ".data", reader.wrong());
  return absl::OkStatus();
}

absl::Status ReadParameters(const http::Json& given, const std::string& field, MemoryHold& memory,
                            Parameters& parameters) {
  const std::string& text = given.text();
  if (text.empty()) return absl::OkStatus();
  REFUSE_IF(text[0] != '{', field, "is ", KindOfJson(text), "; expected an object");
  const auto values = std::count_if(text.begin(), text.end(), [](char c) { return c == ',' || c == '[' || c == '{'; });
  RETURN_IF_ERROR(
      memory.Resize(memory.bytes() + 2 * text.size() + kBytesOfParameter * static_cast<uint64_t>(values + 1)));
  const json object = json::parse(text, nullptr, false);
  for (const auto& [key, value] : object.items()) {
    InferParameter& parameter = parameters[key];
    if (value.is_boolean()) {
      parameter.set_bool_param(value.get<bool>());
    } else if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) {
      parameter.set_uint64_param(value.get<uint64_t>());
    } else if (value.is_number_integer()) {
      parameter.set_int64_param(value.get<int64_t>());
    } else if (value.is_number()) {
      parameter.set_double_param(value.get<double>());
    } else if (value.is_string()) {
      parameter.set_string_param(value.get<std::string>());
    } else {
      const char* const kind = value.is_array() ? "a list" : value.is_null() ? "null" : "an object";
      return FieldError(field, absl::StrCat("has ", Quoted(key), ", which is ", kind,
                                            "; expected a string, a number, true or false"));
    }
  }
  return absl::OkStatus();
}

// Sets `flag` where the parameters have one of this name.
absl::Status ReadFlag(const Parameters& parameters, const char* key, const std::string& field, bool& flag) {
  const auto found = parameters.find(key);
  if (found == parameters.end()) return absl::OkStatus();
  REFUSE_IF(found->second.parameter_choice_case() != InferParameter::kBoolParam, absl::StrCat(field, ".", key),
            Instead(ScalarOf(found->second), /*shows_text=*/true, "true or false"));
  flag = found->second.bool_param();
  return absl::OkStatus();
}

// A number, or a text with one; it is looked at later.
std::string VersionOf(http::Json& given) {
  std::string text = std::move(*given.mutable_text());
  if (text == "null") return "";
  if (text.size() < 2 || text.front() != '"') return text;
  text.pop_back();
  text.erase(0, 1);
  return text;
}

// Takes the bytes of a tensor in binary form off the front of `tail`.
absl::Status TakeBinary(const InferParameter& size, const std::string& field, std::string_view& tail,
                        InputTensor& tensor) {
  const bool fits = size.parameter_choice_case() == InferParameter::kInt64Param && size.int64_param() >= 0 &&
                    static_cast<uint64_t>(size.int64_param()) <= tail.size();
  REFUSE_IF(!fits, field + ".parameters.binary_data_size", "is not within the ", tail.size(),
            " bytes that are left behind the JSON (Inference-Header-Content-Length)");
  tensor.raw = tail.substr(0, static_cast<size_t>(size.int64_param()));
  tail.remove_prefix(tensor.raw->size());
  return absl::OkStatus();
}

absl::Status ReadInput(http::OipInput& input, const std::string& field, MemoryHold& memory, std::string_view& tail,
                       inference::ModelInferRequest::InferInputTensor& tensor, InputTensor& read) {
  read.head = &tensor;
  tensor.set_name(std::move(*input.mutable_name()));
  tensor.set_datatype(std::move(*input.mutable_datatype()));
  tensor.mutable_shape()->Swap(input.mutable_shape());
  RETURN_IF_ERROR(ReadParameters(input.parameters(), field + ".parameters", memory, *tensor.mutable_parameters()));
  const auto size = tensor.parameters().find("binary_data_size");
  const bool binary = size != tensor.parameters().end();
  REFUSE_IF(binary == input.has_data(), field,
            binary ? "has data and binary_data_size; give one of them"
                   : "has no data, and no binary_data_size among its parameters");
  return binary ? TakeBinary(size->second, field, tail, read) : ReadData(input, field, memory, tensor);
}

template <typename Value>
Value At(const std::string& raw, size_t i) {
  Value value;
  std::memcpy(&value, raw.data() + i * sizeof value, sizeof value);
  return value;
}

// The elements of an output: raw bytes that WriteInfer made.
void WriteData(const std::string& datatype, const std::string& raw, JsonOut& json) {
  json.BeginArray();
  if (datatype == "BYTES") {
    for (size_t at = 0; at < raw.size();) {
      uint32_t length;
      std::memcpy(&length, raw.data() + at, sizeof length);
      json.String(std::string_view(raw).substr(at + sizeof length, length));
      at += sizeof length + length;
    }
  } else {
    const size_t size = datatype == "BOOL" ? 1 : datatype == "FP64" || datatype == "UINT64" ? 8 : 4;
    for (size_t i = 0; i < raw.size() / size; ++i) {
      if (datatype == "FP32") json.Number(At<float>(raw, i));
      if (datatype == "FP64") json.Number(At<double>(raw, i));
      if (datatype == "INT32") json.Integer(At<int32_t>(raw, i));
      if (datatype == "UINT32") json.Unsigned(At<uint32_t>(raw, i));
      if (datatype == "UINT64") json.Unsigned(At<uint64_t>(raw, i));
      if (datatype == "BOOL") json.Bool(raw[i] != 0);
    }
  }
  json.EndArray();
}

void WriteParameter(const std::string& key, const InferParameter& parameter, JsonOut& json) {
  json.Key(key);
  const auto choice = parameter.parameter_choice_case();
  choice == InferParameter::kBoolParam     ? json.Bool(parameter.bool_param())
  : choice == InferParameter::kInt64Param  ? json.Integer(parameter.int64_param())
  : choice == InferParameter::kStringParam ? json.String(parameter.string_param())
  : choice == InferParameter::kDoubleParam ? json.Number(parameter.double_param())
                                           : json.Unsigned(parameter.uint64_param());
}

}  // namespace

absl::Status ReadInferBody(const std::string& body, const std::string& json_length, MemoryHold& memory,
                           InferBody& read) {
  uint64_t length = body.size();
  const bool digits = std::all_of(json_length.begin(), json_length.end(), absl::ascii_isdigit);
  REFUSE_IF(!json_length.empty() && (!digits || !absl::SimpleAtoi(json_length, &length) || length > body.size()),
            "Inference-Header-Content-Length", "is ", Quoted(json_length), "; the body has ", body.size(), " bytes");
  http::OipInfer parsed;
  RETURN_IF_ERROR(ReadJson(std::string_view(body).substr(0, length), JsonDialect::kPlain, parsed, memory));
  std::string_view tail = std::string_view(body).substr(length);
  inference::ModelInferRequest& message = read.message;
  message.set_model_name(std::move(*parsed.mutable_model_name()));
  message.set_model_version(VersionOf(*parsed.mutable_model_version()));
  message.set_id(std::move(*parsed.mutable_id()));
  RETURN_IF_ERROR(ReadParameters(parsed.parameters(), "parameters", memory, *message.mutable_parameters()));
  RETURN_IF_ERROR(ReadFlag(message.parameters(), "binary_data_output", "parameters", read.binary));
  REFUSE_IF(parsed.inputs_size() > kMaxTensors, "inputs", "has ", parsed.inputs_size(), " tensors; at most ",
            kMaxTensors, " are taken");
  message.mutable_inputs()->Reserve(parsed.inputs_size());
  for (int i = 0; i < parsed.inputs_size(); ++i) {
    RETURN_IF_ERROR(ReadInput(*parsed.mutable_inputs(i), absl::StrCat("inputs[", i, "]"), memory, tail,
                              *message.add_inputs(), read.tensors.emplace_back()));
  }
  REFUSE_IF(!tail.empty(), "inputs", "leave ", tail.size(),
            " bytes behind the JSON; their binary_data_size must add up");
  for (int i = 0; i < parsed.outputs_size(); ++i) {
    inference::ModelInferRequest::InferRequestedOutputTensor& output = *message.add_outputs();
    output.set_name(parsed.outputs(i).name());
    const std::string field = absl::StrCat("outputs[", i, "].parameters");
    RETURN_IF_ERROR(ReadParameters(parsed.outputs(i).parameters(), field, memory, *output.mutable_parameters()));
    bool binary = read.binary;
    RETURN_IF_ERROR(ReadFlag(output.parameters(), "binary_data", field, binary));
    read.binary_outputs.push_back(binary);
  }
  return absl::OkStatus();
}

absl::StatusOr<HttpAnswer> WriteInferAnswer(const InferBody& body, const inference::ModelInferResponse& answer,
                                            WorkBounds& bounds) {
  std::string tail;
  JsonOut json(bounds);
  json.BeginObject().Key("model_name").String(answer.model_name());
  json.Key("model_version").String(answer.model_version());
  if (!answer.id().empty()) json.Key("id").String(answer.id());
  json.Key("parameters").BeginObject();
  for (const auto& [key, parameter] : answer.parameters()) WriteParameter(key, parameter, json);
  json.EndObject().Key("outputs").BeginArray();
  for (int i = 0; i < answer.outputs_size(); ++i) {
    const auto& output = answer.outputs(i);
    const std::string& raw = answer.raw_output_contents(i);
    const auto at = static_cast<size_t>(i);  // those that were asked for are in their order
    const bool binary = at < body.binary_outputs.size() ? body.binary_outputs[at] : body.binary;
    json.BeginObject().Key("name").String(output.name()).Key("datatype").String(output.datatype());
    json.Key("shape").BeginArray();
    for (const int64_t size : output.shape()) json.Integer(size);
    json.EndArray();
    if (binary) {
      json.Key("parameters").BeginObject().Key("binary_data_size").Unsigned(raw.size()).EndObject();
      tail += raw;
    } else {
      WriteData(output.datatype(), raw, json.Key("data"));
    }
    json.EndObject();
  }
  json.EndArray().EndObject();
  if (!json.status().ok()) return json.status();
  HttpAnswer http{.body = json.Take()};
  if (tail.empty()) return http;
  http.type = "application/octet-stream";
  http.fields.emplace_back("Inference-Header-Content-Length", absl::StrCat(http.body.size()));
  http.body += tail;
  return http;
}

}  // namespace edgewise::server
