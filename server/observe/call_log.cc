#include "server/observe/call_log.h"

#include <google/protobuf/descriptor.h>

#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/field_error.h"
#include "server/base/status_details.h"

namespace edgewise::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;

// Where the messages of clients are defined, and the names of fields that no message has.
constexpr const char* kFiles[] = {"edgewise/v1/inference.proto", "http/bodies.proto", "oip/v2/open_inference.proto"};
constexpr const char* kOtherNames[] = {
    "Content-Type",        "Host", "Inference-Header-Content-Length", "Origin", "timeout", "X-Request-Id",
    "X-Request-Timeout-Ms"};

void AddNames(const Descriptor& message, std::set<std::string, std::less<>>& names) {
  for (int i = 0; i < message.field_count(); ++i) names.insert(message.field(i)->name());
  for (int i = 0; i < message.nested_type_count(); ++i) AddNames(*message.nested_type(i), names);
}

const std::set<std::string, std::less<>>& KnownNames() {
  static const auto& names = *[] {
    auto* known = new std::set<std::string, std::less<>>(std::begin(kOtherNames), std::end(kOtherNames));
    for (const char* name : kFiles) {
      const FileDescriptor* file = DescriptorPool::generated_pool()->FindFileByName(name);
      for (int i = 0; file != nullptr && i < file->message_type_count(); ++i) AddNames(*file->message_type(i), *known);
    }
    return known;
  }();
  return names;
}

// Whether this is a known name with any number of indexes: "inputs[0]".
bool IsKnown(std::string_view segment) {
  const size_t name = segment.find('[');
  if (KnownNames().count(segment.substr(0, name)) == 0) return false;
  if (name == std::string_view::npos) return true;
  bool inside = false, digits = true;
  for (const char c : segment.substr(name)) {
    if (c == '[' || c == ']') {
      if (inside == (c == '[') || (inside && !digits)) return false;
      inside = c == '[';
      digits = false;
    } else {
      if (!inside || c < '0' || c > '9') return false;
      digits = true;
    }
  }
  return !inside;
}

// Who called what, at the end of every line.
void AddCaller(const Call& call, int http_code, std::vector<LogField>& fields) {
  if (call.http) fields.push_back({"http_code", static_cast<int64_t>(http_code)});
  fields.insert(fields.end(),
                {{call.http ? "route" : "method", call.name}, {"peer", call.peer}, {"principal", call.principal.name}});
}

}  // namespace

std::string LoggedField(const absl::Status& status) {
  const std::string field = FieldOf(status);
  for (std::string_view rest = field; !rest.empty();) {
    const size_t dot = rest.find('.');
    if (!IsKnown(rest.substr(0, dot))) return "unknown field";
    rest = dot == std::string_view::npos ? "" : rest.substr(dot + 1);
  }
  return field;
}

void CallLog::End(Call& call, const absl::Status& status, int http_code) {
  const Time now = clock_();
  const double seconds = Seconds(now - call.arrival);
  if (call.rpc) metrics_.CountRpc(*call.rpc, status.code());
  if (held_back_.load(std::memory_order_relaxed)) TellHeldBack(now);
  if (status.ok()) {
    if (!call.quiet) LogAnswered(call, http_code, seconds);
    return;
  }
  if (call.infers && !call.started) {
    std::shared_ptr<ModelMetrics> metrics;
    {
      const absl::MutexLock lock(&call.mutex);
      metrics = call.metrics ? call.metrics : metrics_.other();
    }
    metrics->CountRequest(metrics->Event(), *call.infers, status, 0.0);
  }
  metrics_.CountRefusal(status, http_code);
  LogRefused(call, status, http_code, seconds, now);
}

void CallLog::LogAnswered(Call& call, int http_code, double seconds) {
  const absl::MutexLock lock(&call.mutex);
  const CallWork work = call.work;
  std::vector<LogField> fields = {{"request_id", call.request_id.empty() ? call.id : call.request_id}};
  fields.reserve(18);
  if (!call.model.empty()) fields.push_back({"model", call.model});
  if (work.requests > 0) fields.push_back({"version", call.version});
  fields.push_back({"code", "OK"});
  if (work.requests > 1) fields.push_back({"requests", work.requests});
  if (work.generates) {
    fields.insert(fields.end(), {{"prompt_tokens", work.prompt_tokens}, {"generated_tokens", work.generated_tokens}});
  } else if (work.requests > 0) {
    fields.push_back({"inputs", work.inputs});
  }
  if (work.requests > 0) {
    fields.insert(fields.end(), {{"samples", work.samples},
                                 {"edges", work.edges},
                                 {"density", work.pairs > 0.0 ? work.edges / work.pairs : 0.0},
                                 {"queue_us", Microseconds(work.queue_seconds)},
                                 {"compute_us", Microseconds(work.compute_seconds)}});
  }
  fields.push_back({"total_us", Microseconds(seconds)});
  AddCaller(call, http_code, fields);
  Log(LogLevel::kInfo, work.generates ? "generation" : work.requests > 0 ? "request" : "call", fields);
}

void CallLog::LogRefused(Call& call, const absl::Status& status, int http_code, double seconds, Time now) {
  const std::string code = absl::StatusCodeToString(status.code());
  uint64_t suppressed = 0;
  {
    const absl::MutexLock lock(&mutex_);
    if (!limiter_.Allow(code, now, suppressed)) return held_back_.store(true, std::memory_order_relaxed);
  }
  const std::string field = LoggedField(status), text = LogTextOf(status);
  const absl::MutexLock lock(&call.mutex);
  std::vector<LogField> fields = {{"request_id", call.request_id.empty() ? call.id : call.request_id}};
  if (!call.model.empty()) fields.push_back({"model", call.model});
  fields.insert(fields.end(), {{"code", code}, {"reason", RefusalReason(status)}});
  if (!field.empty()) fields.push_back({"field", field});
  if (!text.empty()) fields.push_back({"error", text});
  fields.insert(fields.end(), {{"total_us", Microseconds(seconds)}, {"suppressed", suppressed}});
  AddCaller(call, http_code, fields);
  Log(LogLevel::kWarning, "refused", fields);
}

void CallLog::TellHeldBack(Time now) {
  std::map<std::string, uint64_t> counts;
  {
    const absl::MutexLock lock(&mutex_);
    counts = limiter_.TakeSuppressed(now);
    held_back_.store(limiter_.suppresses(), std::memory_order_relaxed);
  }
  for (const auto& [code, count] : counts) {
    Log(LogLevel::kWarning, "refusals not logged", {{"code", code}, {"suppressed", count}});
  }
}

}  // namespace edgewise::server
