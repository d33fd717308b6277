// The flags of one command, bound to variables: the parser of every program here. Values are written as Abseil's flags
// are (--name=value, --name value, durations as 5s). Abseil's own are one set for the whole process, so they know no
// commands; they leave with status 1, and read no environment.
#ifndef EDGEWISE_BASE_FLAG_SET_H_
#define EDGEWISE_BASE_FLAG_SET_H_

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/flags/marshalling.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace edgewise {

// Abseil's text form of a value. For durations absl::ParseFlag() finds a deprecated overload, hence these two.
template <typename T>
bool ParseValue(const std::string& text, T* value, std::string* error) {
  if constexpr (std::is_same_v<T, absl::Duration>) {
    return absl::ParseDuration(text, value);
  } else if constexpr (std::is_same_v<T, std::chrono::milliseconds>) {
    absl::Duration duration;
    if (!absl::ParseDuration(text, &duration)) return false;
    *value = absl::ToChronoMilliseconds(absl::Ceil(duration, absl::Milliseconds(1)));
    return true;
  } else {
    return absl::ParseFlag(text, value, error);
  }
}
template <typename T>
std::string FormatValue(const T& value) {
  if constexpr (std::is_same_v<T, absl::Duration>) {
    return absl::FormatDuration(value);
  } else if constexpr (std::is_same_v<T, std::chrono::milliseconds>) {
    return absl::FormatDuration(absl::FromChrono(value));
  } else {
    return absl::UnparseFlag(value);
  }
}
// The name of a T, in messages; "" where any text will do. The second is an example of it.
template <typename T>
std::pair<const char*, const char*> ValueName() {
  if constexpr (std::is_same_v<T, absl::Duration> || std::is_same_v<T, std::chrono::milliseconds>) {
    return {"a duration", "such as 5s or 300ms"};
  } else if constexpr (std::is_same_v<T, bool>) {
    return {"true or false", ""};
  } else if constexpr (std::is_unsigned_v<T>) {
    return {"a whole number, 0 or more,", "such as 8"};
  } else if constexpr (std::is_integral_v<T>) {
    return {"a whole number", "such as 8"};
  } else if constexpr (std::is_floating_point_v<T>) {
    return {"a number", "such as 0.05"};
  } else {
    return {"", ""};
  }
}

// Not thread-safe. The bound variables must outlive the calls of Parse() and ReadEnvironment().
class FlagSet {
 public:
  // The values that a flag may have, both ends included.
  template <typename T>
  struct Range {
    T least;
    std::optional<T> most = std::nullopt;
  };

  // `usage`: the command, such as "edgewise predict --model NAME --text TEXT [flags]".
  FlagSet(std::string usage, std::string summary) : usage_(std::move(usage)), summary_(std::move(summary)) {}

  // A heading in Help().
  void Section(std::string title) { section_ = std::move(title); }
  // A flag that is given twice takes its last value, as in programs that others start with flags of their own before
  // the user's. Otherwise it is an error.
  void LetLastWin() { last_wins_ = true; }

  // `placeholder` names the value in Help(). The value the variable has now is shown as the default.
  template <typename T>
  void Add(const char* name, const char* placeholder, const char* help, T* variable) {
    const auto [kind, example] = ValueName<T>();
    AddFlag({name, placeholder, help, Default(*variable), section_, absl::StrCat(kind, *example ? " " : "", example),
             [variable](const std::string& text, std::string* error) { return ParseValue(text, variable, error); }});
  }
  // Stays empty unless given.
  template <typename T>
  void Add(const char* name, const char* placeholder, const char* help, std::optional<T>* variable) {
    const auto [kind, example] = ValueName<T>();
    AddFlag({name, placeholder, help, "", section_, absl::StrCat(kind, *example ? " " : "", example),
             [variable](const std::string& text, std::string* error) {
               return ParseValue(text, &variable->emplace(), error);
             }});
  }
  // A value outside of `range` is refused.
  template <typename T>
  void Add(const char* name, const char* placeholder, const char* help, T* variable,
           std::type_identity_t<Range<T>> range) {
    const std::string kind = std::is_integral_v<T> ? "a whole number" : ValueName<T>().first;
    const std::string expected =
        range.most ? absl::StrCat(kind, " from ", FormatValue(range.least), " to ", FormatValue(*range.most))
                   : absl::StrCat(kind, ", ", FormatValue(range.least), " or more");
    AddFlag({name, placeholder, help, Default(*variable), section_, expected,
             [variable, range](const std::string& text, std::string* error) {
               T value{};
               if (!ParseValue(text, &value, error)) return false;
               if (value < range.least || (range.most && value > *range.most)) return false;
               *variable = value;
               return true;
             }});
  }
  // One of a few names, each of which stands for a value.
  template <typename T>
  void AddChoice(const char* name, const char* help, std::vector<std::pair<std::string, T>> choices, T* variable) {
    std::string names, initial;
    for (const auto& [choice, value] : choices) {
      absl::StrAppend(&names, names.empty() ? "" : "|", choice);
      if (value == *variable) initial = choice;
    }
    AddFlag({name, names, help, initial, section_, "",
             [variable, choices = std::move(choices)](const std::string& text, std::string*) {
               for (const auto& [choice, value] : choices) {
                 if (text != choice) continue;
                 *variable = value;
                 return true;
               }
               return false;
             }});
  }
  // May be given more than once; in the environment once, its values separated by commas.
  void AddList(const char* name, const char* placeholder, const char* help, std::vector<std::string>* variable);
  // Takes no value (--name, --noname), or --name=false.
  void AddSwitch(const char* name, const char* help, bool* variable);

  // Sets the flags that Parse was not given from `environment` ("NAME=value", null at its end): --max_inputs is
  // <prefix>MAX_INPUTS. InvalidArgument: a bad value. `misspelt` gets a sentence for each other variable with the
  // prefix whose name is nearly that of a flag; the rest are somebody else's.
  absl::Status ReadEnvironment(const std::string& prefix, const char* const* environment,
                               std::vector<std::string>* misspelt);

  // InvalidArgument for anything but known flags with good values.
  absl::Status Parse(std::span<const std::string> arguments);

  // Whether --help, or -h, is among the arguments.
  static bool AsksForHelp(std::span<const std::string> arguments);
  std::string Help() const;

 private:
  struct Flag {
    std::string name;
    std::string placeholder;  // empty: a switch
    std::string help;
    std::string initial;  // shown as the default unless empty
    std::string section;
    std::string expected;  // what the value may be; empty: what the placeholder says
    std::function<bool(const std::string&, std::string*)> parse;
    bool list = false;
    bool seen = false;  // among the arguments
  };
  template <typename T>
  static std::string Default(const T& value) {
    std::string text = FormatValue(value);
    return text == "0" ? "" : text;
  }
  void AddFlag(Flag flag) { flags_.push_back(std::move(flag)); }
  Flag* Find(const std::string& name);
  absl::Status Unknown(const std::string& name) const;
  // `given`: how the flag was named.
  static absl::Status Set(Flag& flag, const std::string& given, const std::string& value);

  std::string usage_;
  std::string summary_;
  std::string section_;
  bool last_wins_ = false;
  std::vector<Flag> flags_;
};

}  // namespace edgewise

#endif  // EDGEWISE_BASE_FLAG_SET_H_
