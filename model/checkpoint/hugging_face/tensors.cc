#include "model/checkpoint/hugging_face/tensors.h"

#include <algorithm>
#include <map>
#include <new>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/did_you_mean.h"
#include "base/status_macros.h"
#include "model/checkpoint/hugging_face/stored_numbers.h"

namespace edgewise::hugging_face {
namespace {

constexpr std::string_view kParts[] = {".weight", ".bias"};

absl::Status Invalid(const std::string& message) {
  return absl::InvalidArgumentError(absl::StrCat("model.safetensors: ", message));
}

absl::Status InFile(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("model.safetensors: ", std::string(status.message())));
}

// The tensors of a checkpoint by their names without the base model's prefix, old names made new.
class Found {
 public:
  absl::Status Add(const Shards& shards, std::string_view prefix) {
    for (const auto& [name, tensor] : shards.tensors()) {
      std::string plain(absl::StripPrefix(name, std::string(prefix)));
      if (absl::EndsWith(plain, ".gamma")) plain.replace(plain.size() - 5, 5, "weight");
      if (absl::EndsWith(plain, ".beta")) plain.replace(plain.size() - 4, 4, "bias");
      const auto [place, added] = tensors_.emplace(plain, std::make_pair(name, tensor));
      if (!added) return Invalid(absl::StrCat("tensors ", place->second.first, " and ", name, " are the same weight"));
    }
    return absl::OkStatus();
  }

  // Null: there is none of this name.
  const std::pair<std::string, Shards::Tensor>* Find(const std::string& plain) const {
    const auto place = tensors_.find(plain);
    return place == tensors_.end() ? nullptr : &place->second;
  }

  const std::map<std::string, std::pair<std::string, Shards::Tensor>>& all() const { return tensors_; }

