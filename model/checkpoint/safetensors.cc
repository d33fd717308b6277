#include "model/checkpoint/safetensors.h"

#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_object.h"
#include "base/json_text.h"
#include "model/checkpoint/model_folder.h"

namespace edgewise {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr uint64_t kMaxHeaderBytes = 10 << 20;
constexpr size_t kMaxTensors = 10000;
constexpr size_t kMaxDimensions = 8;
constexpr size_t kMaxNameBytes = 256;
constexpr uint64_t kLengthBytes = 8;

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

// Bits of one element; 0: the dtype is unknown.
uint64_t DtypeBits(const std::string& dtype) {
  static const std::map<std::string, uint64_t> kBits = {
      {"BOOL", 8},  {"U8", 8},   {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"U16", 16}, {"I16", 16}, {"F16", 16},
      {"BF16", 16}, {"U32", 32}, {"I32", 32}, {"F32", 32},    {"U64", 64},    {"I64", 64}, {"F64", 64}};
  const auto found = kBits.find(dtype);
  return found == kBits.end() ? 0 : found->second;
}

// Whether a value is a non-negative integer written in plain digits.
bool IsCount(const json& value) { return value.is_number_unsigned() && value.get<uint64_t>() <= (uint64_t{1} << 62); }

absl::StatusOr<TensorEntry> ParseEntry(const std::string& name, const json& value) {
  const std::string who = absl::StrCat("tensor ", name);
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    return Invalid(absl::StrCat(who, ": dtype, shape and data_offsets are expected, and nothing else"));
  }
  TensorEntry entry;
  const json& dtype = value["dtype"];
  if (!dtype.is_string() || DtypeBits(dtype.get<std::string>()) == 0) {
    return Invalid(absl::StrCat(who, ": unknown dtype ", ShowJson(dtype)));
  }
  entry.dtype = dtype.get<std::string>();
  const json& shape = value["shape"];
  if (!shape.is_array() || shape.size() > kMaxDimensions) {
    return Invalid(
        absl::StrCat(who, ": shape ", ShowJson(shape), "; a list of at most ", kMaxDimensions, " sizes is expected"));
  }
  uint64_t bytes = DtypeBits(entry.dtype) / 8;
  bool overflow = false;
  for (const json& size : shape) {
    if (!IsCount(size)) return Invalid(absl::StrCat(who, ": shape ", ShowJson(shape), " has a size that is no count"));
    entry.shape.push_back(static_cast<int64_t>(size.get<uint64_t>()));
  }
  // Sizes of zero come last, so that they cannot hide an overflow.
  std::vector<int64_t> ordered = entry.shape;
  std::sort(ordered.begin(), ordered.end(), std::greater<>());
  for (int64_t size : ordered) {
    if (size != 0) overflow |= __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes);
  }
  if (overflow) return Invalid(absl::StrCat(who, ": shape ", ShowShape(entry.shape), " is too large"));
  if (!ordered.empty() && ordered.back() == 0) bytes = 0;
  const json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !IsCount(offsets[0]) || !IsCount(offsets[1]) ||
      offsets[1].get<uint64_t>() < offsets[0].get<uint64_t>()) {
    return Invalid(absl::StrCat(who, ": data_offsets ", ShowJson(offsets), "; [begin, end] is expected"));
  }
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  if (entry.end - entry.begin != bytes) {
    return Invalid(absl::StrCat(who, ": ", entry.dtype, " ", ShowShape(entry.shape), " takes ", bytes,
                                " bytes; data_offsets hold ", entry.end - entry.begin));
  }
  return entry;
}

bool IsPlainName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < 0x7F && c != '/' && c != '\\'; });
}

}  // namespace

std::string ShowShape(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

absl::StatusOr<std::string> Sha256(std::initializer_list<absl::string_view> parts) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int digest_size = 0;
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  bool hashed = context != nullptr && EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1;
  for (const absl::string_view part : parts) {
    hashed = hashed && EVP_DigestUpdate(context, part.data(), part.size()) == 1;
  }
  hashed = hashed && EVP_DigestFinal_ex(context, digest, &digest_size) == 1;
  EVP_MD_CTX_free(context);
  if (!hashed) return absl::InternalError("SHA-256 failed");
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), digest_size));
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  absl::StatusOr<OpenFile> opened = OpenFile::Open(path);
  if (!opened.ok()) return opened.status();
  return Open(*std::move(opened));
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(OpenFile opened) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile(std::move(opened)));
  const absl::Status status = file->ReadHeader();
  if (!status.ok()) return status;
  return file;
}

