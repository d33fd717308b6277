#include "server/oip/tensors.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/field_error.h"
#include "base/status_macros.h"

namespace edgewise::server {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are little-endian, here too");

constexpr uint64_t kMostElements = uint64_t{1} << 40;
constexpr int kMostSizesShown = 8;

std::string NameOf(const InputTensor& tensor, const char* part) { return absl::StrCat(tensor.head->name(), ".", part); }

std::string ShapeOf(const InputTensor& tensor) {
  const auto& shape = tensor.head->shape();
  const auto end = shape.begin() + std::min(shape.size(), kMostSizesShown);
  return absl::StrCat("[", absl::StrJoin(shape.begin(), end, ", "), end == shape.end() ? "]" : ", ...]");
}

// The elements that the shape says, which has one of these ranks. `expected`: such a shape.
absl::StatusOr<uint64_t> CountOf(const InputTensor& tensor, int least_rank, int most_rank, const char* expected) {
  const auto& shape = tensor.head->shape();
  REFUSE_IF(shape.size() < least_rank || shape.size() > most_rank, NameOf(tensor, "shape"), "is ", ShapeOf(tensor),
            "; expected is ", expected);
  uint64_t count = 1;
  for (const int64_t size : shape) {
    REFUSE_IF(size < 1, NameOf(tensor, "shape"), "is ", ShapeOf(tensor), "; sizes are 1 and more");
    REFUSE_IF(static_cast<uint64_t>(size) > kMostElements / count, NameOf(tensor, "shape"), "is ", ShapeOf(tensor),
              ", which is too large");
    count *= static_cast<uint64_t>(size);
  }
  return count;
}

// `found`: elements in the field of contents that belongs to the datatype.
absl::Status CheckContents(const InputTensor& tensor, int found, uint64_t count) {
  const inference::InferTensorContents& contents = tensor.head->contents();
  const int64_t all = int64_t{contents.bool_contents_size()} + contents.int_contents_size() +
                      contents.int64_contents_size() + contents.uint_contents_size() + contents.uint64_contents_size() +
                      contents.fp32_contents_size() + contents.fp64_contents_size() + contents.bytes_contents_size();
  REFUSE_IF(all != found, NameOf(tensor, "contents"), "has elements of another datatype than ",
            tensor.head->datatype());
  REFUSE_IF(static_cast<uint64_t>(found) != count, NameOf(tensor, "data"), "has ", found, " elements; the shape ",
            ShapeOf(tensor), " has ", count);
  return absl::OkStatus();
}

absl::Status CheckRaw(const InputTensor& tensor, uint64_t count, uint64_t size) {
  REFUSE_IF(tensor.raw->size() != count * size, NameOf(tensor, "data"), "has ", tensor.raw->size(),
            " bytes; the shape ", ShapeOf(tensor), " of ", tensor.head->datatype(), " has ", count * size);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<InputTensor>> TensorsOf(const inference::ModelInferRequest& request) {
  REFUSE_IF(request.inputs_size() > kMaxTensors, "inputs", "has ", request.inputs_size(), " tensors; at most ",
            kMaxTensors, " are taken");
  const int raw = request.raw_input_contents_size();
  REFUSE_IF(raw > 0 && raw != request.inputs_size(), "raw_input_contents", "has ", raw, " entries for ",
            request.inputs_size(), " inputs; give one for each, or none");
  std::vector<InputTensor> tensors;
  for (int i = 0; i < request.inputs_size(); ++i) {
    InputTensor& tensor = tensors.emplace_back(InputTensor{.head = &request.inputs(i)});
    if (raw == 0) continue;
    REFUSE_IF(tensor.head->has_contents(), absl::StrCat("inputs[", i, "].contents"),
              "is given beside raw_input_contents; choose one of them");
    tensor.raw = request.raw_input_contents(i);
  }
  return tensors;
}

absl::StatusOr<IntegerTensor> IntegerTensor::Read(const InputTensor& tensor) {
  const std::string& datatype = tensor.head->datatype();
  IntegerTensor read;
  read.is_wide_ = datatype == "INT64";
  REFUSE_IF(!read.is_wide_ && datatype != "INT32", NameOf(tensor, "datatype"), "is ", Quoted(datatype),
            "; allowed are INT64 and INT32");
  ASSIGN_OR_RETURN(const uint64_t count, CountOf(tensor, 2, 2, "[inputs, tokens]"));
  if (tensor.raw) {
    RETURN_IF_ERROR(CheckRaw(tensor, count, read.is_wide_ ? sizeof(int64_t) : sizeof(int32_t)));
    read.raw_ = tensor.raw->data();
  } else {
    const inference::InferTensorContents& contents = tensor.head->contents();
    RETURN_IF_ERROR(
        CheckContents(tensor, read.is_wide_ ? contents.int64_contents_size() : contents.int_contents_size(), count));
    read.wide_ = contents.int64_contents().data();
    read.narrow_ = contents.int_contents().data();
  }
  read.rows_ = static_cast<uint64_t>(tensor.head->shape(0));
  read.columns_ = static_cast<uint64_t>(tensor.head->shape(1));
  return read;
}

int64_t IntegerTensor::At(uint64_t row, uint64_t column) const {
  const uint64_t i = row * columns_ + column;
  if (raw_ == nullptr) return is_wide_ ? wide_[i] : narrow_[i];
  int64_t wide;
  int32_t narrow;
  if (is_wide_) {
    std::memcpy(&wide, raw_ + i * sizeof wide, sizeof wide);
    return wide;
  }
  std::memcpy(&narrow, raw_ + i * sizeof narrow, sizeof narrow);
  return narrow;
}

absl::StatusOr<std::vector<std::string_view>> ReadBytes(const InputTensor& tensor, uint64_t most) {
  REFUSE_IF(tensor.head->datatype() != "BYTES", NameOf(tensor, "datatype"), "is ", Quoted(tensor.head->datatype()),
            "; allowed is BYTES");
  ASSIGN_OR_RETURN(const uint64_t count, CountOf(tensor, 1, 2, "[inputs] or [inputs, 1]"));
  REFUSE_IF(tensor.head->shape_size() == 2 && tensor.head->shape(1) != 1, NameOf(tensor, "shape"), "is ",
            ShapeOf(tensor), "; expected is [inputs] or [inputs, 1]");
  REFUSE_IF(count > most, NameOf(tensor, "shape"), "has ", count, " inputs; the server takes at most ", most);
  std::vector<std::string_view> elements;
  if (!tensor.raw) {
    const auto& contents = tensor.head->contents().bytes_contents();
    RETURN_IF_ERROR(CheckContents(tensor, contents.size(), count));
    elements.assign(contents.begin(), contents.end());
    return elements;
  }
  std::string_view rest = *tensor.raw;
  while (elements.size() < count) {
    uint32_t length = 0;
    const bool has_length = rest.size() >= sizeof length;
    if (has_length) std::memcpy(&length, rest.data(), sizeof length);
    REFUSE_IF(!has_length || length > rest.size() - sizeof length, NameOf(tensor, "data"), "ends within element ",
              elements.size(), "; each is its length in 4 bytes and as many bytes");
    elements.push_back(rest.substr(sizeof length, length));
    rest.remove_prefix(sizeof length + length);
  }
  REFUSE_IF(!rest.empty(), NameOf(tensor, "data"), "has ", rest.size(), " bytes behind the ", count,
            " elements of the shape");
  return elements;
}

absl::StatusOr<FloatTensor> ReadFloats(const InputTensor& tensor) {
  REFUSE_IF(tensor.head->datatype() != "FP32", NameOf(tensor, "datatype"), "is ", Quoted(tensor.head->datatype()),
            "; allowed is FP32");
  ASSIGN_OR_RETURN(const uint64_t count, CountOf(tensor, 3, 3, "[inputs, rows, features]"));
  const auto& contents = tensor.head->contents().fp32_contents();
  RETURN_IF_ERROR(tensor.raw ? CheckRaw(tensor, count, sizeof(float)) : CheckContents(tensor, contents.size(), count));
  const auto size = [&](int i) { return static_cast<uint64_t>(tensor.head->shape(i)); };
  return FloatTensor{size(0), size(1), size(2),
                     tensor.raw ? tensor.raw->data() : reinterpret_cast<const char*>(contents.data())};
}

}  // namespace edgewise::server