 private:
  std::map<std::string, std::pair<std::string, Shards::Tensor>> tensors_;
};

// Whether `theirs`, as the family writes it, names this tensor: with .weight or .bias or without, and perhaps with a
// star for the number of the layer.
bool Names(std::string_view theirs, const std::string& plain) {
  std::string starred = plain;
  for (size_t i = 0; i < starred.size(); ++i) {
    const size_t end = std::min(starred.find('.', i), starred.size());
    if (end > i && std::all_of(&starred[i], &starred[end], absl::ascii_isdigit)) {
      starred.replace(i, end - i, "*");
      break;
    }
    i = end;
  }
  if (plain == theirs || starred == theirs) return true;
  return std::any_of(std::begin(kParts), std::end(kParts), [&](std::string_view part) {
    const std::string whole = absl::StrCat(std::string(theirs), std::string(part));
    return plain == whole || starred == whole;
  });
}

bool Has(const TaskHead& head, const std::string& plain) {
  return std::any_of(head.tensors.begin(), head.tensors.end(),
                     [&](const TensorName& row) { return Names(row.theirs, plain); });
}

bool IsUnread(const Family& family, const std::string& plain) {
  return std::any_of(family.unread.begin(), family.unread.end(),
                     [&](std::string_view theirs) { return Names(theirs, plain); });
}

// Whether the folder may have this tensor, which is not read: of another task, a buffer, or one of `expected`, the
// names that this task has for its tensors.
bool IsKnown(const std::string& plain, const Folder& folder, const std::set<std::string>& expected) {
  const Family& family = *folder.family;
  if (Has(*folder.head, plain)) return expected.contains(plain);
  return std::any_of(family.heads.begin(), family.heads.end(),
                     [&](const TaskHead& head) { return Has(head, plain); }) ||
         IsUnread(family, plain);
}

// "encoder" of "encoder.layer".
std::string_view FirstPart(std::string_view name) { return name.substr(0, name.find('.')); }

// Whether a tensor is of the base model: it has a pooler under another task too.
bool IsOfBase(const Family& family, const std::string& plain) {
  return FirstPart(plain) == "pooler" ||
         std::any_of(family.tensors.begin(), family.tensors.end(),
                     [&](const TensorName& row) { return FirstPart(row.theirs) == FirstPart(plain); });
}

// Whether the files have every weight of the head, by one of its names. Those of a language model may be tied, and
// biases may be left out.
bool HasWeightsOf(const TaskHead& head, const Family& family, const Found& found) {
  const auto there = [&](const TensorName& row) {
    const std::string theirs(row.theirs);
    return found.Find(theirs) != nullptr || found.Find(absl::StrCat(theirs, std::string(kParts[0]))) != nullptr;
  };
  return family.causal || std::all_of(head.tensors.begin(), head.tensors.end(), [&](const TensorName& wanted) {
           return wanted.ours.ends_with(kParts[1]) ||
                  std::any_of(head.tensors.begin(), head.tensors.end(),
                              [&](const TensorName& row) { return row.ours == wanted.ours && there(row); });
         });
}

// Whether a head explains a tensor that is not of the base model: it reads it, or it belongs to the same part of the
// model and is known to be read by none of ours.
bool Explains(const TaskHead& head, const Family& family, const std::string& plain) {
  return Has(head, plain) ||
         (IsUnread(family, plain) && std::any_of(head.tensors.begin(), head.tensors.end(), [&](const TensorName& row) {
            return FirstPart(row.theirs) == FirstPart(plain);
          }));
}

// The name of the word embedding's weight.
std::string WordEmbedding(const Family& family) {
  const auto row = std::find_if(family.tensors.begin(), family.tensors.end(),
                                [](const TensorName& tensor) { return tensor.ours == "embeddings.word"; });
  return row == family.tensors.end() ? "" : absl::StrCat(std::string(row->theirs), ".weight");
}

// Ours of a tensor in the file. `shape`: of ours.
std::span<const float> Take(std::span<const float> values, const Source& source, const std::vector<int64_t>& shape,
                            std::deque<std::vector<float>>& converted) {
  const size_t size = values.size() / static_cast<size_t>(source.parts);
  if (!source.transposed || shape.size() < 2) return values.subspan(source.part * size, size);
  const auto rows = static_cast<size_t>(shape[0]), columns = static_cast<size_t>(shape[1]);
  std::vector<float>& turned = converted.emplace_back(size);
  constexpr size_t kTile = 32;  // rows, so that their ends stay in the cache
  for (size_t begin = 0; begin < rows; begin += kTile) {
    const size_t end = std::min(begin + kTile, rows);
    for (size_t column = 0; column < columns; ++column) {
      const float* const theirs = &values[(column * source.parts + source.part) * rows];
      for (size_t row = begin; row < end; ++row) turned[row * columns + column] = theirs[row];
    }
  }
  return turned;
}

// The shape in the file of a tensor that has other dimensions there: a convolution over patches, and rows in a batch of
// one. Empty: it has none.
std::vector<int64_t> PatchShape(const std::string& ours, const ModelConfig& config) {
  const ImagePatches& image = config.image;
  if (image.channels == 0) return {};
  if (ours == "embeddings.features.weight") {
    return {config.hidden_size, image.channels, image.patch_height, image.patch_width};
  }
  if (ours == "embeddings.position.weight") return {1, config.max_position_embeddings, config.hidden_size};
  if (ours == "embeddings.cls") return {1, 1, config.hidden_size};
  return {};
}

absl::Status CheckEntry(const std::string& name, const TensorEntry& entry, const std::vector<int64_t>& shape) {
  if (entry.shape != shape) {
    return Invalid(absl::StrCat("tensor ", name, " has shape ", ShowShape(entry.shape), "; config.json expects ",
                                ShowShape(shape)));
  }
  if (entry.dtype != "F64" && entry.dtype != "F32" && entry.dtype != "F16" && entry.dtype != "BF16") {
    return Invalid(absl::StrCat("tensor ", name, " has dtype ", entry.dtype, "; F64, F32, F16 and BF16 are read"));
  }
  return absl::OkStatus();
}

absl::Status Within(const std::string& name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(name, "/", std::string(status.message())));
}

// Opens the file of one dense layer, whose tensors are linear.weight and linear.bias.
absl::StatusOr<std::unique_ptr<SafetensorsFile>> OpenDense(ModelFolder& files, const std::string& name,
                                                           const DenseLayer& layer) {
  absl::StatusOr<OpenFile> opened = files.Open(name + "/model.safetensors");
  if (absl::IsNotFound(opened.status()) && files.Has(name + "/pytorch_model.bin")) {
    return absl::NotFoundError(
        "model.safetensors: no such file, but pytorch_model.bin, which is pickled and not read; save() of a current "
        "sentence-transformers writes model.safetensors");
  }
  if (!opened.ok()) return InFile(opened.status());
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(*std::move(opened));
  if (!file.ok()) return InFile(file.status());
  std::map<std::string, std::vector<int64_t>> expected = {{"linear.weight", {layer.out_features, layer.in_features}}};
  if (layer.bias) expected["linear.bias"] = {layer.out_features};
  for (const auto& [tensor, shape] : expected) {
    const auto found = (*file)->tensors().find(tensor);
    if (found == (*file)->tensors().end()) {
      return Invalid(absl::StrCat("tensor ", tensor, " ", ShowShape(shape), " is missing"));
    }
    RETURN_IF_ERROR(CheckEntry(tensor, found->second, shape));
  }
  for (const auto& [tensor, entry] : (*file)->tensors()) {
    if (!expected.contains(tensor)) return Invalid(absl::StrCat("tensor ", tensor, " is not part of Dense"));
  }
  return file;
}

