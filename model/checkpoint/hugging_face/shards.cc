#include "model/checkpoint/hugging_face/shards.h"

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/checkpoint/json_object.h"
#include "model/checkpoint/safetensors.h"
#include "text/status_macros.h"

namespace edgewise::hugging_face {
namespace {

using nlohmann::json;

constexpr char kOne[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr uint64_t kMaxIndexBytes = 64 << 20;
constexpr size_t kMaxShards = 1000;

absl::Status In(const std::string& file, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(file, ": ", std::string(status.message())));
}

absl::Status NoWeights(ModelFolder& files) {
  for (const char* pickled : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (!files.Has(pickled)) continue;
    return absl::NotFoundError(absl::StrCat(kOne, ": no such file, but ", pickled,
                                            ", which is pickled and not read; save_pretrained of a current "
                                            "transformers writes model.safetensors"));
  }
  return absl::NotFoundError(absl::StrCat(kOne, ": no such file, nor ", kIndex));
}

// A file in the folder itself.
bool IsShardName(const std::string& name) {
  return absl::EndsWith(name, ".safetensors") && !absl::StrContains(name, '/') && !absl::StartsWith(name, ".") &&
         !absl::StrContains(name, '\\') && name.find('\0') == std::string::npos && name.size() <= 255;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Shards>> Shards::Open(ModelFolder& files) {
  auto shards = std::make_unique<Shards>();
  if (files.Has(kOne)) {
    RETURN_IF_ERROR(shards->Add(files, kOne));
  } else if (files.Has(kIndex)) {
    RETURN_IF_ERROR(shards->ReadIndex(files));
  } else {
    return NoWeights(files);
  }
  return shards;
}

absl::Status Shards::Add(ModelFolder& files, const std::string& name) {
  absl::StatusOr<OpenFile> opened = files.Open(name);
  if (!opened.ok()) return In(name, opened.status());
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(*std::move(opened));
  if (!file.ok()) return In(name, file.status());
  for (const auto& [tensor, entry] : (*file)->tensors()) {
    if (tensors_.emplace(tensor, Tensor{&entry, file->get()}).second) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, ": tensor ", tensor, " is in another file too"));
  }
  files_.emplace_back(name, *std::move(file));
  return absl::OkStatus();
}

absl::Status Shards::ReadIndex(ModelFolder& files) {
  const absl::StatusOr<std::string> text = files.Read(kIndex, kMaxIndexBytes);
  if (!text.ok()) return In(kIndex, text.status());
  const absl::StatusOr<json> index = ParseStrictJson(*text);
  if (!index.ok()) return In(kIndex, index.status());
  if (!index->is_object() || !index->contains("weight_map") || !(*index)["weight_map"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(kIndex, ": weight_map: an object is expected"));
  }
  std::map<std::string, std::string> file_of;
  std::set<std::string> names;
  for (const auto& [tensor, file] : (*index)["weight_map"].items()) {
    if (!file.is_string() || !IsShardName(file.get<std::string>())) {
      return absl::InvalidArgumentError(absl::StrCat(kIndex, ": weight_map: ", ShowJson(json(tensor)), " is in ",
                                                     ShowJson(file),
                                                     "; the name of a .safetensors file in this folder is expected"));
    }
    names.insert(file_of[tensor] = file.get<std::string>());
  }
  if (names.empty() || names.size() > kMaxShards) {
    return absl::InvalidArgumentError(
        absl::StrCat(kIndex, ": weight_map names ", names.size(), " files; 1 to ", kMaxShards, " are expected"));
  }
  for (const std::string& name : names) {
    RETURN_IF_ERROR(Add(files, name));
    for (const auto& [tensor, entry] : files_.back().second->tensors()) {
      const auto found = file_of.find(tensor);
      if (found != file_of.end() && found->second == name) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": tensor ", tensor, " is not in the weight_map of ", kIndex, " for this file"));
    }
  }
  for (const auto& [tensor, file] : file_of) {
    if (tensors_.contains(tensor)) continue;
    return absl::InvalidArgumentError(absl::StrCat(file, ": tensor ", tensor, " of ", kIndex, " is missing"));
  }
  return absl::OkStatus();
}

absl::Status Shards::ReadData() {
  std::string hashes;
  for (const auto& [name, file] : files_) {
    if (absl::Status status = file->ReadData(); !status.ok()) return In(name, status);
    hashes += file->sha256();
  }
  if (files_.size() == 1) {
    sha256_ = hashes;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(sha256_, Sha256({hashes}));
  return absl::OkStatus();
}

}  // namespace edgewise::hugging_face
