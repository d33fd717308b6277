#include "server/observe/library_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <chrono>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/observe/log.h"

namespace edgewise::server {
namespace {

// Not the message: gRPC's quote what clients send, such as a field of a head that it cannot read.
void Write(const char* library, bool error, std::string_view file, int line) {
  static absl::Mutex mutex(absl::kConstInit);
  static LogLimiter& limiter ABSL_GUARDED_BY(mutex) = *new LogLimiter;
  uint64_t suppressed = 0;
  {
    const absl::MutexLock lock(&mutex);
    if (!limiter.Allow(library, std::chrono::steady_clock::now(), suppressed)) return;
  }
  Log(error ? LogLevel::kWarning : LogLevel::kDebug, "library message",
      {{"library", library}, {"file", file.substr(file.rfind('/') + 1)}, {"line", line}, {"suppressed", suppressed}});
}

void OnGrpcMessage(gpr_log_func_args* arguments) {
  Write("grpc", arguments->severity == GPR_LOG_SEVERITY_ERROR, arguments->file, arguments->line);
}

void OnProtobufMessage(google::protobuf::LogLevel level, const char* file, int line, const std::string&) {
  Write("protobuf", level >= google::protobuf::LOGLEVEL_WARNING, file, line);
}

}  // namespace

void RouteLibraryLogs() {
  gpr_set_log_function(OnGrpcMessage);
  google::protobuf::SetLogHandler(OnProtobufMessage);
}

}  // namespace edgewise::server
