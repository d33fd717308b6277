#include "client/cli/flag_set.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "text/did_you_mean.h"

namespace edgewise::cli {
void FlagSet::AddSwitch(const char* name, const char* help, bool* variable) {
  AddFlag({name, "", help, "", section_, ExpectedValue<bool>(),
           [variable](const std::string& text, std::string* error) { return ParseValue(text, variable, error); }});
}

void FlagSet::AddList(const char* name, const char* placeholder, const char* help, std::vector<std::string>* variable) {
  Flag flag{name, placeholder, help, "", section_, "", [variable](const std::string& text, std::string*) {
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
      std::set<std::string> known;
      for (const Flag& one : flags_) known.insert(one.name);
      return absl::InvalidArgumentError(absl::StrCat("unknown flag --", name, DidYouMean(name, known, "--")));
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
      return absl::InvalidArgumentError(absl::StrCat("--", name, " is \"", value, "\"; expected ",
                                                     flag->expected.empty() ? flag->placeholder : flag->expected,
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
