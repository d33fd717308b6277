#include "selfcheck/flags.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace edgewise::selfcheck {
namespace {

struct Flag {
  const char* name;
  const char* help;
  std::string Flags::*text;  // or a number, 1 to `most`
  int Flags::*number;
  int most;
};

// The float64 reference takes time and memory by the square of the tokens.
constexpr Flag kFlags[] = {
    {"device", "auto | cpu | cuda[:N].", &Flags::device, nullptr, 0},
    {"precision", "fp32, or bf16 on a GPU.", &Flags::precision, nullptr, 0},
    {"weights", "Of the model, on the CPU: float32 | bfloat16 | int8; compared with float32.", &Flags::weights, nullptr,
     0},
    {"model", "Folder of one model version (config.json, model.safetensors); empty: attention only.", &Flags::model,
     nullptr, 0},
    {"tokens", "Length of the sequences, 1 to 8192; a model's are at most as long as it takes.", nullptr,
     &Flags::tokens, 8192},
    {"repeats", "Timed runs of every call of attention, 1 to 1000; their median is shown.", nullptr, &Flags::repeats,
     1000},
};

}  // namespace

std::string ParseFlags(std::span<const std::string> arguments, Flags& flags) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument.rfind("--", 0) != 0) return absl::StrCat("\"", argument, "\" is not a flag; see --help");
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    const Flag* flag =
        std::find_if(std::begin(kFlags), std::end(kFlags), [&](const Flag& f) { return name == f.name; });
    if (flag == std::end(kFlags)) return absl::StrCat("--", name, " is not a flag; see --help");
    std::string value;
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (++i < arguments.size()) {
      value = arguments[i];
    } else {
      return absl::StrCat("--", name, " needs a value");
    }
    if (flag->text != nullptr) {
      flags.*flag->text = value;
      continue;
    }
    int number = 0;
    if (!absl::SimpleAtoi(value, &number) || number < 1 || number > flag->most) {
      return absl::StrCat("--", name, "=", value, ": a number from 1 to ", flag->most, " is expected");
    }
    flags.*flag->number = number;
  }
  return "";
}

std::string Help() {
  std::string text =
      absl::StrCat("edgewise selfcheck ", EDGEWISE_VERSION,
                   ": compares attention, and a model, on a device with other ways to compute them.\n\n");
  const Flags defaults;
  for (const Flag& flag : kFlags) {
    const std::string value = flag.text != nullptr ? defaults.*flag.text : absl::StrCat(defaults.*flag.number);
    absl::StrAppend(&text, "  --", flag.name, "=", value, "\n      ", flag.help, "\n");
  }
  absl::StrAppend(&text,
                  "\nExit codes: 0 it agrees, 1 it differs, 2 a flag or a file of the model is wrong, 4 the device\n"
                  "cannot be used, or failed on the way.\n");
  return text;
}

}  // namespace edgewise::selfcheck
