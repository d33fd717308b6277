#include "model/checkpoint/hugging_face/other_formats.h"

#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace edgewise::hugging_face {
namespace {

struct Format {
  std::string_view begins, ends;  // of the names of its files, in lower case
  const char* remedy;
};

constexpr char kWeights[] = "model.safetensors", kIndex[] = "model.safetensors.index.json";

constexpr char kPickled[] =
    "which is pickled and not read; from_pretrained(FOLDER).save_pretrained(OTHER) of transformers writes "
    "model.safetensors";
constexpr char kMakers[] =
    "which is in a format of the model's makers and not read; the hub has most such models for transformers too, with "
    "config.json and model.safetensors";
constexpr char kOldLibrary[] =
    "which is of TensorFlow or JAX and not read; from_pretrained(FOLDER, from_tf=True or from_flax=True)"
    ".save_pretrained(OTHER) of transformers 4 writes model.safetensors";
constexpr char kCompiled[] =
    "which is a compiled model and not read; serve the folder that it was exported from, with config.json and "
    "model.safetensors";
constexpr char kAdapter[] =
    "which is of an adapter (PEFT) and not served alone; merge it into its base model, "
    "from_pretrained(FOLDER).merge_and_unload().save_pretrained(OTHER) of peft, and save the tokenizer there too";
constexpr char kCheckpoint[] =
    "which is pickled and not read; tools/convert.py converts the checkpoints that docs/convert.md describes";

// The most telling names come first.
constexpr Format kFormats[] = {
    {"0_transformer", "",
     "where older sentence-transformers put the model; move its files beside modules.json, and make its path there "
     "empty"},
    {"adapter_", "", kAdapter},
    {"", ".gguf",
     "which is GGUF, the format of llama.cpp, and not read; serve the folder that it was made from, with "
     "config.json and model.safetensors"},
    {"model.safetensors.index.", ".json",
     "which is the index of a variant of the weights; name it model.safetensors.index.json"},
    {"model-00001-of-", ".safetensors",
     "which is a part of the weights; copy model.safetensors.index.json, which names all parts, too"},
    {"model.", ".safetensors", "which is a variant of the weights; name it model.safetensors"},
    {"consolidated", "", kMakers},
    {"params.json", "", kMakers},
    {"pytorch_model", "", kPickled},
    {"tf_model", ".h5", kOldLibrary},
    {"flax_model", ".msgpack", kOldLibrary},
    {"", ".onnx", kCompiled},
    {"onnx", "", kCompiled},
    {"openvino_model", "", kCompiled},
    {"", ".safetensors", "which is not a name that is read; if these are the weights, name it model.safetensors"},
    {"ckpt", ".pt", kCheckpoint},
    {"model", ".pt", kCheckpoint},
    {"model", ".pth", kCheckpoint},
    {"", ".ckpt", kCheckpoint},
};

}  // namespace

std::string OtherFormat(const std::string& missing, const ModelFolder& files) {
  std::set<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(files.path(), error), end; !error && it != end; it.increment(error)) {
    names.insert(it->path().filename().string());
  }
  if (error) return "";
  if (names.empty()) return "; the folder is empty";
  if (missing == "config.json" && (names.contains(kWeights) || names.contains(kIndex))) {
    return "; the weights are there, so copy the config.json of the same model too";
  }
  for (const Format& format : kFormats) {
    for (const std::string& name : names) {
      const std::string lower = absl::AsciiStrToLower(name);
      const bool fits = lower.size() >= format.begins.size() + format.ends.size() && lower.starts_with(format.begins) &&
                        lower.ends_with(format.ends);
      if (fits) return absl::StrCat("; the folder has ", name, ", ", format.remedy);
    }
  }
  return "";
}

}  // namespace edgewise::hugging_face