absl::Status ReadDense(const Folder& folder, Tensors& read) {
  std::string hashes = read.sha256 = read.shards->sha256();
  for (size_t l = 0; l < read.dense.size(); ++l) {
    SafetensorsFile& file = *read.dense[l];
    const std::string& name = folder.dense_folders[l];
    if (const absl::Status status = file.ReadData(); !status.ok()) return Within(name, InFile(status));
    hashes += file.sha256();
    for (const auto& [tensor, entry] : file.tensors()) {
      const std::span<const float> values = StoredNumbers({&entry, &file}, read.converted);
      read.parameters += values.size();
      const std::string ours = absl::StrCat("dense.", l, std::string(absl::StripPrefix(tensor, "linear")));
      read.tensors[ours] = {entry.shape, values, absl::StrCat(name, "/", tensor)};
    }
  }
  if (read.dense.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(read.sha256, Sha256({hashes}));
  return absl::OkStatus();
}

}  // namespace

std::vector<int64_t> Source::FileShape(std::vector<int64_t> ours) const {
  if (!shape.empty()) return shape;
  ours[0] *= parts;
  if (transposed && ours.size() == 2) std::swap(ours[0], ours[1]);
  return ours;
}

std::vector<Source> SourcesOf(const std::string& ours, const Folder& folder) {
  // In layers.3.mlp.up.weight the layer is 3, the part .weight, and the stem has a star for the layer.
  std::string stem = ours, layer, part;
  if (absl::StartsWith(ours, "layers.")) {
    const size_t begin = strlen("layers."), end = ours.find('.', begin);
    layer = ours.substr(begin, end - begin);
    stem = absl::StrCat("layers.*", ours.substr(end));
  }
  const std::string whole = stem;
  for (const std::string_view ending : kParts) {
    if (!whole.ends_with(ending)) continue;
    part = ending;
    stem = whole.substr(0, whole.size() - ending.size());
    break;
  }
  // The output layer of a language model may be tied too.
  const bool both = folder.config.task == ModelTask::kCausalLm && folder.tied && stem == "embeddings.word";
  std::vector<Source> sources;
  for (const std::span<const TensorName> table : {folder.family->tensors, folder.head->tensors}) {
    for (const TensorName& row : table) {
      if (row.ours != stem && row.ours != whole && !(both && row.ours == "lm_head")) continue;
      if (stem == "classifier.output" && !folder.tied && row.theirs == WordEmbedding(*folder.family)) continue;
      std::string name = absl::StrReplaceAll(std::string(row.theirs), {{"*", layer}});
      if (row.ours != whole) name += part;
      sources.push_back({std::move(name), row.transposed, row.part, row.parts, PatchShape(ours, folder.config)});
    }
  }
  return sources;
}

absl::StatusOr<const TaskHead*> HeadOfWeights(ModelFolder& files, const Family& family, const std::string& weights) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Shards> shards, Shards::Open(files, weights));
  Found found;
  RETURN_IF_ERROR(found.Add(*shards, family.prefix));
  std::vector<const TaskHead*> fitting;
  std::map<std::string, int> explained;  // tensors that are not the base model's, by how many heads
  std::string served, left_over;
  const bool prefixed = std::any_of(shards->tensors().begin(), shards->tensors().end(), [&](const auto& tensor) {
    return absl::StartsWith(tensor.first, std::string(family.prefix));
  });
  for (const TaskHead& head : family.heads) {
    bool all = head.architecture != "Model" || !prefixed;
    for (const auto& [plain, tensor] : found.all()) {
      if (IsOfBase(family, plain)) continue;
      const bool explains = Explains(head, family, plain);
      explained[tensor.first] += explains;
      all &= explains;
    }
    if (all && HasWeightsOf(head, family, found)) fitting.push_back(&head);
    absl::StrAppend(&served, served.empty() ? "" : ", ", ClassName(family, head));
  }
  for (const auto& [name, heads] : explained) {
    if (heads == 0) left_over = name;
  }
  constexpr char kAdd[] = "; add the class, such as \"architectures\": [\"";
  if (fitting.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: architectures is missing, and the weights are those of none of ", served,
                     left_over.empty() ? absl::StrCat(kAdd, ClassName(family, family.heads.front()), "\"]")
                                       : absl::StrCat(", which have no tensor ", left_over)));
  }
  const TaskHead& first = *fitting.front();
  for (const TaskHead* other : fitting) {
    if (other->task == first.task && other->tensors.data() == first.tensors.data()) continue;
    return absl::InvalidArgumentError(absl::StrCat("config.json: architectures is missing, and the weights fit ",
                                                   ClassName(family, first), " and ", ClassName(family, *other), kAdd,
                                                   ClassName(family, first), "\"]"));
  }
  return &first;
}

