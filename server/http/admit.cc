// The part of a connection that decides, of a head alone, whether its request is served: framing, fields, the names
// that a browser's page may ask by, the route, the caller, the kind and the length of the body.
#include <algorithm>
#include <boost/beast/http/rfc7230.hpp>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "server/base/status_details.h"
#include "server/http/connection.h"
#include "server/http/head.h"

namespace edgewise::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr int64_t kMostMilliseconds = 24 * 3600 * 1000;
constexpr char kNoBody[] = "no body is taken here";

std::string_view View(const beast::string_view& text) { return {text.data(), text.size()}; }

// RFC 9110, 12.5.3.
bool TakesGzip(const http::fields& fields) {
  for (auto [field, end] = fields.equal_range(http::field::accept_encoding); field != end; ++field) {
    for (const auto& [coding, parameters] : http::ext_list(field->value())) {
      if (!beast::iequals(coding, "gzip")) continue;
      double quality = 1.0;
      for (const auto& [name, value] : parameters) {
        if (beast::iequals(name, "q") && !absl::SimpleAtod({value.data(), value.size()}, &quality)) quality = 0.0;
      }
      return quality > 0.0;
    }
  }
  return false;
}

// Whether a Content-Type is this one, whatever its parameters are.
bool IsType(std::string_view type, const char* expected) {
  type = type.substr(0, type.find(';'));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.remove_suffix(1);
  return beast::iequals({type.data(), type.size()}, expected);
}

bool IsRequestId(std::string_view id) {
  return id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
}

}  // namespace

HttpRefusal Connection::Admit(const std::string& head) {
  HttpRefusal refusal = CheckHead(head);
  if (refusal.code != 0) return refusal;
  parser_.emplace();
  parser_->header_limit(2 * kMaxHeadBytes);
  parser_->body_limit(std::numeric_limits<uint64_t>::max());  // TakeBody has its own
  beast::error_code error;
  parser_->put(asio::buffer(head), error);
  if (error || !parser_->is_header_done()) return {400, absl::InvalidArgumentError("this is no request of HTTP/1.1")};
  last_ = !parser_->keep_alive();
  is_old_ = parser_->get().version() < 11;
  for (HttpRefusal (Connection::*check)() :
       {&Connection::ReadFields, &Connection::CheckBrowser, &Connection::CheckCaller, &Connection::CheckBody}) {
    refusal = (this->*check)();
    if (refusal.code != 0) return refusal;
  }
  return {};
}

HttpRefusal Connection::ReadFields() {
  Exchange& exchange = OpenExchange();
  const auto& fields = parser_->get();
  HttpRequest& request = exchange.request;
  request.method = fields.method_string().to_string();
  is_head_ = request.method == "HEAD";
  HttpTarget target;
  const bool valid = ParseTarget(request.method, View(fields.target()), &target);
  request.path = target.path;
  request.host = target.host.empty() ? View(fields[http::field::host]) : target.host;
  request.takes_gzip = TakesGzip(fields);
  request.json_length = View(fields["Inference-Header-Content-Length"]);
  request.if_none_match = View(fields[http::field::if_none_match]);
  if (!valid) {
    return {400, absl::InvalidArgumentError("the target is neither a path from / nor one behind http://HOST")};
  }
  Routes::Match match = host_.routes.Find(request.method, request.path);
  error_ = match.error;
  exchange.route = match.route;
  if (match.route != nullptr) {
    exchange.call.name = match.route->path;
    exchange.call.quiet = match.route->quiet;
    exchange.call.infers = match.route->rpc;
  }
  request.arguments = std::move(match.arguments);
  if (match.refusal.code == 405) fields_.emplace_back("Allow", match.allow);
  const std::string_view id = View(fields["X-Request-Id"]);
  if (!IsRequestId(id)) {
    return {400, FieldError("X-Request-Id", "is longer than 128 characters, or not printable ASCII")};
  }
  request.id = exchange.call.id = id;
  if (!id.empty()) fields_.emplace_back("X-Request-Id", request.id);
  const std::string_view timeout = View(fields["X-Request-Timeout-Ms"]);
  int64_t milliseconds = 0;
  if (!timeout.empty()) {
    if (!absl::SimpleAtoi(absl::string_view(timeout.data(), timeout.size()), &milliseconds) || milliseconds < 1 ||
        milliseconds > kMostMilliseconds) {
      return {400, FieldError("X-Request-Timeout-Ms", absl::StrCat("is ", Quoted(std::string(timeout)),
                                                                   "; allowed are 1 to ", kMostMilliseconds))};
    }
    exchange.deadline = exchange.call.arrival + std::chrono::milliseconds(milliseconds);
  }
  return {};
}

