#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/fuzz/targets.h"

namespace edgewise::fuzz {

void Require(bool holds, const std::string& promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", promise.c_str());
  std::abort();
}

void RequireUtf8(const std::string& text) {
  try {
    nlohmann::json(text).dump();  // throws where it is not UTF-8
  } catch (const nlohmann::json::exception&) {
    Require(false, "a text is valid UTF-8: " + text);
  }
}

void RequireReadable(const std::string& message) {
  Require(!message.empty() && message.size() < 8192, "an error has a reason of a bounded length: " + message);
  RequireUtf8(message);
}

}  // namespace edgewise::fuzz
