// Writes a JSON text. Commas come by themselves; the caller pairs what it begins and ends.
#ifndef EDGEWISE_SERVER_HTTP_JSON_OUT_H_
#define EDGEWISE_SERVER_HTTP_JSON_OUT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "base/work_bounds.h"

namespace edgewise::server {

class JsonOut {
 public:
  JsonOut() : JsonOut(NoBounds()) {}
  // Asks `bounds` between pieces of a long text. If they say no, the text is dropped, and what follows is not written.
  explicit JsonOut(WorkBounds& bounds) : bounds_(&bounds) {}

  JsonOut& BeginObject() { return Open('{'); }
  JsonOut& EndObject() { return Close('}'); }
  JsonOut& BeginArray() { return Open('['); }
  JsonOut& EndArray() { return Close(']'); }
  JsonOut& Key(std::string_view key);  // its value follows
  // Valid UTF-8 comes out as it is; other bytes become U+FFFD.
  JsonOut& String(std::string_view value);
  JsonOut& Integer(int64_t value);
  JsonOut& Unsigned(uint64_t value);
  // The shortest text that is read as the same number; null where it is not finite.
  JsonOut& Number(double value);
  JsonOut& Number(float value);
  JsonOut& Bool(bool value) { return Raw(value ? "true" : "false"); }
  JsonOut& Null() { return Raw("null"); }
  // A value that is JSON already.
  JsonOut& Raw(std::string_view json);

  const absl::Status& status() const { return status_; }  // of the bounds
  const std::string& text() const { return text_; }
  std::string Take() { return std::move(text_); }

 private:
  JsonOut& Open(char bracket);
  JsonOut& Close(char bracket);
  // False: nothing is written any more.
  bool Separate();
  bool Continue();
  void Quote(std::string_view value);

  WorkBounds* bounds_;
  absl::Status status_;
  size_t next_ = kWorkPiece;  // the size of the text at which the bounds are asked again
  std::string text_;
  bool comma_ = false;  // before the next key or value
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_JSON_OUT_H_
