#include "model/chat/operations.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "model/chat/texts.h"

namespace edgewise::chat {
namespace {

template <typename... Parts>
absl::Status Error(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// A new text.
absl::StatusOr<Value> Made(std::string text) {
  if (text.size() > kMaxText)
    return absl::InvalidArgumentError(absl::StrCat("a text is longer than ", kMaxText, " bytes"));
  return Value::Of(std::move(text));
}

absl::StatusOr<int64_t> LengthOf(const Value& value) {
  if (value.text() != nullptr) return static_cast<int64_t>(CountCharacters(*value.text()));
  if (value.list() != nullptr) return static_cast<int64_t>(value.list()->size());
  if (value.map() != nullptr && !value.map()->is_namespace) return static_cast<int64_t>(value.map()->entries.size());
  if (value.undefined()) return 0;
  return Error(value.KindName(), " has no length");
}

// Numbers, and booleans as numbers.
std::optional<int64_t> NumberOf(const Value& value) {
  if (const int64_t* number = value.As<int64_t>()) return *number;
  if (const bool* flag = value.As<bool>()) return *flag;
  return std::nullopt;
}

absl::StatusOr<Value> Calculate(char name, int64_t left, int64_t right) {
  int64_t result = 0;
  if (name == '/' || name == '%') {  // towards minus infinity
    if (right == 0) return Error("division by zero");
    if (right == -1) return Calculate('*', name == '/' ? left : 0, -1);
    result = left % right;
    const bool below = result != 0 && (result < 0) != (right < 0);
    if (name == '%') return Value{below ? result + right : result};
    return Value{left / right - (below ? 1 : 0)};
  }
  const bool beyond = name == '+'   ? __builtin_add_overflow(left, right, &result)
                      : name == '-' ? __builtin_sub_overflow(left, right, &result)
                                    : __builtin_mul_overflow(left, right, &result);
  if (beyond) return Error("a number is beyond 64 bits");
  return Value{result};
}

absl::StatusOr<Value> Contains(const Value& left, const Value& right) {
  if (right.text() != nullptr) {
    if (left.text() == nullptr) return Error("only a text can be in a text, not ", left.KindName());
    return Value{FindText(*right.text(), *left.text()) != std::string::npos};
  }
  if (right.list() != nullptr) {
    return Value{std::any_of(right.list()->begin(), right.list()->end(),
                             [&](const Value& entry) { return Equal(entry, left); })};
  }
  if (right.map() != nullptr && !right.map()->is_namespace && left.text() != nullptr)
    return Value{right.map()->Find(*left.text()) != nullptr};
  if (right.undefined()) return Value{false};
  return Error("nothing can be in ", right.KindName());
}

absl::StatusOr<Value> Join(const Value& of, const std::string& separator) {
  std::string joined;
  if (of.list() == nullptr) return Error("join is of lists, not of ", of.KindName());
  for (const Value& entry : *of.list()) {
    ASSIGN_OR_RETURN(const std::string text, TextOf(entry));
    if (&entry != of.list()->data()) joined += separator;
    joined += text;
    if (joined.size() > kMaxText) break;
  }
  return Made(std::move(joined));
}

absl::StatusOr<Value> ItemsOf(const Value& of) {
  if (of.undefined()) return Value::Of(List());
  if (of.map() == nullptr || of.map()->is_namespace) return Error("items are of mappings, not of ", of.KindName());
  List items;
  for (const auto& [key, value] : of.map()->entries) items.push_back(Value::Of(List{Value::Of(key), value}));
  return Value::Of(std::move(items));
}

// The arguments as texts; `least` to `most` of them.
absl::StatusOr<std::vector<std::string>> Texts(const std::string& name, const std::vector<Value>& arguments,
                                               size_t least, size_t most) {
  if (arguments.size() < least || arguments.size() > most)
    return Error(name, " has ", arguments.size(), " arguments; served: ", least, " to ", most);
  std::vector<std::string> texts;
  for (const Value& argument : arguments) {
    if (argument.text() == nullptr) return Error(name, " takes texts, not ", argument.KindName());
    texts.push_back(*argument.text());
  }
  return texts;
}

absl::StatusOr<Value> Replaced(const std::string& text, const std::vector<Value>& arguments) {
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, Texts("replace", arguments, 2, 2));
  if (texts[0].empty()) return Error("replace looks for an empty text");
  return Made(Replace(text, texts[0], texts[1], kMaxText));
}

// Names that Jinja takes for a method of Python's dict, asked for as an attribute, or as an entry that is not there.
absl::Status CheckNoMethod(const Map& map, const std::string& name) {
  for (const char* method :
       {"clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"}) {
    if (name == method && !map.is_namespace)
      return Error(name, " is a method of mappings, which is served where it is called");
  }
  return absl::OkStatus();
}

// The entries of a list of which a test holds, or does not (reject): of the entry, or of its attribute. The arguments
// are checked where the template is read.
absl::StatusOr<Value> Selected(const std::string& name, const Value& of, const List& arguments) {
  if (of.list() == nullptr && !of.undefined()) return Error(name, " is of lists, not of ", of.KindName());
  const size_t test = absl::EndsWith(name, "attr") ? 1 : 0;
  // Jinja takes dots and numbers in an attribute as steps.
  const std::string* attribute = test == 0 ? nullptr : arguments[0].text();
  const auto letter = [](char c) { return absl::ascii_isalpha(c) || c == '_'; };
  if (test == 1 && (attribute == nullptr || !std::all_of(attribute->begin(), attribute->end(), letter)))
    return Error(name, " takes the name of an attribute, of letters and _");
  const std::string how = arguments.size() > test ? *arguments[test].text() : "";
  List kept;
  for (const Value& entry : of.undefined() ? List() : *of.list()) {
    ASSIGN_OR_RETURN(const Value value,
                     attribute == nullptr ? absl::StatusOr<Value>(entry) : Attribute(entry, *attribute));
    const bool equal = arguments.size() == test + 2 && Equal(value, arguments[test + 1]);
    const bool holds = how.empty()                   ? value.IsTrue()
                       : arguments.size() < test + 2 ? Test(how, value)
                                                     : equal != (how[0] == '!' || how == "ne");
    if (holds != absl::StartsWith(name, "reject")) kept.push_back(entry);
  }
  return Value::Of(std::move(kept));
}

}  // namespace

absl::StatusOr<std::string> TextOf(const Value& value) {
  if (value.text() != nullptr) return *value.text();
  if (value.undefined()) return std::string();
  if (const bool* flag = value.As<bool>()) return std::string(*flag ? "True" : "False");
  if (const int64_t* number = value.As<int64_t>()) return absl::StrCat(*number);
  if (const double* fraction = value.As<double>()) return FractionText(*fraction);
  if (value.As<None>() != nullptr) return std::string("None");
  return Error(value.KindName(), " cannot be printed; tojson can");
}

absl::StatusOr<Value> Binary(const std::string& name, const Value& left, const Value& right) {
  if (name == "==") return Value{Equal(left, right)};
  if (name == "!=") return Value{!Equal(left, right)};
  if (name == "in") return Contains(left, right);
  if (name == "not in") {
    ASSIGN_OR_RETURN(const Value inside, Contains(left, right));
    return Value{!inside.IsTrue()};
  }
  if (name == "~") {
    ASSIGN_OR_RETURN(const std::string before, TextOf(left));
    ASSIGN_OR_RETURN(const std::string after, TextOf(right));
    return Made(absl::StrCat(before, after));
  }
  const bool texts = left.text() != nullptr && right.text() != nullptr;
  if (name == "+" && texts) return Made(absl::StrCat(*left.text(), *right.text()));
  if (name == "+" && left.list() != nullptr && right.list() != nullptr) {
    List both = *left.list();
    both.insert(both.end(), right.list()->begin(), right.list()->end());
    return Value::Of(std::move(both));
  }
  if (name[0] == '<' || name[0] == '>') {
    const std::optional<long double> a = RealOf(left), b = RealOf(right);
    if (!texts && !(a && b)) return Error(name, " is not served of ", left.KindName(), " and ", right.KindName());
    const int order = texts ? left.text()->compare(*right.text()) : (*a > *b) - (*a < *b);
    return Value{(order == 0 && name.size() == 2) || (name[0] == '<' ? order < 0 : order > 0)};
  }
  const std::optional<int64_t> a = NumberOf(left), b = NumberOf(right);
  if (!(a && b)) return Error(name, " is not served of ", left.KindName(), " and ", right.KindName());
  return Calculate(name[0], *a, *b);
}

absl::StatusOr<Value> Filter(const std::string& name, const Value& of, const std::vector<Value>& arguments) {
  if (name == "default") {
    if (arguments.size() > 2) return Error("default has at most two arguments");
    const bool taken = of.undefined() || (arguments.size() == 2 && arguments[1].IsTrue() && !of.IsTrue());
    return !taken ? of : arguments.empty() ? Value::Of("") : arguments[0];
  }
  if (name == "join") {
    ASSIGN_OR_RETURN(const std::vector<std::string> texts, Texts(name, arguments, 0, 1));
    return Join(of, texts.empty() ? "" : texts[0]);
  }
  if (name == "replace") {
    ASSIGN_OR_RETURN(const std::string text, TextOf(of));
    return Replaced(text, arguments);
  }
  if (name == "tojson") {
    if (of.undefined() || (of.map() != nullptr && of.map()->is_namespace))
      return Error("tojson is not of ", of.KindName());
    std::string json;
    JsonStyle style;  // the arguments: Node::kFilter
    if (const int64_t* indent = arguments[0].As<int64_t>()) style = {static_cast<int>(*indent), ",", ": "};
    if (arguments.size() == 3) {
      style.between_entries = *arguments[1].text();
      style.behind_key = *arguments[2].text();
    }
    AppendJson(of, style, 0, json);
    return Made(std::move(json));
  }
  if (absl::StartsWith(name, "select") || absl::StartsWith(name, "reject")) return Selected(name, of, arguments);
  if (!arguments.empty()) return Error("arguments of ", name, " are not served");
  if (name == "length" || name == "count") {
    ASSIGN_OR_RETURN(const int64_t length, LengthOf(of));
    return Value{length};
  }
  if (name == "trim") {
    ASSIGN_OR_RETURN(const std::string text, TextOf(of));
    return Value::Of(std::string(Strip(text, nullptr, true, true)));
  }
  if (name == "upper" || name == "lower" || name == "capitalize") {
    ASSIGN_OR_RETURN(const std::string text, TextOf(of));
    return Made(InCase(name, text));
  }
  if (name == "string") {
    ASSIGN_OR_RETURN(std::string text, TextOf(of));
    return Value::Of(std::move(text));
  }
  if (name == "items") return ItemsOf(of);
  if (name == "list" && of.list() != nullptr) return of;
  if ((name == "first" || name == "last") && of.list() != nullptr) {
    if (of.list()->empty()) return Value();
    return name == "first" ? of.list()->front() : of.list()->back();
  }
  return Error(name, " is not served of ", of.KindName());
}

absl::StatusOr<Value> Method(const std::string& name, const Value& of, const std::vector<Value>& arguments) {
  if (name == "items" && arguments.empty())
    return of.undefined() ? absl::StatusOr<Value>(Error("items of undefined")) : ItemsOf(of);
  if (name == "get") {
    const bool may = of.map() != nullptr && !of.map()->is_namespace && !arguments.empty() && arguments.size() <= 2;
    if (!may || arguments[0].text() == nullptr) return Error("get is served of mappings, with a text and a default");
    const Value* found = of.map()->Find(*arguments[0].text());
    return found != nullptr ? *found : arguments.size() == 2 ? arguments[1] : Value{None()};
  }
  if (of.text() == nullptr) return Error(of.KindName(), " has no method ", name);
  const std::string& text = *of.text();
  if (name == "replace") return Replaced(text, arguments);
  if (name == "split") {
    ASSIGN_OR_RETURN(const std::vector<std::string> texts, Texts(name, arguments, 1, 1));
    if (texts[0].empty()) return Error("split needs a text that is not empty");
    List parts;
    for (std::string& part : Split(text, texts[0])) parts.push_back(Value::Of(std::move(part)));
    return Value::Of(std::move(parts));
  }
  if (name == "startswith" || name == "endswith") {
    ASSIGN_OR_RETURN(const std::vector<std::string> texts, Texts(name, arguments, 1, 1));
    return Value{name[0] == 's' ? absl::StartsWith(text, texts[0]) : absl::EndsWith(text, texts[0])};
  }
  if (name == "upper" || name == "lower" || name == "capitalize") {
    if (!arguments.empty()) return Error(name, " takes no arguments");
    return Made(InCase(name, text));
  }
  if (name != "strip" && name != "lstrip" && name != "rstrip") return Error("a text has no method ", name);
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, Texts(name, arguments, 0, 1));
  return Value::Of(std::string(Strip(text, texts.empty() ? nullptr : texts.data(), name[0] != 'r', name[0] != 'l')));
}

