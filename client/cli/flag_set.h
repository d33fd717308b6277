// The flags of one command, bound to variables. Abseil's value syntax (--name=value, --name value, durations as 5s),
// but per command and without process-wide state: absl::ParseCommandLine() knows one set of flags for the whole program
// and exits by itself with status 1, where ours for wrong usage is 2.
#ifndef EDGEWISE_CLIENT_CLI_FLAG_SET_H_
#define EDGEWISE_CLIENT_CLI_FLAG_SET_H_

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/flags/marshalling.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace edgewise::cli {

// Abseil's text form of a value. For durations absl::ParseFlag() finds a deprecated overload, hence these two.
template <typename T>
bool ParseValue(const std::string& text, T* value, std::string* error) {
  if constexpr (std::is_same_v<T, absl::Duration>) {
    return absl::ParseDuration(text, value);
  } else {
    return absl::ParseFlag(text, value, error);
  }
}
template <typename T>
std::string FormatValue(const T& value) {
  if constexpr (std::is_same_v<T, absl::Duration>) {
    return absl::FormatDuration(value);
  } else {
    return absl::UnparseFlag(value);
  }
}
// The texts that stand for a T, with an example; "" where any text will do.
template <typename T>
const char* ExpectedValue() {
  if constexpr (std::is_same_v<T, absl::Duration>) {
    return "a duration such as 5s or 300ms";
  } else if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_unsigned_v<T>) {
    return "a whole number, 0 or more, such as 8";
  } else if constexpr (std::is_integral_v<T>) {
    return "a whole number such as 8";
  } else if constexpr (std::is_floating_point_v<T>) {
    return "a number such as 0.05";
  } else {
    return "";
  }
}

// Not thread-safe. The bound variables must outlive Parse().
class FlagSet {
 public:
  // usage: the line after "edgewise ", such as "predict --model NAME --text TEXT [flags]".
  FlagSet(std::string usage, std::string summary) : usage_(std::move(usage)), summary_(std::move(summary)) {}

  // A heading in Help().
  void Section(std::string title) { section_ = std::move(title); }

  // `placeholder` names the value in Help(). The value the variable has now is shown as the default.
  template <typename T>
  void Add(const char* name, const char* placeholder, const char* help, T* variable) {
    std::string initial = FormatValue(*variable);
    AddFlag({name, placeholder, help, initial == "0" ? "" : initial, section_, ExpectedValue<T>(),
             [variable](const std::string& text, std::string* error) { return ParseValue(text, variable, error); }});
  }
  // Stays empty unless given.
  template <typename T>
  void Add(const char* name, const char* placeholder, const char* help, std::optional<T>* variable) {
    AddFlag({name, placeholder, help, "", section_, ExpectedValue<T>(),
             [variable](const std::string& text, std::string* error) {
               return ParseValue(text, &variable->emplace(), error);
             }});
  }
  // May be given more than once.
  void AddList(const char* name, const char* placeholder, const char* help, std::vector<std::string>* variable);
  // Takes no value (--name), or --name=false.
  void AddSwitch(const char* name, const char* help, bool* variable);

  // InvalidArgument for anything but known flags with good values, each at most once.
  absl::Status Parse(std::span<const std::string> arguments);

  std::string Help() const;

 private:
  struct Flag {
    std::string name;
    std::string placeholder;  // empty: a switch
    std::string help;
    std::string initial;  // shown as the default unless empty
    std::string section;
    std::string expected;  // what the value may be
    std::function<bool(const std::string&, std::string*)> parse;
    bool repeated = false;
    bool seen = false;
  };
  void AddFlag(Flag flag) { flags_.push_back(std::move(flag)); }
  Flag* Find(const std::string& name);

  std::string usage_;
  std::string summary_;
  std::string section_;
  std::vector<Flag> flags_;
};

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_FLAG_SET_H_