HttpRefusal Connection::CheckBrowser() {
  if (!host_.options.for_browsers) return {};
  const auto& fields = parser_->get();
  const std::string& host = OpenExchange().request.host;
  if (fields[http::field::host].empty() && fields.version() >= 11) {
    return {400, absl::InvalidArgumentError("Host is missing")};
  }
  if (!host.empty() && !IsServedHost(host, host_.options.hosts)) {
    return {403, FieldError("Host", absl::StrCat("is ", Quoted(host),
                                                 "; allowed are addresses, localhost and the names of --http_hosts"))};
  }
  const auto origin = fields.find(http::field::origin);
  if (origin == fields.end()) return {};
  const std::string_view value = View(origin->value());
  if (!IsAllowedOrigin(value, host, host_.options.origins)) {
    return {403, FieldError("Origin", absl::StrCat("is ", Quoted(std::string(value)),
                                                   "; allowed are this server's pages and those of --http_origins"))};
  }
  if (!IsSameOrigin(value, host)) {
    fields_.insert(fields_.end(), {{"Access-Control-Allow-Origin", std::string(value)},
                                   {"Access-Control-Expose-Headers",
                                    "Retry-After, X-Edgewise, X-Request-Id, Inference-Header-Content-Length"},
                                   {"Vary", "Origin"}});
  }
  const bool preflight = fields.method() == http::verb::options && fields.count("Access-Control-Request-Method") > 0;
  return preflight && parser_->is_done() ? HttpRefusal{204, absl::OkStatus()} : HttpRefusal{};
}

HttpRefusal Connection::CheckCaller() {
  Exchange& exchange = OpenExchange();
  const auto& fields = parser_->get();
  const Route* route = exchange.route;
  if (exchange.request.path == "*") {
    return parser_->is_done() ? HttpRefusal{204, absl::OkStatus()}
                              : HttpRefusal{400, absl::InvalidArgumentError(kNoBody)};
  }
  if (route == nullptr) return host_.routes.Find(exchange.request.method, exchange.request.path).refusal;
  CallParts* parts = host_.parts;
  if (parts == nullptr) return {};
  if (route->open) {  // what it takes is nothing, but what lies behind it is counted
    exchange.account = parts->memory.AccountOf(exchange.call.principal.name);
    exchange.behind = MemoryHold(*exchange.account);
    return {};
  }
  std::vector<absl::string_view> authorization;
  for (auto [field, end] = fields.equal_range(http::field::authorization); field != end; ++field) {
    authorization.emplace_back(field->value().data(), field->value().size());
  }
  absl::StatusOr<std::optional<Principal>> known = parts->gate.Admit(authorization);
  absl::Status status = known.status();
  if (status.ok() && parts->handler.draining()) status = ShuttingDown();
  if (!status.ok()) return {HttpCodeOf(status), status};
  if (*known) {
    exchange.call.principal = **std::move(known);
  } else if (std::string subject = transport_->Subject(); !subject.empty()) {
    exchange.call.principal.name = std::move(subject);
  }
  exchange.account = parts->memory.AccountOf(exchange.call.principal.name);
  exchange.body_memory = MemoryHold(*exchange.account);
  exchange.memory = MemoryHold(*exchange.account);
  exchange.behind = MemoryHold(*exchange.account);
  return {};
}

HttpRefusal Connection::CheckBody() {
  Exchange& exchange = OpenExchange();
  const bool post = std::string_view(exchange.route->method) == "POST";
  if (parser_->is_done()) return {};
  if (!post || host_.parts == nullptr) return {400, absl::InvalidArgumentError(kNoBody)};
  const std::string_view type = View(parser_->get()[http::field::content_type]);
  const bool binary = exchange.route->binary && (type.empty() || IsType(type, "application/octet-stream"));
  if (!binary && !IsType(type, "application/json")) {
    return {415, FieldError("Content-Type", absl::StrCat("is ", Quoted(std::string(type)), "; the body must be ",
                                                         exchange.route->binary ? "application/octet-stream or " : "",
                                                         "application/json"))};
  }
  const uint64_t limit = host_.parts->message_limit();
  if (const auto length = parser_->content_length(); length && *length > limit) {
    return {413, absl::ResourceExhaustedError(
                     absl::StrCat("the body has ", *length, " bytes; the server takes at most ", limit))};
  }
  const absl::Status status = exchange.body_memory.Resize(kSilentCallBytes);
  return {status.ok() ? 0 : HttpCodeOf(status), status};
}

void Connection::AnswerOptions() {
  if (!HoldBehind()) DropBehind();
  if (OpenExchange().request.path == "*") return WriteAnswer({.code = 204, .type = ""});
  fields_.emplace_back("Access-Control-Allow-Methods", "GET, POST");
  fields_.emplace_back("Access-Control-Max-Age", "600");
  const beast::string_view asked = parser_->get()["Access-Control-Request-Headers"];
  if (!asked.empty()) fields_.emplace_back("Access-Control-Allow-Headers", asked.to_string());
  WriteAnswer({.code = 204, .type = ""});
}

}  // namespace edgewise::server
