#include "server/observe/library_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <chrono>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/observe/log.h"

namespace edgewise::server {
namespace {

void Write(const char* library, bool error, const std::string& message) {
  static absl::Mutex mutex(absl::kConstInit);
  static LogLimiter& limiter ABSL_GUARDED_BY(mutex) = *new LogLimiter;
  uint64_t suppressed = 0;
  {
    const absl::MutexLock lock(&mutex);
    if (!limiter.Allow(library, std::chrono::steady_clock::now(), suppressed)) return;
  }
  Log(error ? LogLevel::kWarning : LogLevel::kDebug, "library message",
      {{"library", library}, {"message", message}, {"suppressed", suppressed}});
}

void OnGrpcMessage(gpr_log_func_args* arguments) {
  const std::string message = arguments->message;
  // A port that cannot be listened on: Server::Start reports it, and the process ends.
  const bool reported = message.find("No address added out of total") != std::string::npos;
  Write("grpc", arguments->severity == GPR_LOG_SEVERITY_ERROR && !reported, message);
}

void OnProtobufMessage(google::protobuf::LogLevel level, const char*, int, const std::string& message) {
  Write("protobuf", level >= google::protobuf::LOGLEVEL_WARNING, message);
}

}  // namespace

void RouteLibraryLogs() {
  gpr_set_log_function(OnGrpcMessage);
  google::protobuf::SetLogHandler(OnProtobufMessage);
}

}  // namespace edgewise::server
