#include "client/cli/flag_set.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace edgewise::cli {
namespace {

// Levenshtein.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

void FlagSet::AddSwitch(const char* name, const char* help, bool* variable) {
  AddFlag({name, "", help, "", section_,
           [variable](const std::string& text, std::string* error) { return ParseValue(text, variable, error); }});
}

void FlagSet::AddList(const char* name, const char* placeholder, const char* help, std::vector<std::string>* variable) {
  Flag flag{name, placeholder, help, "", section_, [variable](const std::string& text, std::string*) {
              variable->push_back(text);
              return true;
            }};
  flag.repeated = true;
  AddFlag(std::move(flag));
}

FlagSet::Flag* FlagSet::Find(const std::string& name) {
  auto found = std::find_if(flags_.begin(), flags_.end(), [&](const Flag& flag) { return flag.name == name; });
  return found == flags_.end() ? nullptr : &*found;
}

std::string FlagSet::Nearest(const std::string& name) const {
  std::string best;
  size_t best_distance = 4;  // further away is no hint
  for (const Flag& flag : flags_) {
    const size_t distance = EditDistance(name, flag.name);
    if (distance < best_distance) {
      best = flag.name;
      best_distance = distance;
    }
  }
  return best;
}

absl::Status FlagSet::Parse(std::span<const std::string> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument.size() < 3 || argument.compare(0, 2, "--") != 0) {
      return absl::InvalidArgumentError(absl::StrCat("unexpected argument \"", argument, "\"; flags start with --"));
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    Flag* flag = Find(name);
    if (flag == nullptr) {
      const std::string nearest = Nearest(name);
      return absl::InvalidArgumentError(
          absl::StrCat("unknown flag --", name, nearest.empty() ? "" : "; did you mean --" + nearest + "?"));
    }
    if (flag->seen && !flag->repeated) return absl::InvalidArgumentError(absl::StrCat("--", name, " is given twice"));
    flag->seen = true;
    std::string value = "true";
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (!flag->placeholder.empty()) {
      if (i + 1 == arguments.size()) {
        return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value: ", flag->placeholder));
      }
      value = arguments[++i];
    }
    std::string error;
    if (!flag->parse(value, &error)) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, ": \"", value, "\" is no value of the form ",
                                                     flag->placeholder.empty() ? "true or false" : flag->placeholder,
                                                     error.empty() ? "" : "; ", error));
    }
  }
  return absl::OkStatus();
}

std::string FlagSet::Help() const {
  std::string text = absl::StrCat("Usage: edgewise ", usage_, "\n\n", summary_, "\n");
  std::string section;
  for (const Flag& flag : flags_) {
    if (flag.section != section) {
      section = flag.section;
      absl::StrAppend(&text, "\n", section, ":\n");
    }
    const std::string left = absl::StrCat("--", flag.name, flag.placeholder.empty() ? "" : " ", flag.placeholder);
    absl::StrAppendFormat(&text, "  %-28s%s%s", left, left.size() > 27 ? " " : "", flag.help);
    if (!flag.initial.empty()) absl::StrAppend(&text, " (default ", flag.initial, ")");
    text += "\n";
  }
  return text;
}

}  // namespace edgewise::cli
