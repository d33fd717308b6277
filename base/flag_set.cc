#include "base/flag_set.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/did_you_mean.h"

namespace edgewise {
namespace {

// Columns of Help().
constexpr size_t kHelpColumn = 30;
constexpr size_t kMostColumns = 110;

// `words`, and `last` as one more, broken into lines that begin at kHelpColumn, as the first one does.
std::string Wrapped(const std::string& words, const std::string& last) {
  std::string text;
  size_t column = kHelpColumn;
  std::vector<std::string> pieces = absl::StrSplit(words, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  if (!last.empty()) pieces.push_back(last);
  for (const std::string& word : pieces) {
    if (column > kHelpColumn && column + 1 + word.size() > kMostColumns) {
      absl::StrAppend(&text, "\n", std::string(kHelpColumn, ' '));
      column = kHelpColumn;
    } else if (!text.empty()) {
      text += ' ';
      ++column;
    }
    text += word;
    column += word.size();
  }
  return text;
}

}  // namespace

void FlagSet::AddSwitch(const char* name, const char* help, bool* variable) {
  AddFlag({name, "", help, "", section_, ValueName<bool>().first,
           [variable](const std::string& text, std::string* error) { return ParseValue(text, variable, error); }});
}

void FlagSet::AddList(const char* name, const char* placeholder, const char* help, std::vector<std::string>* variable) {
  AddFlag({name, placeholder, help, "", section_, "",
           [variable](const std::string& text, std::string*) {
             variable->push_back(text);
             return true;
           },
           true});
}

FlagSet::Flag* FlagSet::Find(const std::string& name) {
  auto found = std::find_if(flags_.begin(), flags_.end(), [&](const Flag& flag) { return flag.name == name; });
  return found == flags_.end() ? nullptr : &*found;
}

absl::Status FlagSet::Unknown(const std::string& name) const {
  std::set<std::string> known;
  for (const Flag& one : flags_) known.insert(one.name);
  return absl::InvalidArgumentError(absl::StrCat("unknown flag --", name, DidYouMean(name, known, "--")));
}

absl::Status FlagSet::Set(Flag& flag, const std::string& given, const std::string& value) {
  std::string error;
  if (flag.parse(value, &error)) return absl::OkStatus();
  const std::string expected =
      flag.expected.empty() ? absl::StrReplaceAll(flag.placeholder, {{"|", ", "}}) : flag.expected;
  return absl::InvalidArgumentError(
      absl::StrCat(given, " is \"", value, "\"; expected ", expected, error.empty() ? "" : "; ", error));
}

absl::Status FlagSet::ReadEnvironment(const std::string& prefix, const char* const* environment,
                                      std::vector<std::string>* misspelt) {
  absl::Status first;
  std::set<std::string> known;
  for (const Flag& flag : flags_) known.insert(absl::AsciiStrToUpper(flag.name));
  for (; *environment != nullptr; ++environment) {
    const char* equals = std::strchr(*environment, '=');
    const std::string variable(*environment, equals == nullptr ? std::strlen(*environment) : equals - *environment);
    if (equals == nullptr || variable.compare(0, prefix.size(), prefix) != 0) continue;
    const std::string name = variable.substr(prefix.size()), value = equals + 1;
    if (!known.count(name)) {
      const std::string hint = DidYouMean(absl::AsciiStrToUpper(name), known, prefix);
      if (!hint.empty()) misspelt->push_back(absl::StrCat(variable, " is no flag", hint));
      continue;
    }
    Flag& flag = *Find(absl::AsciiStrToLower(name));
    if (flag.seen) continue;
    std::vector<std::string> values = {value};
    if (flag.list) values = absl::StrSplit(value, ',', absl::SkipEmpty());
    for (const std::string& one : values) first.Update(Set(flag, variable, one));
  }
  return first;
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
    std::string value = "true";
    if (flag == nullptr && equals == std::string::npos && name.compare(0, 2, "no") == 0) {
      flag = Find(name.substr(2));
      if (flag != nullptr && !flag->placeholder.empty()) flag = nullptr;
      value = "false";
    }
    if (flag == nullptr) return Unknown(name);
    const std::string given = "--" + flag->name;
    if (flag->seen && !flag->list && !last_wins_) {
      return absl::InvalidArgumentError(absl::StrCat(given, " is given twice"));
    }
    flag->seen = true;
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (!flag->placeholder.empty()) {
      if (i + 1 == arguments.size()) {
        return absl::InvalidArgumentError(absl::StrCat(given, " needs a value: ", flag->placeholder));
      }
      value = arguments[++i];
    }
    if (absl::Status status = Set(*flag, given, value); !status.ok()) return status;
  }
  return absl::OkStatus();
}

bool FlagSet::AsksForHelp(std::span<const std::string> arguments) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const std::string& argument) { return argument == "--help" || argument == "-h"; });
}

std::string FlagSet::Help() const {
  std::string text = absl::StrCat("Usage: ", usage_, "\n\n", summary_, "\n");
  std::string section;
  if (!flags_.empty() && flags_[0].section.empty()) text += "\n";
  for (const Flag& flag : flags_) {
    if (flag.section != section) {
      section = flag.section;
      absl::StrAppend(&text, "\n", section, ":\n");
    }
    std::string left = absl::StrCat("  --", flag.name, flag.placeholder.empty() ? "" : " ", flag.placeholder);
    if (left.size() >= kHelpColumn) {
      absl::StrAppend(&text, left, "\n");
      left.clear();
    }
    left.resize(kHelpColumn, ' ');
    const std::string initial = flag.initial.empty() ? "" : absl::StrCat("(default ", flag.initial, ")");
    absl::StrAppend(&text, left, Wrapped(flag.help, initial), "\n");
  }
  return text;
}

}  // namespace edgewise
