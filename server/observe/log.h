// The log: one JSON object per line on stderr. Strings are escaped and cut at 512 bytes. Callers pass nothing that a
// client wrote (call_log.h has the exceptions). A thread of its own writes the lines; while stderr blocks, the oldest
// lines are dropped. Any thread.
#ifndef EDGEWISE_SERVER_OBSERVE_LOG_H_
#define EDGEWISE_SERVER_OBSERVE_LOG_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace edgewise::server {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Refers to the key and to a string; both must outlive it.
struct LogField {
  const char* key;
  std::variant<std::string_view, int64_t, uint32_t, uint64_t, double> value;
};

// Nothing is written before StartLog. StopLog writes the lines that are left; false: stderr blocked for a second and
// the writing thread still waits for it, so leave with _exit.
void StartLog(LogLevel least);
bool StopLog();

void Log(LogLevel level, std::string_view event, const std::vector<LogField>& fields = {});

// The body of the line that Log writes, without braces, time and level.
std::string LogBody(std::string_view event, const std::vector<LogField>& fields);

// A JSON string with its quotes, cut at `max_bytes`. All but printable ASCII is escaped.
inline constexpr size_t kLongestString = 512;
std::string JsonString(std::string_view text, size_t max_bytes = kLongestString);

// Limits a log to `lines` per second and key, and counts the lines held back. Keys come from a closed set. Not
// thread-safe.
class LogLimiter {
 public:
  explicit LogLimiter(int lines = 10) : lines_(lines) {}

  // Whether to write a line now. `suppressed` becomes the number of lines held back since the last one.
  bool Allow(const std::string& key, std::chrono::steady_clock::time_point now, uint64_t& suppressed);
  // By key, the lines held back in seconds that are over by `now`, which nobody has been told of. They are told of now.
  std::map<std::string, uint64_t> TakeSuppressed(std::chrono::steady_clock::time_point now);
  // Whether nobody has been told of some.
  bool suppresses() const;

 private:
  struct Window {
    std::chrono::steady_clock::time_point start;
    int written = 0;
    uint64_t suppressed = 0;
  };

  int lines_;
  std::map<std::string, Window> windows_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OBSERVE_LOG_H_
