#include "client/cli/request/label_names.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/format.h"

namespace edgewise::cli {
namespace {

constexpr int kShown = 20;  // names in a message: a vocabulary has thousands

class LabelIds {
 public:
  explicit LabelIds(const v1::ModelInfo& model) : model_(model) {
    for (int id = 0; id < model.labels_size(); ++id) {
      const auto [found, added] = ids_.emplace(model.labels(id), id);
      if (!added) found->second = kTwice;
    }
  }

  absl::StatusOr<int32_t> Find(const std::string& field, const std::string& name) const {
    const auto found = ids_.find(name);
    if (found != ids_.end() && found->second != kTwice) return found->second;
    const std::string what = absl::StrCat(field, " is \"", name, "\"; ");
    if (found != ids_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(what, "the model has several labels of this name; give a number"));
    }
    if (ids_.empty())
      return absl::InvalidArgumentError(absl::StrCat(what, "the model's labels have no names; give a number"));
    std::string names;
    for (int id = 0; id < std::min(model_.labels_size(), kShown); ++id) {
      absl::StrAppend(&names, id == 0 ? "" : ", ", model_.labels(id));
    }
    if (model_.labels_size() > kShown) {
      absl::StrAppend(&names, ", ... (", WithCommas(static_cast<uint64_t>(model_.labels_size())), " in all)");
    }
    return absl::InvalidArgumentError(absl::StrCat(what, "the model has the labels ", names));
  }

 private:
  static constexpr int32_t kTwice = -1;
  const v1::ModelInfo& model_;
  std::map<std::string, int32_t> ids_;
};

absl::Status Resolve(const LabelIds& ids, LabelledInput& input) {
  if (!input.label_name.empty()) {
    const absl::StatusOr<int32_t> id = ids.Find("label", input.label_name);
    if (!id.ok()) return id.status();
    input.label = *id;
  }
  for (size_t i = 0; i < input.label_names.size(); ++i) {
    if (input.label_names[i].empty()) continue;
    const absl::StatusOr<int32_t> id = ids.Find(absl::StrCat("labels[", i, "]"), input.label_names[i]);
    if (!id.ok()) return id.status();
    (*input.labels)[i] = *id;
  }
  input.label_name.clear();
  input.label_names.clear();
  return absl::OkStatus();
}

}  // namespace

bool HasLabelNames(const std::vector<LabelledInput>& inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [](const LabelledInput& input) {
    return !input.label_name.empty() || !input.label_names.empty();
  });
}

absl::Status ResolveLabelNames(const v1::ModelInfo& model, std::vector<LabelledInput>& inputs) {
  if (!HasLabelNames(inputs)) return absl::OkStatus();
  const LabelIds ids(model);
  for (LabelledInput& input : inputs) {
    const absl::Status status = Resolve(ids, input);
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(input.place, ": ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace edgewise::cli
