// What is fuzzed. Each target takes any bytes; where a promise is broken the process ends. One thread.
#ifndef EDGEWISE_TESTS_FUZZ_TARGETS_H_
#define EDGEWISE_TESTS_FUZZ_TARGETS_H_

#include <string>

#include "absl/status/status.h"

namespace edgewise::fuzz {

// A weight file: header and data.
void FuzzSafetensors(const std::string& bytes);
// A config.json.
void FuzzConfig(const std::string& bytes);
// The first byte chooses a tokenizer; the others are a text.
void FuzzTokenizer(const std::string& bytes);
// The first byte chooses a tokenizer of tests/testdata_tokenizers; the others are a text.
void FuzzHfText(const std::string& bytes);
// A tokenizer.json, which tokenizes a short text where it is good.
void FuzzHfFile(const std::string& bytes);
// The first byte chooses a route's body, or the head of a request; the others are that.
void FuzzHttp(const std::string& bytes);
// "POST /path", a line end and the body of a request to a server of this process; else all that its client sends.
void FuzzRoutes(const std::string& bytes);
// Ids and types that the files of a Hugging Face folder name, then a text (Choices in ids.cc).
void FuzzIds(const std::string& bytes);
// A chat template; after each NUL follows a message, whose first byte chooses the role, or the template's arguments,
// which begin with "{".
void FuzzChat(const std::string& bytes);
// A PNG or JPEG file.
void FuzzImage(const std::string& bytes);
// The first byte chooses a model and a method; the others are a message. What passes the checks and is small is run.
void FuzzRequest(const std::string& bytes);
// What the checks say of the same bytes.
absl::Status CheckRequest(const std::string& bytes);
// The first byte chooses a method and how the bytes are cut; the others are a message that has not been parsed.
void FuzzWire(const std::string& bytes);

// Ends the process where a promise is broken.
void Require(bool holds, const std::string& promise);
void RequireUtf8(const std::string& text);
// An error that clients or logs see has a reason, in valid UTF-8 and of a bounded length.
void RequireReadable(const std::string& message);

}  // namespace edgewise::fuzz

#endif  // EDGEWISE_TESTS_FUZZ_TARGETS_H_
