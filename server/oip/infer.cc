#include "server/oip/infer.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/did_you_mean.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace edgewise::server {
namespace {

using inference::ModelInferRequest;

constexpr uint64_t kBytesOfInput = 512;  // of an input with two sequences, beside their contents
constexpr uint64_t kBytesOfNumber = 8;   // of four, in a list that may have twice its size

// The tensors of a call, by their names.
class Reader {
 public:
  Reader(std::span<const InputTensor> tensors, uint64_t most, const InferBounds& bounds, InferCall& call)
      : tensors_(tensors), most_(most), bounds_(bounds), call_(call) {}

  // Sets the contents of one sequence of each input. `suffix`: "" or "_pair". Without a tensor for it nothing is set.
  absl::Status ReadSequences(const std::string& suffix) {
    const InputTensor *text = Find("text" + suffix), *ids = Find("input_ids" + suffix);
    const InputTensor* mask = Find("attention_mask" + suffix);
    REFUSE_IF(text && ids, "input_ids" + suffix, "is given beside text", suffix, "; choose one of them");
    REFUSE_IF(mask && !ids, "attention_mask" + suffix, "is given without input_ids", suffix);
    if (text) return ReadTexts(*text, suffix);
    return ids ? ReadIds(*ids, mask, suffix) : absl::OkStatus();
  }

  absl::Status ReadRows() {
    const InputTensor *image = Find("image"), *features = Find("features");
    REFUSE_IF(image && features, "features", "is given beside image; choose one of them");
    if (features) return ReadFeatures(*features);
    if (!image) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::vector<std::string_view> files, ReadBytes(*image, most_));
    RETURN_IF_ERROR(Expect("image", files.size(), image->raw ? image->raw->size() : SizeOf(files)));
    for (size_t i = 0; i < files.size(); ++i) {
      RETURN_IF_ERROR(bounds_.wanted());
      Sequence(i, "").set_image(std::string(files[i]));
    }
    return absl::OkStatus();
  }

 private:
  const InputTensor* Find(const std::string& name) const {
    for (const InputTensor& tensor : tensors_) {
      if (tensor.head->name() == name) return &tensor;
    }
    return nullptr;
  }

  static uint64_t SizeOf(const std::vector<std::string_view>& elements) {
    uint64_t size = 0;
    for (const std::string_view element : elements) size += element.size();
    return size;
  }

  // `n` inputs, which are to take `bytes` beside their objects.
  absl::Status Expect(const std::string& name, uint64_t n, uint64_t bytes) {
    REFUSE_IF(n > most_, name + ".shape", "has ", n, " inputs; the server takes at most ", most_);
    const auto before = static_cast<uint64_t>(call_.request.inputs_size());
    REFUSE_IF(before > 0 && n != before, name + ".shape", "has ", n, " inputs; the tensor before it has ", before);
    MemoryHold& memory = bounds_.memory;
    RETURN_IF_ERROR(memory.Resize(memory.bytes() + bytes + (before > 0 ? 0 : n * kBytesOfInput)));
    while (static_cast<uint64_t>(call_.request.inputs_size()) < n) call_.request.add_inputs();
    return absl::OkStatus();
  }

  v1::Sequence& Sequence(uint64_t input, const std::string& suffix) {
    v1::Input& message = *call_.request.mutable_inputs(static_cast<int>(input));
    return suffix.empty() ? *message.mutable_sequence() : *message.mutable_second();
  }

  absl::Status ReadTexts(const InputTensor& tensor, const std::string& suffix) {
    const std::string name = "text" + suffix;
    ASSIGN_OR_RETURN(const std::vector<std::string_view> texts, ReadBytes(tensor, most_));
    RETURN_IF_ERROR(Expect(name, texts.size(), SizeOf(texts)));
    for (size_t i = 0; i < texts.size(); ++i) {
      RETURN_IF_ERROR(bounds_.wanted());
      const size_t invalid = FirstInvalidByte(texts[i]);
      REFUSE_IF(invalid < texts[i].size(), absl::StrCat(name, "[", i, "]"), "is no UTF-8, at byte ", invalid);
      Sequence(i, suffix).set_text(std::string(texts[i]));
    }
    return absl::OkStatus();
  }