absl::StatusOr<Tensors> ReadTensors(ModelFolder& files, const Folder& folder) {
  Tensors read;
  ASSIGN_OR_RETURN(read.shards, Shards::Open(files, folder.weights));
  Found found;
  RETURN_IF_ERROR(found.Add(*read.shards, folder.family->prefix));
  for (size_t l = 0; l < folder.config.dense.size(); ++l) {
    const std::string& name = folder.dense_folders[l];
    absl::StatusOr<std::unique_ptr<SafetensorsFile>> dense = OpenDense(files, name, folder.config.dense[l]);
    if (!dense.ok()) return Within(name, dense.status());
    read.dense.push_back(*std::move(dense));
  }

  // All is checked before any data is read.
  struct Place {
    std::vector<int64_t> shape;
    std::vector<Source> sources;  // those that are in the files
  };
  std::map<std::string, Place> places;  // of our tensors
  std::set<std::string> used, known;
  for (const auto& [ours, shape, optional] : ExpectedTensors(folder.config)) {
    if (absl::StartsWith(ours, "dense.")) continue;  // of files of their own
    Place& place = places[ours];
    place.shape = shape;
    const std::vector<Source> sources = SourcesOf(ours, folder);
    for (const Source& source : sources) {
      known.insert(source.name);
      const auto* tensor = found.Find(source.name);
      if (tensor == nullptr || (!folder.tied && !place.sources.empty())) continue;
      RETURN_IF_ERROR(CheckEntry(tensor->first, *tensor->second.entry, source.FileShape(shape)));
      place.sources.push_back(source);
      used.insert(source.name);
    }
    if (place.sources.empty()) {
      const Source& first = sources[0];
      const bool head = ours == "lm_head.weight" ||
                        (absl::StartsWith(ours, "classifier.") && !absl::StartsWith(first.name, "pooler."));
      return Invalid(absl::StrCat("tensor ", head ? "" : std::string(folder.family->prefix), first.name, " ",
                                  ShowShape(first.FileShape(shape)), " is missing; ", folder.architecture, " has it"));
    }
  }
  for (const auto& [plain, tensor] : found.all()) {
    if (used.contains(plain)) continue;
    if (!IsKnown(plain, folder, known)) {
      return Invalid(
          absl::StrCat("tensor ", tensor.first, " is not part of ", folder.architecture, DidYouMean(plain, known)));
    }
    read.skipped.push_back(tensor.first);
  }

  RETURN_IF_ERROR(read.shards->ReadData());
  std::map<std::string, std::span<const float>> values;  // of the names without prefix
  try {
    for (const auto& [ours, place] : places) {
      const Source& source = place.sources.back();
      const auto& [name, tensor] = *found.Find(source.name);
      std::span<const float>& first = values[source.name];
      if (first.empty()) {
        first = StoredNumbers(tensor, read.converted);
        read.parameters += first.size();
      }
      read.tensors[ours] = {place.shape, Take(first, source, place.shape, read.converted), name};
      for (const Source& same_weight : place.sources) {
        const auto& [other, tied] = *found.Find(same_weight.name);
        const std::span<const char> a = tensor.file->Bytes(*tensor.entry), b = tied.file->Bytes(*tied.entry);
        const bool same =
            tensor.entry->dtype == tied.entry->dtype && std::equal(a.begin(), a.end(), b.begin(), b.end());
        if (!same)
          return Invalid(absl::StrCat("tensors ", other, " and ", name,
                                      " differ; they are one weight (tied) unless config.json has "
                                      "\"tie_word_embeddings\": false"));
      }
    }
    RETURN_IF_ERROR(ReadDense(folder, read));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("model.safetensors: out of memory for its weights as float32");
  }
  return read;
}

}  // namespace edgewise::hugging_face
