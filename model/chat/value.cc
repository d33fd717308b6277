#include "model/chat/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace edgewise::chat {

const Value* Map::Find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Map::Set(const std::string& key, Value value) {
  for (auto& [name, old] : entries) {
    if (name != key) continue;
    old = std::move(value);
    return;
  }
  entries.emplace_back(key, std::move(value));
}

const List* Value::list() const {
  const auto* list = As<std::shared_ptr<const List>>();
  return list == nullptr ? nullptr : list->get();
}

Map* Value::map() const {
  const auto* map = As<std::shared_ptr<Map>>();
  return map == nullptr ? nullptr : map->get();
}

bool Value::IsTrue() const {
  if (const auto number = RealOf(*this)) return *number != 0;
  if (text() != nullptr) return !text()->empty();
  if (list() != nullptr) return !list()->empty();
  if (map() != nullptr) return map()->is_namespace || !map()->entries.empty();
  return false;
}

const char* Value::KindName() const {
  constexpr const char* kNames[] = {"undefined",  "none",   "a boolean", "a number",
                                    "a fraction", "a text", "a list",    "a mapping"};
  return kNames[data.index()];
}

bool Equal(const Value& a, const Value& b) {
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() == *b.text();
  if (a.list() != nullptr && b.list() != nullptr) {
    if (a.list()->size() != b.list()->size()) return false;
    for (size_t i = 0; i < a.list()->size(); ++i) {
      if (!Equal((*a.list())[i], (*b.list())[i])) return false;
    }
    return true;
  }
  if (a.map() != nullptr && b.map() != nullptr) {
    if (a.map()->is_namespace || b.map()->is_namespace) return a.map() == b.map();
    if (a.map()->entries.size() != b.map()->entries.size()) return false;
    // In no order; maps may be large.
    const auto sorted = [](const Map& map) {
      std::vector<const std::pair<std::string, Value>*> entries;
      for (const auto& entry : map.entries) entries.push_back(&entry);
      std::sort(entries.begin(), entries.end(), [](const auto* x, const auto* y) { return x->first < y->first; });
      return entries;
    };
    const auto of_a = sorted(*a.map()), of_b = sorted(*b.map());
    for (size_t i = 0; i < of_a.size(); ++i) {
      if (of_a[i]->first != of_b[i]->first || !Equal(of_a[i]->second, of_b[i]->second)) return false;
    }
    return true;
  }
  // True is 1 in Python.
  if (const auto x = RealOf(a), y = RealOf(b); x && y) return *x == *y;
  return a.data.index() == b.data.index() && (a.undefined() || a.As<None>() != nullptr);
}

std::optional<long double> RealOf(const Value& value) {
  if (const bool* flag = value.As<bool>()) return *flag;
  if (const int64_t* number = value.As<int64_t>()) return *number;
  if (const double* fraction = value.As<double>()) return *fraction;
  return std::nullopt;
}

std::string FractionText(double value) {
  constexpr int kMostPlaces = 16, kLeast = -4;  // of the first digit, beyond which there is an exponent
  char shortest[32];
  const auto end =
      std::to_chars(shortest, shortest + sizeof(shortest), std::fabs(value), std::chars_format::scientific);
  std::string digits(shortest, end.ptr);
  const size_t e = digits.find('e');
  const int exponent = std::stoi(digits.substr(e + 1));
  digits = digits.substr(0, 1) + (e > 2 ? digits.substr(2, e - 2) : "");
  const std::string sign = std::signbit(value) ? "-" : "";
  const auto count = static_cast<int>(digits.size());
  if (exponent < kLeast || exponent >= kMostPlaces) {
    return absl::StrCat(sign, digits.substr(0, 1), count > 1 ? "." : "", digits.substr(1),
                        absl::StrFormat("e%+03d", exponent));
  }
  if (exponent < 0) return absl::StrCat(sign, "0.", std::string(static_cast<size_t>(-exponent - 1), '0'), digits);
  if (count <= exponent + 1) digits.append(static_cast<size_t>(exponent + 2 - count), '0');
  return absl::StrCat(sign, digits.substr(0, static_cast<size_t>(exponent) + 1), ".",
                      digits.substr(static_cast<size_t>(exponent) + 1));
}

void AppendJson(const Value& value, const JsonStyle& style, int depth, std::string& out) {
  if (out.size() > kMaxText) return;
  const auto quoted = [](const std::string& text) { return nlohmann::json(text).dump(); };
  const auto new_line = [&](int levels) {
    if (style.indent >= 0) absl::StrAppend(&out, "\n", std::string(static_cast<size_t>(style.indent * levels), ' '));
  };
  bool first = true;
  const auto begin_entry = [&](const char* bracket) {
    out += std::exchange(first, false) ? std::string(bracket) : style.between_entries;
    new_line(depth + 1);
  };
  const auto end = [&](const char* empty) {
    if (first) out += empty[0];
    if (!first) new_line(depth);
    out += empty[1];
  };
  if (const bool* flag = value.As<bool>()) {
    out += *flag ? "true" : "false";
  } else if (const int64_t* number = value.As<int64_t>()) {
    absl::StrAppend(&out, *number);
  } else if (const double* fraction = value.As<double>()) {
    out += FractionText(*fraction);
  } else if (value.text() != nullptr) {
    out += quoted(*value.text());
  } else if (value.list() != nullptr) {
    for (const Value& entry : *value.list()) {
      begin_entry("[");
      AppendJson(entry, style, depth + 1, out);
    }
    end("[]");
  } else if (value.map() != nullptr) {
    for (const auto& [key, entry] : value.map()->entries) {
      begin_entry("{");
      absl::StrAppend(&out, quoted(key), style.behind_key);
      AppendJson(entry, style, depth + 1, out);
    }
    end("{}");
  } else {
    out += "null";
  }
}

}  // namespace edgewise::chat