  absl::Status ReadIds(const InputTensor& tensor, const InputTensor* mask_tensor, const std::string& suffix) {
    const std::string name = "input_ids" + suffix, mask_name = "attention_mask" + suffix;
    ASSIGN_OR_RETURN(const IntegerTensor ids, IntegerTensor::Read(tensor));
    std::optional<IntegerTensor> mask;
    if (mask_tensor) {
      ASSIGN_OR_RETURN(mask, IntegerTensor::Read(*mask_tensor));
      REFUSE_IF(mask->rows() != ids.rows() || mask->columns() != ids.columns(), mask_name + ".shape", "is [",
                mask->rows(), ", ", mask->columns(), "]; that of ", name, " is [", ids.rows(), ", ", ids.columns(),
                "]");
    }
    RETURN_IF_ERROR(Expect(name, ids.rows(), kBytesOfNumber * ids.rows() * ids.columns()));
    std::vector<uint64_t>& begins = suffix.empty() ? call_.begins : call_.pair_begins;
    if (suffix.empty()) call_.columns = ids.columns();
    for (uint64_t row = 0; row < ids.rows(); ++row) {
      RETURN_IF_ERROR(bounds_.wanted());
      uint64_t begin = 0, end = ids.columns();
      if (mask) RETURN_IF_ERROR(FindOnes(*mask, row, absl::StrCat(mask_name, "[", row, "]"), begin, end));
      auto& values = *Sequence(row, suffix).mutable_token_ids()->mutable_values();
      values.Reserve(static_cast<int>(end - begin));
      for (uint64_t column = begin; column < end; ++column) {
        const int64_t id = ids.At(row, column);
        REFUSE_IF(!std::in_range<int32_t>(id), absl::StrCat(name, "[", row, "][", column, "]"), "is ", id,
                  "; an id has 32 bits");
        values.Add(static_cast<int32_t>(id));
      }
      if (begin > 0) begins.resize(ids.rows());
      if (begin > 0) begins[row] = begin;
    }
    return absl::OkStatus();
  }

  // The ones of a row, which are neighbours: [begin, end).
  static absl::Status FindOnes(const IntegerTensor& mask, uint64_t row, const std::string& name, uint64_t& begin,
                               uint64_t& end) {
    begin = end = mask.columns();
    for (uint64_t column = 0; column < mask.columns(); ++column) {
      const int64_t value = mask.At(row, column);
      REFUSE_IF(value != 0 && value != 1, absl::StrCat(name, "[", column, "]"), "is ", value, "; allowed are 0 and 1");
      if (value == 1 && begin == mask.columns()) begin = column;
      if (value == 0 && begin < column) end = std::min(end, column);
      REFUSE_IF(value == 1 && end < column, absl::StrCat(name, "[", column, "]"),
                "is 1 behind a 0 within the text; only the positions before and behind it can be left out");
    }
    REFUSE_IF(begin == mask.columns(), name, "is 0 everywhere; at least one token is needed");
    return absl::OkStatus();
  }

  absl::Status ReadFeatures(const InputTensor& tensor) {
    ASSIGN_OR_RETURN(const FloatTensor floats, ReadFloats(tensor));
    const uint64_t values = floats.rows * floats.columns;
    RETURN_IF_ERROR(Expect("features", floats.n, kBytesOfNumber * floats.n * values));
    REFUSE_IF(values > INT32_MAX / sizeof(float), "features.shape", "has ", values, " numbers in an input");
    for (uint64_t i = 0; i < floats.n; ++i) {
      RETURN_IF_ERROR(bounds_.wanted());
      v1::Features& features = *Sequence(i, "").mutable_features();
      features.set_rows(static_cast<uint32_t>(floats.rows));
      features.set_columns(static_cast<uint32_t>(floats.columns));
      features.mutable_values()->Resize(static_cast<int>(values), 0.0F);
      std::memcpy(features.mutable_values()->mutable_data(), floats.bytes + i * values * sizeof(float),
                  values * sizeof(float));
    }
    return absl::OkStatus();
  }

  const std::span<const InputTensor> tensors_;
  const uint64_t most_;
  const InferBounds& bounds_;
  InferCall& call_;
};

template <typename Infos>
std::set<std::string> NamesOf(const Infos& infos) {
  std::set<std::string> names;
  for (const auto& info : infos) names.insert(info.name);
  return names;
}

// The tensors that are one sequence of each input: "text or input_ids".
std::string TensorsOfSequence(const Model& model, const std::string& suffix) {
  const bool texts = NamesOf(InputsOf(model)).count("text" + suffix) > 0;
  return absl::StrCat(texts ? absl::StrCat("text", suffix, " or ") : "", "input_ids", suffix);
}

// Refuses parameters of a tensor but those of the binary form, which HTTP reads, and those that change nothing.
template <typename Parameters>
absl::Status CheckParameters(const Parameters& parameters, const std::string& field) {
  for (const auto& [key, value] : parameters) {
    REFUSE_IF(absl::StartsWith(key, "shared_memory_"), field + ".parameters",
              "names shared memory, which is not served; send the elements in the message");
    REFUSE_IF(key == "classification", field + ".parameters",
              "has classification, which is not served; ask for probabilities");
    REFUSE_IF(key != "binary_data" && key != "binary_data_size" && key != "content_type", field + ".parameters", "has ",
              Quoted(key), ", which is not known");
  }
  return absl::OkStatus();
}

absl::Status CheckInputs(std::span<const InputTensor> tensors, const Model& model) {
  const std::set<std::string> known = NamesOf(InputsOf(model));
  std::set<std::string> given;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string field = absl::StrCat("inputs[", i, "]"), &name = tensors[i].head->name();
    REFUSE_IF(known.count(name) == 0, field + ".name", "is ", Quoted(name), DidYouMean(name, known),
              "; the model takes ", absl::StrJoin(known, ", "));
    REFUSE_IF(!given.insert(name).second, field + ".name", "is ", name, " twice");
    RETURN_IF_ERROR(CheckParameters(tensors[i].head->parameters(), name));
  }
  return absl::OkStatus();
}

