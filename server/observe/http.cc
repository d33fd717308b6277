#include "server/observe/http.h"

#include <pthread.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/base/address.h"
#include "server/observe/gzip.h"

namespace edgewise::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;

constexpr uint32_t kMaxHeaderBytes = 8192;
constexpr int kMaxConnections = 64;
constexpr size_t kMaxIgnoredBytes = 1 << 20;  // of a body
constexpr char kText[] = "text/plain; charset=utf-8";

// Whether the client takes gzip: RFC 9110, 12.5.3.
bool AcceptsGzip(const http::request_header<>& request) {
  for (auto [field, end] = request.equal_range(http::field::accept_encoding); field != end; ++field) {
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

// One connection: one request, one answer.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, const HttpHandlers& handlers, std::chrono::milliseconds timeout, int& open)
      : stream_(std::move(socket)), handlers_(handlers), timeout_(timeout), open_(open) {
    ++open_;
  }
  ~Connection() { --open_; }

  void Run() {
    parser_.header_limit(kMaxHeaderBytes);
    parser_.body_limit(std::numeric_limits<uint64_t>::max());  // none is read
    stream_.expires_after(timeout_);
    http::async_read_header(stream_, buffer_, parser_, [self = shared_from_this()](beast::error_code error, size_t) {
      if (error == http::error::header_limit || error == http::error::buffer_overflow) {
        return self->Answer(http::status::request_header_fields_too_large, kText, "the header is over 8 KiB\n");
      }
      if (error == http::error::end_of_stream || error == beast::error::timeout) return;
      if (error && error.category() != http::make_error_code(http::error::end_of_stream).category()) return;
      if (error) return self->Answer(http::status::bad_request, kText, "not an HTTP/1.1 request\n");
      self->Route();
    });
  }

 private:
  bool is_head() const { return parser_.get().method() == http::verb::head; }

  void Route() {
    const auto& request = parser_.get();
    const auto view = request.target().substr(0, request.target().find('?'));
    const std::string target(view.data(), view.size());
    if (target != "/metrics" && target != "/healthz") {
      return Answer(http::status::not_found, kText, "there are /metrics and /healthz\n");
    }
    if (request.method() != http::verb::get && !is_head()) {
      response_.set(http::field::allow, "GET, HEAD");
      return Answer(http::status::method_not_allowed, kText, "GET and HEAD only\n");
    }
    if (!parser_.is_done()) return Answer(http::status::payload_too_large, kText, "no body is taken\n");
    if (target == "/metrics") return AnswerMetrics();
    std::string json;
    const bool healthy = handlers_.healthy(&json);
    Answer(healthy ? http::status::ok : http::status::service_unavailable, "application/json", std::move(json));
  }

  void AnswerMetrics() {
    std::string text = is_head() ? "" : handlers_.metrics();
    response_.set(http::field::vary, "Accept-Encoding");
    if (AcceptsGzip(parser_.get())) {
      std::string packed = Gzip(text);
      if (!packed.empty()) {
        response_.set(http::field::content_encoding, "gzip");
        text = std::move(packed);
      }
    }
    Answer(http::status::ok, "text/plain; version=0.0.4; charset=utf-8", std::move(text));
  }

  void Answer(http::status status, const char* type, std::string body) {
    response_.result(status);
    response_.version(11);
    response_.set(http::field::content_type, type);
    response_.set(http::field::cache_control, "no-store");
    response_.keep_alive(false);
    if (!is_head()) {
      response_.content_length(body.size());
      response_.body() = std::move(body);
    }
    stream_.expires_after(timeout_);
    http::async_write(stream_, response_, [self = shared_from_this()](beast::error_code error, size_t) {
      beast::error_code ignored;
      self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
      if (!error && !self->parser_.is_done()) self->Ignore();
    });
  }

  // Reads what comes of a body: a socket that closes with unread bytes resets the connection, and the client would
  // never see the answer.
  void Ignore() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(kMaxHeaderBytes),
                            [self = shared_from_this()](beast::error_code error, size_t size) {
                              self->ignored_ += size;
                              if (!error && self->ignored_ < kMaxIgnoredBytes) self->Ignore();
                            });
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kMaxHeaderBytes};
  http::request_parser<http::empty_body> parser_;
  http::response<http::string_body> response_;
  size_t ignored_ = 0;
  const HttpHandlers& handlers_;
  const std::chrono::milliseconds timeout_;
  int& open_;
};

}  // namespace

struct HttpServer::State {
  HttpHandlers handlers;
  std::chrono::milliseconds timeout{};
  int open = 0;                 // connections; the server's thread only
  asio::io_context context{1};  // after what its connections use
  tcp::acceptor acceptor{context};
  asio::steady_timer pause{context};
  std::thread thread;

  void Accept() {
    acceptor.async_accept([this](beast::error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) {  // out of descriptors, perhaps: look again soon
        pause.expires_after(std::chrono::milliseconds(100));
        pause.async_wait([this](beast::error_code stopped) {
          if (!stopped) Accept();
        });
        return;
      }
      if (open < kMaxConnections) std::make_shared<Connection>(std::move(socket), handlers, timeout, open)->Run();
      Accept();
    });
  }
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address, HttpHandlers handlers,
                                                              std::chrono::milliseconds timeout) {
  absl::StatusOr<HostPort> parsed = ParseHostPort("--metrics_listen", address);
  if (!parsed.ok()) return parsed.status();
  if (parsed->host == "localhost") parsed->host = "127.0.0.1";
  beast::error_code error;
  const asio::ip::address ip = asio::ip::make_address(parsed->host, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics_listen=", address, ": the host is an IP address or localhost"));
  }
  auto state = std::make_unique<State>();
  state->handlers = std::move(handlers);
  state->timeout = timeout;
  const tcp::endpoint endpoint(ip, parsed->port);
  state->acceptor.open(endpoint.protocol(), error);
  if (!error) state->acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) state->acceptor.bind(endpoint, error);
  if (!error) state->acceptor.listen(kMaxConnections, error);
  if (error) return absl::AlreadyExistsError(absl::StrCat("--metrics_listen=", address, ": ", error.message()));
  state->Accept();
  state->thread = std::thread([raw = state.get()] {
    pthread_setname_np(pthread_self(), "http");
    raw->context.run();
  });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpServer::~HttpServer() {
  state_->context.stop();
  state_->thread.join();
}

int HttpServer::port() const {
  beast::error_code ignored;
  return state_->acceptor.local_endpoint(ignored).port();
}

}  // namespace edgewise::server
