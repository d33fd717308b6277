// Parameters of infer calls. Clients send numbers as any kind of number, or as text.
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/did_you_mean.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "server/base/copies.h"
#include "server/http/json_in.h"
#include "server/http/json_scalar.h"
#include "server/oip/infer.h"

namespace edgewise::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using inference::InferParameter;

constexpr uint64_t kMostMicroseconds = uint64_t{24} * 3600 * 1000 * 1000;

// Where each parameter goes in a request.
constexpr std::pair<const char*, const char*> kParameters[] = {{"max_edges", "budget.max_edges"},
                                                               {"max_density", "budget.max_density"},
                                                               {"allow_degraded", "budget.allow_degraded"},
                                                               {"fit_deadline", "budget.fit_deadline"},
                                                               {"keep", "budget.keep"},
                                                               {"samples", "ensemble.samples"},
                                                               {"seed", "ensemble.seed"},
                                                               {"tolerance", "ensemble.tolerance"},
                                                               {"first_sample", "ensemble.first_sample"},
                                                               {"attention", "attention"},
                                                               {"profile", "profile"},
                                                               {"override", "override"},
                                                               {"dimensions", "outputs.dimensions"},
                                                               {"stride", "outputs.stride"},
                                                               {"priority", "priority"}};
// Those of each text.
constexpr const char* kOfTexts[] = {"truncate", "prompt_name"};

absl::Status Set(const std::string& field, const InferParameter& parameter, const FieldDescriptor& descriptor,
                 const RequestLimits& limits, Message& message) {
  const auto* oneof = descriptor.real_containing_oneof();
  REFUSE_IF(oneof != nullptr && message.GetReflection()->HasOneof(message, oneof), field, "is given beside another ",
            oneof->name(), "; choose one of them");
  const std::string wrong = SetScalar(descriptor, JsonDialect::kProtobuf, ScalarOf(parameter), limits, message);
  return wrong.empty() ? absl::OkStatus() : FieldError(field, wrong);
}

absl::Status SetOfTexts(const std::string& name, const InferParameter& parameter, const RequestLimits& limits,
                        const InferBounds& bounds, v1::PredictRequest& request) {
  v1::Sequence sequence;
  const FieldDescriptor* field = v1::Sequence::descriptor()->FindFieldByName(name);
  RETURN_IF_ERROR(Set("parameters." + name, parameter, *field, limits, sequence));
  const uint64_t copies = parameter.string_param().size() * static_cast<uint64_t>(request.inputs_size());
  RETURN_IF_ERROR(HoldCopies(copies, 0, bounds.message_limit, bounds.memory));
  for (v1::Input& input : *request.mutable_inputs()) {
    RETURN_IF_ERROR(bounds.wanted());
    input.mutable_sequence()->MergeFrom(sequence);
    if (input.has_second()) input.mutable_second()->set_truncate(input.sequence().truncate());
  }
  return absl::OkStatus();
}

absl::Status SetTimeout(const InferParameter& parameter, InferCall& call) {
  v1::Ensemble number;  // of 64 bits
  const FieldDescriptor* field = v1::Ensemble::descriptor()->FindFieldByName("seed");
  const bool integer = SetScalar(*field, JsonDialect::kProtobuf, ScalarOf(parameter), {}, number).empty();
  if (!integer || number.seed() > kMostMicroseconds) {
    return FieldError("parameters.timeout",
                      Instead(ScalarOf(parameter), /*shows_text=*/true,
                              absl::StrCat("an integer from 0 to ", kMostMicroseconds, ", of microseconds")));
  }
  if (number.seed() > 0) call.timeout = std::chrono::microseconds(number.seed());
  return absl::OkStatus();
}

absl::Status Unknown(const std::string& key) {
  REFUSE_IF(absl::StartsWith(key, "sequence_"), "parameters." + key, "is given; sequences of calls are not served");
  std::set<std::string> known = {"timeout"};
  for (const auto& [name, field] : kParameters) known.insert(name);
  known.insert(std::begin(kOfTexts), std::end(kOfTexts));
  return FieldError("parameters", absl::StrCat("has ", Quoted(key), DidYouMean(key, known), "; known are ",
                                               absl::StrJoin(known, ", ")));
}

}  // namespace

JsonScalar ScalarOf(const InferParameter& parameter) {
  switch (parameter.parameter_choice_case()) {
    case InferParameter::kBoolParam:
      return parameter.bool_param();
    case InferParameter::kInt64Param:
      return parameter.int64_param();
    case InferParameter::kDoubleParam:
      return parameter.double_param();
    case InferParameter::kUint64Param:
      return parameter.uint64_param();
    default:
      return parameter.string_param();
  }
}

absl::Status SetInferParameter(const std::string& key, const InferParameter& parameter, const RequestLimits& limits,
                               const InferBounds& bounds, InferCall& call) {
  MemoryHold& memory = bounds.memory;
  if (absl::StartsWith(key, "triton_") || key == "binary_data_output") return absl::OkStatus();  // of the client
  if (key == "timeout") return SetTimeout(parameter, call);
  RETURN_IF_ERROR(memory.Resize(memory.bytes() + parameter.string_param().size()));
  for (const char* name : kOfTexts) {
    if (key == name) return SetOfTexts(key, parameter, limits, bounds, call.request);
  }
  for (const auto& [name, path] : kParameters) {
    if (key != name) continue;
    const std::string field = "parameters." + key;
    if (key == "override") {
      REFUSE_IF(parameter.parameter_choice_case() != InferParameter::kStringParam, field,
                Instead(ScalarOf(parameter), /*shows_text=*/true, "a text with a JSON object"));
      return Within(field, ReadJson(parameter.string_param(), JsonDialect::kProtobuf, *call.request.mutable_override(),
                                    memory, limits));
    }
    Message* message = &call.request;
    std::string last = path;
    if (const size_t dot = last.find('.'); dot != std::string::npos) {
      const FieldDescriptor* outer = message->GetDescriptor()->FindFieldByName(last.substr(0, dot));
      message = message->GetReflection()->MutableMessage(message, outer);
      last.erase(0, dot + 1);
    }
    return Set(field, parameter, *message->GetDescriptor()->FindFieldByName(last), limits, *message);
  }
  return Unknown(key);
}

std::string ParameterOf(const std::string& field) {
  for (const char* name : kOfTexts) {
    if (absl::EndsWith(field, absl::StrCat(".", name))) return absl::StrCat("parameters.", name);
  }
  for (const auto& [name, path] : kParameters) {
    const bool inside = absl::StartsWith(field, absl::StrCat(path, "."));
    if (field == path || inside) {
      return absl::StrCat("parameters.", name, field.substr(std::string_view(path).size()));
    }
  }
  return "";
}

}  // namespace edgewise::server