bool Test(const std::string& name, const Value& of) {
  const bool* flag = of.As<bool>();
  const bool text = of.text() != nullptr, map = of.map() != nullptr && !of.map()->is_namespace;
  if (name == "defined") return !of.undefined();
  if (name == "undefined") return of.undefined();
  if (name == "none") return of.As<None>() != nullptr;
  if (name == "string") return text;
  if (name == "boolean") return flag != nullptr;
  if (name == "true") return flag != nullptr && *flag;
  if (name == "false") return flag != nullptr && !*flag;
  if (name == "number") return RealOf(of).has_value();
  if (name == "mapping") return map;
  // An undefined value can be iterated over, and has a length.
  return text || map || of.list() != nullptr || of.undefined();
}

absl::StatusOr<Value> Attribute(const Value& of, const std::string& name) {
  if (of.map() == nullptr && !of.undefined()) return Value();
  if (of.map() != nullptr) RETURN_IF_ERROR(CheckNoMethod(*of.map(), name));
  return Item(of, Value::Of(name));
}

absl::StatusOr<Value> Item(const Value& of, const Value& index) {
  if (of.undefined()) return Error("an entry of what is undefined");
  if (of.map() != nullptr) {
    if (index.text() == nullptr) return Value();
    const Value* found = of.map()->Find(*index.text());
    if (found != nullptr) return *found;
    RETURN_IF_ERROR(CheckNoMethod(*of.map(), *index.text()));
    return Value();
  }
  const std::optional<int64_t> number = NumberOf(index);
  if (!number || (of.list() == nullptr && of.text() == nullptr)) return Value();
  ASSIGN_OR_RETURN(const int64_t length, LengthOf(of));
  if (*number < -length || *number >= length) return Value();
  const auto place = static_cast<size_t>(*number < 0 ? *number + length : *number);
  return of.list() != nullptr ? (*of.list())[place] : Value::Of(std::string(CharactersOf(*of.text())[place]));
}

