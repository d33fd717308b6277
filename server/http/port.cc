#include "server/http/port.h"

#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "server/base/address.h"
#include "server/guard/listener.h"
#include "server/http/connection.h"
#include "server/observe/log.h"
#include "server/wire/call_thread.h"

namespace edgewise::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr int kSendBuffer = 128 << 10;  // what the kernel holds of an answer that nobody reads; by itself megabytes

// As gRPC names a peer, without the port: a client without a token is one principal on both ports.
std::string PeerName(const Ipv6Address& address) {
  const asio::ip::address_v6 ipv6(address);
  if (ipv6.is_v4_mapped()) return absl::StrCat("ipv4:", make_address_v4(asio::ip::v4_mapped, ipv6).to_string());
  return absl::StrCat("ipv6:%5B", ipv6.to_string(), "%5D");
}

}  // namespace

class HttpPort::State {
 public:
  State(HttpPortOptions given, const Routes& routes, CallParts* parts, std::shared_ptr<Certificates> certificates)
      : options(std::move(given)),
        host{options, routes, parts},
        certificates_(std::move(certificates)),
        context_(options.threads) {}

  ~State() {
    StopListening();
    context_.stop();
    for (std::thread& thread : threads_) thread.join();
    for (const std::shared_ptr<Connection>& connection : Connections()) connection->Close();
  }

  absl::Status Listen() {
    ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(options.flag, options.address));
    const bool is_name = parsed.host == "localhost";
    boost::system::error_code error;
    asio::ip::make_address(parsed.host, error);
    if (error && !is_name) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.flag, "=", options.address, ": the host is an IP address or localhost"));
    }
    const std::string address = is_name ? absl::StrCat("127.0.0.1:", parsed.port) : options.address;
    ASSIGN_OR_RETURN(listener_, Listener::Open(address, options.connections, options.flag, Listener::Front::kHttp));
    host.connections = &listener_->table();
    host.turns = &turns_;
    return certificates_ ? ReadCertificates() : absl::OkStatus();
  }

  void Start() {
    listener_->Start([this](const Listener::Accepted& accepted) { Serve(accepted); });
    for (int thread = 0; thread < options.threads; ++thread) {
      threads_.emplace_back([this] {
        BecomeCallThread("http");
        context_.run();
      });
    }
  }

  void StopListening() {
    if (listener_) listener_->Stop();
  }

  void Drain() {
    host.draining = true;
    for (const std::shared_ptr<Connection>& connection : Connections()) connection->PostDrain();
  }

  Listener& listener() { return *listener_; }

  const HttpPortOptions options;
  ConnectionHost host;

 private:
  // On the listener's thread.
  void Serve(const Listener::Accepted& accepted) {
    boost::system::error_code error;
    tcp::socket socket(asio::make_strand(context_));
    socket.assign(accepted.is_ipv6 ? tcp::v6() : tcp::v4(), accepted.descriptor, error);
    if (error) {
      listener_->Closing(accepted.connection);
      close(accepted.descriptor);
      return;
    }
    socket.set_option(tcp::socket::send_buffer_size(kSendBuffer), error);
    std::unique_ptr<Transport> transport;
    if (certificates_) {
      const absl::Status status = ReadCertificates();
      if (!status.ok()) Log(LogLevel::kError, "TLS", {{"error", std::string(status.message())}});
      transport = MakeTlsTransport(std::move(socket), tls_);
    } else {
      transport = MakePlainTransport(std::move(socket));
    }
    const uint64_t number = accepted.connection;
    auto connection = std::make_shared<Connection>(host, std::move(transport), PeerName(accepted.address), number,
                                                   [this, number] { Forget(number); });
    {
      const absl::MutexLock lock(&mutex_);
      open_[number] = connection;
    }
    connection->Start();
  }

  // A context for new connections, of the files that were read last.
  absl::Status ReadCertificates() {
    std::shared_ptr<const Certificates::Files> files = certificates_->files();
    if (files == files_) return absl::OkStatus();
    auto context = MakeTlsContext(*files);
    if (!context.ok()) return context.status();
    tls_ = *std::move(context);
    files_ = std::move(files);
    return absl::OkStatus();
  }

  void Forget(uint64_t number) {
    listener_->Closing(number);
    const absl::MutexLock lock(&mutex_);
    open_.erase(number);
  }

  std::vector<std::shared_ptr<Connection>> Connections() {
    std::vector<std::shared_ptr<Connection>> connections;
    const absl::MutexLock lock(&mutex_);
    for (const auto& [_, weak] : open_) {
      if (std::shared_ptr<Connection> connection = weak.lock()) connections.push_back(std::move(connection));
    }
    return connections;
  }

  const std::shared_ptr<Certificates> certificates_;  // null: plain text
  absl::Mutex mutex_;
  std::map<uint64_t, std::weak_ptr<Connection>> open_ ABSL_GUARDED_BY(mutex_);  // by number

  std::unique_ptr<Listener> listener_;
  asio::io_context context_;  // after what its connections use
  const asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  Turns turns_{[this](std::function<void()> run) { asio::post(context_, std::move(run)); }, options.threads};
  // The listener's thread alone uses these, once it runs.
  std::shared_ptr<const Certificates::Files> files_;  // that tls_ is of
  std::shared_ptr<asio::ssl::context> tls_;
  std::vector<std::thread> threads_;
};

absl::StatusOr<std::unique_ptr<HttpPort>> HttpPort::Open(HttpPortOptions options, const Routes& routes,
                                                         CallParts* parts, std::shared_ptr<Certificates> certificates) {
  auto state = std::make_unique<State>(std::move(options), routes, parts, std::move(certificates));
  const absl::Status status = state->Listen();
  if (!status.ok()) return status;
  return std::unique_ptr<HttpPort>(new HttpPort(std::move(state)));
}

HttpPort::HttpPort(std::unique_ptr<State> state) : state_(std::move(state)) {}
HttpPort::~HttpPort() = default;

void HttpPort::Start() { state_->Start(); }
int HttpPort::port() const { return state_->listener().port(); }
size_t HttpPort::connections() const { return state_->listener().connections(); }
Listener& HttpPort::listener() { return state_->listener(); }
const CallCounts& HttpPort::counts() const { return state_->host.counts; }
void HttpPort::AnnounceDrain() { state_->host.leaving = true; }
void HttpPort::StopListening() { state_->StopListening(); }
void HttpPort::Drain() { state_->Drain(); }
int64_t HttpPort::open_exchanges() const { return state_->host.exchanges.load(); }

}  // namespace edgewise::server
