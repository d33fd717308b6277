#include "server/observe/log.h"

#include <atomic>
#include <cmath>
#include <cstdio>
#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace edgewise::server {
namespace {

constexpr size_t kQueuedLines = 8192;
constexpr absl::Duration kPause = absl::Milliseconds(10);
constexpr absl::Duration kLastLines = absl::Seconds(1);
constexpr const char* kLevels[] = {"debug", "info", "warning", "error", "off"};

// Lines on their way to stderr. Never freed, since threads of libraries may log to the end.
struct Lines {
  absl::Mutex mutex;
  std::deque<std::string> waiting ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool stopped ABSL_GUARDED_BY(mutex) = true;  // nobody writes
};
Lines& lines = *new Lines;
std::atomic<LogLevel> least_level = LogLevel::kOff;

// After a write, the lines of a pause go out together: busy threads wake this one a hundred times a second at most.
void WriteLines() {
  for (bool stopping = false; !stopping;) {
    std::deque<std::string> due;
    {
      const auto any = []() ABSL_EXCLUSIVE_LOCKS_REQUIRED(lines.mutex) {
        return lines.stopping || !lines.waiting.empty();
      };
      const absl::MutexLock lock(&lines.mutex, absl::Condition(&any));
      due.swap(lines.waiting);
      stopping = lines.stopping;
    }
    const std::string text = absl::StrJoin(due, "");
    std::fwrite(text.data(), 1, text.size(), stderr);
    if (!stopping) absl::SleepFor(kPause);
  }
  const absl::MutexLock lock(&lines.mutex);
  lines.stopped = true;
}

void AppendNumber(std::string& line, double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  line += std::isfinite(value) ? text : "null";
}

void AppendString(std::string& line, std::string_view text, size_t max_bytes) {
  line += '"';
  for (const char c : text.substr(0, max_bytes)) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (byte == '"' || byte == '\\') line += '\\';
    if (byte >= 0x20 && byte < 0x7F) {
      line += c;
    } else {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      line += escape;
    }
  }
  line += text.size() > max_bytes ? "...\"" : "\"";
}

}  // namespace

bool ParseLogLevel(const std::string& name, LogLevel& level) {
  for (int i = 0; i < 5; ++i) {
    if (name == kLevels[i]) {
      level = static_cast<LogLevel>(i);
      return true;
    }
  }
  return false;
}

void StartLog(LogLevel least) {
  {
    const absl::MutexLock lock(&lines.mutex);
    lines.stopping = lines.stopped = false;
  }
  std::thread(WriteLines).detach();
  least_level = least;
}

bool StopLog() {
  least_level = LogLevel::kOff;
  const absl::MutexLock lock(&lines.mutex);
  lines.stopping = true;
  return lines.mutex.AwaitWithTimeout(absl::Condition(&lines.stopped), kLastLines);
}

void Log(LogLevel level, std::string_view event, const std::vector<LogField>& fields) {
  if (level < least_level.load(std::memory_order_relaxed)) return;
  std::string line =
      absl::StrCat("{\"time\":\"", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()),
                   "\",\"level\":\"", kLevels[static_cast<int>(level)], "\",", LogBody(event, fields), "}\n");
  const absl::MutexLock lock(&lines.mutex);
  if (lines.waiting.size() == kQueuedLines) lines.waiting.pop_front();
  lines.waiting.push_back(std::move(line));
}

std::string LogBody(std::string_view event, const std::vector<LogField>& fields) {
  std::string line;
  line.reserve(512);
  line += "\"event\":";
  AppendString(line, event, event.size());
  for (const LogField& field : fields) {
    absl::StrAppend(&line, ",\"", field.key, "\":");
    if (const auto* text = std::get_if<std::string_view>(&field.value)) AppendString(line, *text, kMaxLogString);
    if (const auto* number = std::get_if<int64_t>(&field.value)) absl::StrAppend(&line, *number);
    if (const auto* number = std::get_if<uint64_t>(&field.value)) absl::StrAppend(&line, *number);
    if (const auto* number = std::get_if<double>(&field.value)) AppendNumber(line, *number);
  }
  return line;
}

std::string JsonString(std::string_view text, size_t max_bytes) {
  std::string out;
  AppendString(out, text, max_bytes);
  return out;
}

bool LogLimiter::Allow(const std::string& key, std::chrono::steady_clock::time_point now, uint64_t& suppressed) {
  Window& window = windows_[key];
  if (window.written == 0 || now - window.start >= std::chrono::seconds(1)) {
    window.start = now;
    window.written = 0;
  }
  if (window.written >= lines_) {
    ++window.suppressed;
    return false;
  }
  ++window.written;
  suppressed = window.suppressed;
  window.suppressed = 0;
  return true;
}

}  // namespace edgewise::server