absl::StatusOr<Value> Slice(const Value& of, const Value& begin, const Value& end, const Value& step) {
  if (of.list() == nullptr && of.text() == nullptr) return Error("a slice is not served of ", of.KindName());
  for (const Value* bound : {&begin, &end, &step}) {
    if (!bound->undefined() && !NumberOf(*bound))
      return Error("a slice is bounded by numbers, not by ", bound->KindName());
  }
  ASSIGN_OR_RETURN(const int64_t length, LengthOf(of));
  const int64_t by = NumberOf(step).value_or(1);
  if (by != 1 && by != -1) return Error("the step of a slice is ", by, "; served: 1 and -1");
  const auto bound = [&](const Value& value, int64_t otherwise) {
    if (value.undefined()) return otherwise;
    int64_t place = *NumberOf(value);
    if (place < 0) place = std::max<int64_t>(place, -length) + length - (by < 0 && place < -length ? 1 : 0);
    return std::min(place, by > 0 ? length : length - 1);
  };
  const int64_t first = bound(begin, by > 0 ? 0 : length - 1), last = bound(end, by > 0 ? length : -1);
  List entries;
  std::string text;
  const std::vector<std::string_view> characters =
      of.list() != nullptr ? std::vector<std::string_view>() : CharactersOf(*of.text());
  for (int64_t i = first; by > 0 ? i < last : i > last; i += by) {
    if (of.list() != nullptr) {
      entries.push_back((*of.list())[static_cast<size_t>(i)]);
    } else {
      text += characters[static_cast<size_t>(i)];
    }
  }
  return of.list() != nullptr ? Value::Of(std::move(entries)) : Value::Of(std::move(text));
}

}  // namespace edgewise::chat
