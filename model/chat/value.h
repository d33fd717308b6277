// Values of chat templates.
#ifndef EDGEWISE_MODEL_CHAT_VALUE_H_
#define EDGEWISE_MODEL_CHAT_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace edgewise::chat {

struct Value;
using List = std::vector<Value>;
// In the order in which the entries came.
struct Map {
  std::vector<std::pair<std::string, Value>> entries;
  bool is_namespace = false;  // made by namespace(); its entries may be set

  const Value* Find(std::string_view key) const;
  void Set(const std::string& key, Value value);
};

// The longest text that a template makes, in bytes.
inline constexpr size_t kMaxText = size_t{4} << 20;

struct Undefined {};
struct None {};

// As of Python. Copies are cheap: they share texts, lists and maps.
struct Value {
  using Text = std::shared_ptr<const std::string>;
  std::variant<Undefined, None, bool, int64_t, double, Text, std::shared_ptr<const List>, std::shared_ptr<Map>> data;

  static Value Of(std::string text) { return {std::make_shared<const std::string>(std::move(text))}; }
  static Value Of(List list) { return {std::make_shared<const List>(std::move(list))}; }

  template <typename Kind>
  const Kind* As() const {
    return std::get_if<Kind>(&data);
  }
  // Null: the value is none.
  const std::string* text() const { return As<Text>() == nullptr ? nullptr : As<Text>()->get(); }
  const List* list() const;
  Map* map() const;

  bool undefined() const { return As<Undefined>() != nullptr; }
  bool IsTrue() const;
  const char* KindName() const;
};

bool Equal(const Value& a, const Value& b);
// Numbers and booleans, which are 0 and 1; nothing where the value is none of them.
std::optional<long double> RealOf(const Value& value);
// As repr of Python writes a float.
std::string FractionText(double value);

// How json.dumps(ensure_ascii=False) writes: on one line, or (`indent` >= 0) with entries on lines of their own, behind
// `indent` spaces for each level.
struct JsonStyle {
  int indent = -1;
  std::string between_entries = ", ", behind_key = ": ";
};
// It stops soon after kMaxText bytes. `depth`: the levels around the value.
void AppendJson(const Value& value, const JsonStyle& style, int depth, std::string& out);

}  // namespace edgewise::chat

#endif  // EDGEWISE_MODEL_CHAT_VALUE_H_