absl::Status ReadOutputs(const ModelInferRequest& message, const Model& model, InferCall& call) {
  const std::vector<OutputTensorInfo> all = OutputsOf(model);
  if (message.outputs().empty()) {
    std::copy_if(all.begin(), all.end(), std::back_inserter(call.outputs),
                 [](const OutputTensorInfo& info) { return !info.by_name; });
    return absl::OkStatus();
  }
  for (int i = 0; i < message.outputs_size(); ++i) {
    const std::string field = absl::StrCat("outputs[", i, "]"), &name = message.outputs(i).name();
    const auto named = [&](const OutputTensorInfo& info) { return info.name == name; };
    const auto found = std::find_if(all.begin(), all.end(), named);
    if (found == all.end()) {
      const std::set<std::string> known = NamesOf(all);
      return FieldError(field + ".name", absl::StrCat("is ", Quoted(name), DidYouMean(name, known),
                                                      "; the model gives ", absl::StrJoin(known, ", ")));
    }
    REFUSE_IF(std::any_of(call.outputs.begin(), call.outputs.end(), named), field + ".name", "is ", name, " twice");
    RETURN_IF_ERROR(CheckParameters(message.outputs(i).parameters(), field));
    call.outputs.push_back(*found);
    if (found->by_name) call.request.mutable_outputs()->set_logits(true);
  }
  return absl::OkStatus();
}

// "inputs[3].sequence.token_ids[5]" is "input_ids[3][5]"; the tokens that were left out before it count.
std::string NameOfInput(const std::string& field, const InferCall& call) {
  static constexpr std::pair<const char*, const char*> kContents[] = {
      {".text", "text"}, {".token_ids", "input_ids"}, {".features", "features"}, {".image", "image"}};
  const size_t close = field.find(']') + 1;
  const std::string index = field.substr(6, close - 6);
  std::string rest = field.substr(close);
  const bool pair = absl::StartsWith(rest, ".second");
  if (pair || absl::StartsWith(rest, ".sequence")) rest.erase(0, pair ? 7 : 9);
  for (const auto& [ours, name] : kContents) {
    if (!absl::StartsWith(rest, ours)) continue;
    rest.erase(0, std::string_view(ours).size());
    const std::vector<uint64_t>& begins = pair ? call.pair_begins : call.begins;
    uint64_t input = 0, token = 0;
    if (!begins.empty() && rest.size() > 2 && absl::SimpleAtoi(index.substr(1, index.size() - 2), &input) &&
        absl::SimpleAtoi(rest.substr(1, rest.size() - 2), &token) && input < begins.size()) {
      rest = absl::StrCat("[", token + begins[input], "]");
    }
    return absl::StrCat(name, pair ? "_pair" : "", index, rest);
  }
  // A second that is wrong as a whole is a text beside ids.
  return absl::StrCat(pair && rest.empty() ? "text_pair" : "inputs", index, rest);
}

std::string NameOfField(const std::string& field, const InferCall& call) {
  if (std::string parameter = ParameterOf(field); !parameter.empty()) return parameter;
  if (absl::StartsWith(field, "inputs[")) return NameOfInput(field, call);
  return field == "model" ? "model_name" : field == "version" ? "model_version" : field == "request_id" ? "id" : field;
}

}  // namespace

absl::Status InferCall::Named(const absl::Status& status) const {
  return Renamed(status, [this](const std::string& field) { return NameOfField(field, *this); });
}

absl::Status ReadInfer(const Model& model, const RequestLimits& limits, const ModelInferRequest& message,
                       std::span<const InputTensor> tensors, const InferBounds& bounds, InferCall& call) {
  MemoryHold& memory = bounds.memory;
  RETURN_IF_ERROR(memory.Resize(memory.bytes() + 2 * message.id().size()));
  call.request.set_request_id(message.id());
  call.id = message.id();
  RETURN_IF_ERROR(CheckInputs(tensors, model));
  Reader reader(tensors, limits.max_inputs, bounds, call);
  RETURN_IF_ERROR(reader.ReadSequences(""));
  RETURN_IF_ERROR(reader.ReadSequences("_pair"));
  RETURN_IF_ERROR(reader.ReadRows());
  REFUSE_IF(call.request.inputs().empty(), "inputs", "has no tensor with inputs; the model takes ",
            absl::StrJoin(NamesOf(InputsOf(model)), ", "));
  const v1::Input& input = call.request.inputs(0);  // all have the same tensors
  REFUSE_IF(!input.has_sequence(), "inputs", "has the second of a pair alone; the first is ",
            TensorsOfSequence(model, ""));
  REFUSE_IF(model.config().task == ModelTask::kPairClassification && !input.has_second(), "inputs",
            "has the first of a pair alone; the second is ", TensorsOfSequence(model, "_pair"));
  RETURN_IF_ERROR(ReadOutputs(message, model, call));
  for (const auto& [key, parameter] : message.parameters()) {
    RETURN_IF_ERROR(SetInferParameter(key, parameter, limits, bounds, call));
  }
  return absl::OkStatus();
}

}  // namespace edgewise::server
