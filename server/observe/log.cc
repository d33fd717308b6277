#include "server/observe/log.h"

#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <future>
#include <memory>
#include <thread>

namespace edgewise::server {
namespace {

constexpr size_t kQueuedLines = 8192;
constexpr auto kLastLines = std::chrono::seconds(1);

// Set by StartLog, cleared by StopLog; never freed, since threads of libraries may log to the end.
std::atomic<spdlog::logger*> g_logger = nullptr;

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

std::string JsonNumber(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

}  // namespace

bool ParseLogLevel(const std::string& name, LogLevel& level) {
  static constexpr const char* kNames[] = {"debug", "info", "warning", "error", "off"};
  for (int i = 0; i < 5; ++i) {
    if (name == kNames[i]) {
      level = static_cast<LogLevel>(i);
      return true;
    }
  }
  return false;
}

void StartLog(LogLevel least) {
  spdlog::init_thread_pool(kQueuedLines, 1);
  auto& logger = *new std::shared_ptr<spdlog::async_logger>(
      new spdlog::async_logger("edgewise", std::make_shared<spdlog::sinks::stderr_sink_mt>(), spdlog::thread_pool(),
                               spdlog::async_overflow_policy::overrun_oldest));
  logger->set_level(SpdlogLevel(least));
  logger->set_pattern("{\"time\":\"%Y-%m-%dT%H:%M:%S.%eZ\",\"level\":\"%l\",%v}", spdlog::pattern_time_type::utc);
  logger->flush_on(spdlog::level::info);
  g_logger = logger.get();
}

bool StopLog() {
  g_logger = nullptr;
  auto stopped = std::make_shared<std::promise<void>>();
  std::future<void> done = stopped->get_future();
  std::thread([stopped] {
    spdlog::shutdown();
    stopped->set_value();
  }).detach();
  return done.wait_for(kLastLines) == std::future_status::ready;
}

void Log(LogLevel level, std::string_view event, const std::vector<LogField>& fields) {
  spdlog::logger* logger = g_logger;
  if (!logger || !logger->should_log(SpdlogLevel(level))) return;
  logger->log(SpdlogLevel(level), spdlog::string_view_t(LogBody(event, fields)));
}

std::string LogBody(std::string_view event, const std::vector<LogField>& fields) {
  std::string line = "\"event\":" + JsonString(event);
  for (const LogField& field : fields) {
    line += ",\"" + std::string(field.key) + "\":";
    if (const auto* text = std::get_if<std::string_view>(&field.value)) line += JsonString(*text);
    if (const auto* number = std::get_if<int64_t>(&field.value)) line += std::to_string(*number);
    if (const auto* number = std::get_if<uint64_t>(&field.value)) line += std::to_string(*number);
    if (const auto* number = std::get_if<double>(&field.value)) line += JsonNumber(*number);
  }
  return line;
}

std::string JsonString(std::string_view text, size_t max_bytes) {
  std::string out = "\"";
  for (const char c : text.substr(0, max_bytes)) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += c;
    } else if (byte >= 0x20 && byte < 0x7F) {
      out += c;
    } else {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      out += escape;
    }
  }
  if (text.size() > max_bytes) out += "...";
  return out + "\"";
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
