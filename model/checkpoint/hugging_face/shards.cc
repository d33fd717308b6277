#include "model/checkpoint/hugging_face/shards.h"

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/json_object.h"
#include "base/json_text.h"
#include "base/status_macros.h"
#include "model/checkpoint/hugging_face/other_formats.h"
#include "model/checkpoint/safetensors.h"

namespace edgewise::hugging_face {
namespace {

using nlohmann::json;

constexpr char kOne[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr uint64_t kMaxIndexBytes = 64 << 20;
constexpr size_t kMaxShards = 1000;
constexpr size_t kMaxPathBytes = 1024;

absl::Status In(const std::string& file, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(file, ": ", std::string(status.message())));
}

// A path below the folder, without the parts that stay where they are ("./a" is "a"). Empty: it leads out of the
// folder.
std::string PathBelow(const std::string& path) {
  if (path.empty() || path[0] == '/' || path.size() > kMaxPathBytes || absl::StrContains(path, '\\') ||
      absl::StrContains(path, '\0')) {
    return "";
  }
  std::vector<std::string> parts;
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (part == "..") return "";
    if (!part.empty() && part != ".") parts.emplace_back(part);
  }
  return absl::StrJoin(parts, "/");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Shards>> Shards::Open(ModelFolder& files, const std::string& named) {
  auto shards = std::make_unique<Shards>();
  const std::string path = PathBelow(named);
  if (absl::EndsWith(path, ".safetensors")) {
    RETURN_IF_ERROR(shards->Add(files, path));
  } else if (absl::EndsWith(path, ".safetensors.index.json")) {
    RETURN_IF_ERROR(shards->ReadIndex(files, path));
  } else if (!named.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: transformers_weights is ", ShowJson(json(named)),
                     "; the path of a .safetensors or .safetensors.index.json file in this folder is expected"));
  } else if (files.Has(kOne)) {
    RETURN_IF_ERROR(shards->Add(files, kOne));
  } else if (files.Has(kIndex)) {
    RETURN_IF_ERROR(shards->ReadIndex(files, kIndex));
  } else {
    return absl::NotFoundError(absl::StrCat(kOne, ": no such file, nor ", kIndex, OtherFormat(kOne, files)));
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

absl::Status Shards::ReadIndex(ModelFolder& files, const std::string& name) {
  const absl::StatusOr<std::string> text = files.Read(name, kMaxIndexBytes);
  if (!text.ok()) return In(name, text.status());
  const absl::StatusOr<json> index = ParsePythonJson(*text);
  if (!index.ok()) return In(name, index.status());
  if (!index->is_object() || !index->contains("weight_map") || !(*index)["weight_map"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": weight_map: an object is expected"));
  }
  std::set<std::string> paths;
  for (const auto& [tensor, file] : (*index)["weight_map"].items()) {
    const std::string path = file.is_string() ? PathBelow(file.get<std::string>()) : "";
    if (!absl::EndsWith(path, ".safetensors")) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": weight_map: ", ShowJson(json(tensor)), " is in ",
                                                     ShowJson(file),
                                                     "; the path of a .safetensors file in this folder is expected"));
    }
    paths.insert(path);
  }
  if (paths.empty() || paths.size() > kMaxShards) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": weight_map names ", paths.size(), " files; 1 to ", kMaxShards, " are expected"));
  }
  // As transformers does, which tensors there are is taken from the files.
  for (const std::string& path : paths) RETURN_IF_ERROR(Add(files, path));
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
