#include "model/checkpoint/hugging_face/family.h"

#include "absl/strings/str_cat.h"

namespace edgewise::hugging_face {
namespace {

const Family* const kFamilies[] = {&kBert,  &kCamembert, &kDistilBert, &kGpt2,    &kLlama, &kMistral,   &kModernBert,
                                   &kMpnet, &kQwen2,     &kQwen3,      &kRoberta, &kVit,   &kXlmRoberta};

}  // namespace

const Family* FindFamily(std::string_view model_type) {
  for (const Family* family : kFamilies) {
    if (family->model_type == model_type) return family;
  }
  return nullptr;
}

std::string ClassName(const Family& family, const TaskHead& head) {
  return absl::StrCat(std::string(family.class_name), std::string(head.architecture));
}

std::string FamilyNames() {
  std::string names;
  for (const Family* family : kFamilies) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(family->model_type));
  }
  return names;
}

}  // namespace edgewise::hugging_face
