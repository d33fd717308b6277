#include "model/chat/value.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

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
  if (const bool* flag = As<bool>()) return *flag;
  if (const int64_t* number = As<int64_t>()) return *number != 0;
  if (text() != nullptr) return !text()->empty();
  if (list() != nullptr) return !list()->empty();
  if (map() != nullptr) return map()->is_namespace || !map()->entries.empty();
  return false;
}

const char* Value::KindName() const {
  constexpr const char* kNames[] = {"undefined", "none", "a boolean", "a number", "a text", "a list", "a mapping"};
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
    for (const auto& [key, value] : a.map()->entries) {
      const Value* other = b.map()->Find(key);
      if (other == nullptr || !Equal(value, *other)) return false;
    }
    return true;
  }
  // True is 1 in Python.
  const auto number = [](const Value& value) {
    return value.As<bool>() != nullptr ? static_cast<int64_t>(*value.As<bool>()) : *value.As<int64_t>();
  };
  const auto counts = [](const Value& value) { return value.As<bool>() != nullptr || value.As<int64_t>() != nullptr; };
  if (counts(a) && counts(b)) return number(a) == number(b);
  return a.data.index() == b.data.index() && (a.undefined() || a.As<None>() != nullptr);
}

void AppendJson(const Value& value, int indent, int depth, std::string& out) {
  if (out.size() > kMaxText) return;
  const auto quoted = [](const std::string& text) { return nlohmann::json(text).dump(); };
  const auto new_line = [&](int levels) {
    if (indent >= 0) absl::StrAppend(&out, "\n", std::string(static_cast<size_t>(indent * levels), ' '));
  };
  bool first = true;
  const auto begin_entry = [&](const char* bracket) {
    out += std::exchange(first, false) ? bracket : indent < 0 ? ", " : ",";
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
  } else if (value.text() != nullptr) {
    out += quoted(*value.text());
  } else if (value.list() != nullptr) {
    for (const Value& entry : *value.list()) {
      begin_entry("[");
      AppendJson(entry, indent, depth + 1, out);
    }
    end("[]");
  } else if (value.map() != nullptr) {
    for (const auto& [key, entry] : value.map()->entries) {
      begin_entry("{");
      absl::StrAppend(&out, quoted(key), ": ");
      AppendJson(entry, indent, depth + 1, out);
    }
    end("{}");
  } else {
    out += "null";
  }
}

}  // namespace edgewise::chat
