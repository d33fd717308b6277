// The answer to an infer call.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/oip/infer.h"

namespace edgewise::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr uint64_t kBytesOfOutput = 1024;  // of its name, datatype and shape

// The elements of one output as bytes: of each row, or of each token of each row.
class OutputWriter {
 public:
  OutputWriter(const OutputTensorInfo& info, const InferCall& call, const v1::PredictResponse& response)
      : info_(info), call_(call), response_(response) {
    ForEachRow([&](const Message& row) {
      if (info_.field->is_repeated()) columns_ = std::max(columns_, Length(row));
      if (info_.field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) text_bytes_ += Text(row).size();
    });
    if (!info_.of_tokens) return;
    tokens_ = info_.of_masks ? 0 : call.columns;
    for (int i = 0; i < response.predictions_size(); ++i) {
      tokens_ = std::max(tokens_, Before(i) + static_cast<uint64_t>(response.predictions(i).tokens_size()));
    }
  }

  // The bytes of all elements; the largest number where there are more than that.
  uint64_t bytes() const {
    constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
    const uint64_t rows = static_cast<uint64_t>(response_.predictions_size()) * tokens_;
    const uint64_t size = std::max<uint64_t>(1, columns_) * ElementBytes();
    return rows > (kMost - text_bytes_) / size ? kMost : rows * size + text_bytes_;
  }

  void Write(inference::ModelInferResponse& answer) {
    auto& tensor = *answer.add_outputs();
    tensor.set_name(info_.name);
    tensor.set_datatype(DatatypeName(info_.type()));
    tensor.add_shape(response_.predictions_size());
    if (info_.of_tokens) tensor.add_shape(static_cast<int64_t>(tokens_));
    if (info_.field->is_repeated()) tensor.add_shape(static_cast<int64_t>(columns_));
    raw_ = answer.add_raw_output_contents();
    raw_->reserve(bytes());
    for (int i = 0; i < response_.predictions_size(); ++i) {
      const v1::Prediction& prediction = response_.predictions(i);
      if (!info_.of_tokens) {
        Append(info_.of_edges ? static_cast<const Message&>(prediction.edges()) : prediction);
        continue;
      }
      AppendNone(Before(i));
      for (const v1::TokenPrediction& token : prediction.tokens()) Append(token, Begin(i));
      AppendNone(tokens_ - Before(i) - static_cast<uint64_t>(prediction.tokens_size()));
    }
  }

 private:
  template <typename Use>
  void ForEachRow(Use use) const {
    for (const v1::Prediction& prediction : response_.predictions()) {
      if (info_.of_tokens) {
        for (const v1::TokenPrediction& token : prediction.tokens()) use(token);
      } else {
        use(info_.of_edges ? static_cast<const Message&>(prediction.edges()) : prediction);
      }
    }
  }

  // The column of input_ids that the first token of an input has.
  uint64_t Begin(int input) const {
    return static_cast<size_t>(input) < call_.begins.size() ? call_.begins[static_cast<size_t>(input)] : 0;
  }
  uint64_t Before(int input) const { return info_.of_masks ? 0 : Begin(input); }

  uint64_t Length(const Message& row) const {
    return static_cast<uint64_t>(row.GetReflection()->FieldSize(row, info_.field));
  }
  std::string Text(const Message& row) const { return row.GetReflection()->GetString(row, info_.field); }

  uint64_t ElementBytes() const {
    switch (info_.type()) {
      case inference::TYPE_BOOL:
        return 1;
      case inference::TYPE_FP64:
      case inference::TYPE_UINT64:
        return 8;
      default:
        return 4;  // of a text: its length
    }
  }

  template <typename Value>
  void AppendValue(Value value) {
    raw_->append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  void AppendNone(uint64_t tokens) {
    v1::TokenPrediction none;
    none.set_label_id(-1);
    for (uint64_t i = 0; i < tokens; ++i) Append(none);
  }

  // `begin`: what a position in the row counts from.
  void Append(const Message& row, uint64_t begin = 0) {
    const google::protobuf::Reflection& reflection = *row.GetReflection();
    const FieldDescriptor* field = info_.field;
    if (field->is_repeated()) {
      const uint64_t length = Length(row);
      for (uint64_t i = 0; i < length; ++i) {
        AppendValue(reflection.GetRepeatedFloat(row, field, static_cast<int>(i)));
      }
      raw_->append(sizeof(float) * (columns_ - length), '\0');
      return;
    }
    switch (info_.type()) {
      case inference::TYPE_BOOL:
        return AppendValue(reflection.GetBool(row, field));
      case inference::TYPE_FP64:
        return AppendValue(reflection.GetDouble(row, field));
      case inference::TYPE_UINT64:
        return AppendValue(reflection.GetUInt64(row, field));
      case inference::TYPE_UINT32:
        return AppendValue(reflection.GetUInt32(row, field) + (info_.of_masks ? static_cast<uint32_t>(begin) : 0));
      case inference::TYPE_STRING: {
        const std::string text = Text(row);
        AppendValue(static_cast<uint32_t>(text.size()));
        raw_->append(text);
        return;
      }
      case inference::TYPE_INT32: {
        // A pad has no label.
        const auto* token = info_.of_tokens ? static_cast<const v1::TokenPrediction*>(&row) : nullptr;
        return AppendValue(token != nullptr && token->pad() ? int32_t{-1} : reflection.GetInt32(row, field));
      }
      default:
        return;  // no output has another type
    }
  }

  const OutputTensorInfo& info_;
  const InferCall& call_;
  const v1::PredictResponse& response_;
  uint64_t columns_ = 0;  // of a list: the longest, which all are but those of pads
  uint64_t tokens_ = 1;   // of input_ids, or of the longest input
  uint64_t text_bytes_ = 0;
  std::string* raw_ = nullptr;
};

}  // namespace

absl::Status WriteInfer(const InferCall& call, const v1::PredictResponse& response, uint64_t most_bytes,
                        MemoryHold& memory, inference::ModelInferResponse& answer) {
  std::vector<OutputWriter> writers;
  uint64_t bytes = 0;
  for (const OutputTensorInfo& info : call.outputs) {
    const uint64_t more = writers.emplace_back(info, call, response).bytes();
    if (more > most_bytes || (bytes += more) > most_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the outputs, as long as the longest input, take more than ", most_bytes,
          " bytes, the most that an answer has; send inputs of similar length, fewer of them, or name fewer outputs"));
    }
  }
  RETURN_IF_ERROR(memory.Resize(memory.bytes() + bytes + kBytesOfOutput * writers.size()));
  answer.set_model_name(response.model());
  answer.set_model_version(absl::StrCat(response.version()));
  answer.set_id(call.id);
  auto& parameters = *answer.mutable_parameters();
  if (const uint64_t seed = response.seed(); std::in_range<int64_t>(seed)) {
    parameters["seed"].set_int64_param(static_cast<int64_t>(seed));
  } else {
    parameters["seed"].set_string_param(absl::StrCat(seed));  // not every client knows numbers as large
  }
  parameters["device"].set_string_param(response.device());
  parameters["degraded"].set_bool_param(response.has_degraded());
  parameters["queue_us"].set_int64_param(static_cast<int64_t>(response.timing().queue_us()));
  parameters["compute_us"].set_int64_param(static_cast<int64_t>(response.timing().compute_us()));
  for (OutputWriter& writer : writers) writer.Write(answer);
  return absl::OkStatus();
}

}  // namespace edgewise::server