absl::Status SafetensorsFile::ReadHeader() {
  const uint64_t size = file_.bytes();
  if (size < kLengthBytes) return Invalid(absl::StrCat("has ", size, " bytes; a header length of 8 bytes is expected"));
  uint64_t length = 0;
  absl::Status status = file_.Read(reinterpret_cast<char*>(&length), kLengthBytes, 0);
  if (!status.ok()) return status;
  if (length > size - kLengthBytes) {
    return Invalid(absl::StrCat("header length is ", length, "; the file has ", size, " bytes"));
  }
  if (length > kMaxHeaderBytes) {
    return Invalid(absl::StrCat("header length is ", length, "; at most ", kMaxHeaderBytes, " is allowed"));
  }
  header_.resize(length);
  status = file_.Read(header_.data(), length, kLengthBytes);
  if (!status.ok()) return status;
  status = ParseHeader(header_);
  if (!status.ok()) return status;
  const uint64_t present = size - kLengthBytes - length;
  if (present != data_bytes_) {
    return Invalid(absl::StrCat("the header describes ", data_bytes_, " bytes of data; the file has ", present));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFile::ParseHeader(const std::string& header) {
  if (header.empty() || header[0] != '{') return Invalid("the header does not begin with {");
  absl::StatusOr<json> parsed = ParseStrictJson(header);
  if (!parsed.ok()) return Invalid(absl::StrCat("header: ", std::string(parsed.status().message())));
  if (parsed->size() > kMaxTensors) {
    return Invalid(absl::StrCat("has ", parsed->size(), " tensors; at most ", kMaxTensors, " are allowed"));
  }
  std::vector<std::pair<uint64_t, std::string>> order;  // by offset
  for (const auto& [name, value] : parsed->items()) {
    if (name == "__metadata__") {
      const bool strings = value.is_object() &&
                           std::all_of(value.begin(), value.end(), [](const json& entry) { return entry.is_string(); });
      if (!strings) return Invalid("__metadata__: an object of strings is expected");
      continue;
    }
    if (!IsPlainName(name)) {
      return Invalid(absl::StrCat("tensor name ", ShowJson(json(name)), "; at most ", kMaxNameBytes,
                                  " printable ASCII characters without slashes are allowed"));
    }
    absl::StatusOr<TensorEntry> entry = ParseEntry(name, value);
    if (!entry.ok()) return entry.status();
    order.emplace_back(entry->begin, name);
    tensors_[name] = *std::move(entry);
  }
  std::sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return std::make_pair(a.first, tensors_[a.second].end) < std::make_pair(b.first, tensors_[b.second].end);
  });
  uint64_t position = 0;
  for (const auto& [begin, name] : order) {
    if (begin != position) {
      return Invalid(
          absl::StrCat("tensor ", name, " begins at byte ", begin, " of the data; ", position, " is expected"));
    }
    position = tensors_[name].end;
  }
  data_bytes_ = position;
  return absl::OkStatus();
}

absl::Status SafetensorsFile::ReadData() {
  try {
    data_.resize(data_bytes_);
  } catch (const std::exception&) {
    return absl::ResourceExhaustedError(absl::StrCat("out of memory: ", data_bytes_, " bytes of weights"));
  }
  const absl::Status status = file_.Read(data_.data(), data_bytes_, kLengthBytes + header_.size());
  if (!status.ok()) return status;
  const uint64_t length = header_.size();
  const absl::string_view length_bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  absl::StatusOr<std::string> hash = Sha256({length_bytes, header_, {data_.data(), data_.size()}});
  if (!hash.ok()) return hash.status();
  sha256_ = *std::move(hash);
  return absl::OkStatus();
}

const float* SafetensorsFile::Values(const std::string& name) const {
  return reinterpret_cast<const float*>(data_.data() + tensors_.at(name).begin);
}

}  // namespace edgewise
