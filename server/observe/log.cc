#include "server/observe/log.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace edgewise::server {
namespace {

constexpr size_t kQueuedLines = 8192;
constexpr absl::Duration kLastLines = absl::Seconds(1);
constexpr absl::Duration kGathering = absl::Milliseconds(10);
constexpr std::chrono::seconds kWindow{1};  // of a LogLimiter

// Keeps lines until its thread writes them: those of 10 ms together, because waking a thread costs more than a line.
class Sink {
 public:
  Sink(LogLevel least, Sink* before) : least(least), before(before) {
    std::thread([this] { Write(); }).detach();
  }

  void Add(std::string line) {
    const absl::MutexLock lock(&mutex_);
    lines_.push_back(std::move(line));
    if (lines_.size() > kQueuedLines) lines_.pop_front();
  }

  // Whether all lines were written in time.
  bool Stop() {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
    return mutex_.AwaitWithTimeout(absl::Condition(&stopped_), kLastLines);
  }

  const LogLevel least;
  Sink* const before;  // never freed either

 private:
  void Write() {
    const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !lines_.empty(); };
    for (bool stopping = false; !stopping;) {
      std::string text;
      {
        const absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(&due));
        mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kGathering);
        for (const std::string& line : lines_) text += line;
        lines_.clear();
        stopping = stopping_;
      }
      std::fwrite(text.data(), 1, text.size(), stderr);
      std::fflush(stderr);
    }
    const absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }

  absl::Mutex mutex_;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

// The last that was started; never freed, since threads of libraries may log to the end.
std::atomic<Sink*> g_last = nullptr;
std::atomic<Sink*> g_sink = nullptr;  // set by StartLog, cleared by StopLog

constexpr const char* kLevelNames[] = {"debug", "info", "warning", "error"};  // by LogLevel

constexpr size_t kUsualLine = 384;  // bytes

// The character of UTF-8 that begins at text[at], and its bytes; the byte by itself where none does.
std::pair<uint32_t, size_t> CharacterAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> uint32_t { return static_cast<unsigned char>(text[i]); };
  const uint32_t lead = byte(at);
  const size_t bytes = lead < 0xC2 || lead > 0xF4 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (bytes == 1 || bytes > text.size() - at) return {lead, 1};
  uint32_t character = lead & (0x7F >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return {lead, 1};
    character = character << 6 | (byte(at + i) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0x80, 0x800, 0x10000};
  const bool none = character < kLeast[bytes - 2] || character > 0x10FFFF || (character >> 11) == 0xD800 >> 11;
  return none ? std::pair(lead, size_t{1}) : std::pair(character, bytes);
}

void AppendEscape(uint32_t unit, std::string& line) {
  char escape[8];
  std::snprintf(escape, sizeof escape, "\\u%04x", unit & 0xFFFF);
  line += escape;
}

// Cut at a character, in ASCII.
void AppendString(std::string_view text, size_t max_bytes, std::string& line) {
  line += '"';
  size_t at = 0;
  while (at < text.size()) {
    const auto [character, bytes] = CharacterAt(text, at);
    if (at + bytes > max_bytes) break;
    at += bytes;
    if (character == '"' || character == '\\') {
      line += '\\';
      line += static_cast<char>(character);
    } else if (character >= 0x20 && character < 0x7F) {
      line += static_cast<char>(character);
    } else if (character < 0x10000) {
      AppendEscape(character, line);
    } else {  // JSON has these as two units of UTF-16
      AppendEscape(0xD800 + ((character - 0x10000) >> 10), line);
      AppendEscape(0xDC00 + (character & 0x3FF), line);
    }
  }
  line += at < text.size() ? "...\"" : "\"";
}

void AppendNumber(double value, std::string& line) {
  if (!std::isfinite(value)) {
    line += "null";
    return;
  }
  char text[32];
  line.append(text, std::to_chars(text, text + sizeof text, value, std::chars_format::general, 9).ptr);
}

}  // namespace

void StartLog(LogLevel least) { g_sink = g_last = new Sink(least, g_last); }

bool StopLog() {
  Sink* const sink = g_sink.exchange(nullptr);
  return sink == nullptr || sink->Stop();
}

void Log(LogLevel level, std::string_view event, const std::vector<LogField>& fields) {
  Sink* const sink = g_sink;
  if (sink == nullptr || level < sink->least) return;
  sink->Add(absl::StrCat("{\"time\":\"", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()),
                         "\",\"level\":\"", kLevelNames[static_cast<size_t>(level)], "\",", LogBody(event, fields),
                         "}\n"));
}

std::string LogBody(std::string_view event, const std::vector<LogField>& fields) {
  std::string line;
  line.reserve(kUsualLine);
  line += "\"event\":";
  AppendString(event, kLongestString, line);
  for (const LogField& field : fields) {
    absl::StrAppend(&line, ",\"", field.key, "\":");
    if (const auto* text = std::get_if<std::string_view>(&field.value)) AppendString(*text, kLongestString, line);
    if (const auto* number = std::get_if<double>(&field.value)) AppendNumber(*number, line);
    if (const auto* number = std::get_if<int64_t>(&field.value)) absl::StrAppend(&line, *number);
    if (const auto* number = std::get_if<uint32_t>(&field.value)) absl::StrAppend(&line, *number);
    if (const auto* number = std::get_if<uint64_t>(&field.value)) absl::StrAppend(&line, *number);
  }
  return line;
}

std::string JsonString(std::string_view text, size_t max_bytes) {
  std::string string;
  AppendString(text, max_bytes, string);
  return string;
}

bool LogLimiter::Allow(const std::string& key, std::chrono::steady_clock::time_point now, uint64_t& suppressed) {
  Window& window = windows_[key];
  if (window.written == 0 || now - window.start >= kWindow) {
    window.start = now;
    window.written = 0;
  }
  if (window.written >= lines_) {
    ++window.suppressed;
    return false;
  }
  ++window.written;
  suppressed = std::exchange(window.suppressed, 0);
  return true;
}

std::map<std::string, uint64_t> LogLimiter::TakeSuppressed(std::chrono::steady_clock::time_point now) {
  std::map<std::string, uint64_t> taken;
  for (auto& [key, window] : windows_) {
    if (window.suppressed > 0 && now - window.start >= kWindow) taken[key] = std::exchange(window.suppressed, 0);
  }
  return taken;
}

bool LogLimiter::suppresses() const {
  return std::any_of(windows_.begin(), windows_.end(), [](const auto& window) { return window.second.suppressed > 0; });
}

}  // namespace edgewise::server
