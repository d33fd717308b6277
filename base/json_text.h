// JSON texts of a model's folder to values, and those of strangers. The first two readers take UTF-8 (a byte-order mark
// is left out), at most 16 levels deep and with at most 300,000 objects, which is checked before anything is built.
// INVALID_ARGUMENT: the message says line and column (in characters, from 1), what stands there and what is expected;
// or the limit. Any thread.
#ifndef EDGEWISE_BASE_JSON_TEXT_H_
#define EDGEWISE_BASE_JSON_TEXT_H_

#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/statusor.h"

namespace edgewise {

// Standard JSON without duplicate keys and without numbers beyond those of a double: our own files.
absl::StatusOr<nlohmann::json> ParseStrictJson(std::string_view text);

// JSON as Python's json.load reads it and json.dump writes it, for the files that Python libraries save: Infinity,
// -Infinity and NaN are numbers, as is {"__float__": "Infinity"} of transformers; a number beyond those of a double is
// infinite; and of the values of a key that stands twice the last counts.
absl::StatusOr<nlohmann::json> ParsePythonJson(std::string_view text);

// nlohmann's json::sax_parse, but that a NUL is an error, at its place, and not the end of the text: another party on
// the way would read what stands behind it. JSON that strangers send is read by this or by the functions above.
bool SaxParse(std::string_view text, nlohmann::json_sax<nlohmann::json>& reader);

}  // namespace edgewise

#endif  // EDGEWISE_BASE_JSON_TEXT_H_
