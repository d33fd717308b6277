#include "server/http/port.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "server/base/address.h"
#include "server/guard/listener.h"
#include "server/http/connection.h"
#include "server/observe/log.h"
#include "server/wire/call_thread.h"

namespace edgewise::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr int kBacklog = 1024;
constexpr int kSendBuffer = 128 << 10;  // what the kernel holds of an answer that nobody reads; by itself megabytes
constexpr std::chrono::milliseconds kPause{100};  // after running out of descriptors

// As gRPC names a peer, without the port: a client without a token is one principal on both ports.
std::string PeerName(const asio::ip::address& address) {
  if (address.is_v4()) return absl::StrCat("ipv4:", address.to_string());
  const asio::ip::address_v6 ipv6 = address.to_v6();
  if (ipv6.is_v4_mapped()) return absl::StrCat("ipv4:", make_address_v4(asio::ip::v4_mapped, ipv6).to_string());
  return absl::StrCat("ipv6:%5B", address.to_string(), "%5D");
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
    context_.stop();
    for (std::thread& thread : threads_) thread.join();
    for (const std::shared_ptr<Connection>& connection : Connections()) connection->Close();
  }

  absl::Status Listen() {
    absl::StatusOr<HostPort> parsed = ParseHostPort(options.flag, options.address);
    if (!parsed.ok()) return parsed.status();
    if (parsed->host == "localhost") parsed->host = "127.0.0.1";
    boost::system::error_code error;
    const asio::ip::address ip = asio::ip::make_address(parsed->host, error);
    if (error) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.flag, "=", options.address, ": the host is an IP address or localhost"));
    }
    const tcp::endpoint endpoint(ip, parsed->port);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error && ip.is_v6()) acceptor_.set_option(asio::ip::v6_only(false), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(kBacklog, error);
    if (error) return absl::AlreadyExistsError(absl::StrCat(options.flag, "=", options.address, ": ", error.message()));
    port = acceptor_.local_endpoint(error).port();
    if (certificates_) {
      const absl::Status status = ReadCertificates();
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  void Start() {
    asio::post(acceptor_.get_executor(), [this] { Accept(); });
    for (int thread = 0; thread < options.threads; ++thread) {
      threads_.emplace_back([this] {
        BecomeCallThread("http");
        context_.run();
      });
    }
  }

  void StopListening() {
    if (std::exchange(stopped_, true)) return;
    EndHandshakes({acceptor_.native_handle()});
    absl::Notification closed;
    asio::post(acceptor_.get_executor(), [this, &closed] {
      boost::system::error_code error;
      acceptor_.non_blocking(true, error);
      while (acceptor_.is_open() && !error) {
        tcp::socket socket(asio::make_strand(context_));
        acceptor_.accept(socket, error);
        if (!error) Serve(std::move(socket));
      }
      acceptor_.close(error);
      pause_.cancel();
      closed.Notify();
    });
    closed.WaitForNotification();
  }

  void Drain() {
    host.draining = true;
    for (const std::shared_ptr<Connection>& connection : Connections()) connection->PostDrain();
  }

  size_t connections() {
    const absl::MutexLock lock(&mutex_);
    return open_.size();
  }

  const HttpPortOptions options;
  ConnectionHost host;
  int port = 0;

 private:
  using Peer = asio::ip::address;

  void Accept() {
    acceptor_.async_accept(asio::make_strand(context_), [this](boost::system::error_code error, tcp::socket socket) {
      if (error && !acceptor_.is_open()) return;
      if (error) {  // out of descriptors, perhaps: looks again soon
        pause_.expires_after(kPause);
        pause_.async_wait([this](boost::system::error_code stopped) {
          if (!stopped) Accept();
        });
        return;
      }
      Serve(std::move(socket));
      if (acceptor_.is_open()) Accept();
    });
  }

  void Serve(tcp::socket socket) {
    boost::system::error_code error;
    const Peer peer = socket.remote_endpoint(error).address();
    if (error || !HasRoom(peer)) return;
    socket.set_option(tcp::no_delay(true), error);
    socket.set_option(tcp::socket::send_buffer_size(kSendBuffer), error);
    std::unique_ptr<Transport> transport;
    if (certificates_) {
      const absl::Status status = ReadCertificates();
      if (!status.ok()) Log(LogLevel::kError, "TLS", {{"error", std::string(status.message())}});
      transport = MakeTlsTransport(std::move(socket), tls_);
    } else {
      transport = MakePlainTransport(std::move(socket));
    }
    const uint64_t number = ++last_;
    auto connection = std::make_shared<Connection>(host, std::move(transport), PeerName(peer),
                                                   [this, number, peer] { Forget(number, peer); });
    {
      const absl::MutexLock lock(&mutex_);
      open_[number] = connection;
      ++of_peer_[peer];
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

  bool HasRoom(const Peer& peer) {
    const absl::MutexLock lock(&mutex_);
    const auto same = of_peer_.find(peer);
    return open_.size() < options.max_connections &&
           (same == of_peer_.end() || same->second < options.max_connections_per_peer);
  }

  void Forget(uint64_t number, const Peer& peer) {
    const absl::MutexLock lock(&mutex_);
    open_.erase(number);
    if (--of_peer_[peer] == 0) of_peer_.erase(peer);
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
  std::map<Peer, uint32_t> of_peer_ ABSL_GUARDED_BY(mutex_);                    // connections

  asio::io_context context_;  // after what its connections use
  // Their handlers run one at a time: of a strand.
  tcp::acceptor acceptor_{asio::make_strand(context_)};
  asio::steady_timer pause_{acceptor_.get_executor()};
  bool stopped_ = false;                              // StopListening
  uint64_t last_ = 0;                                 // the number of the last connection
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
int HttpPort::port() const { return state_->port; }
size_t HttpPort::connections() const { return state_->connections(); }
void HttpPort::AnnounceDrain() { state_->host.leaving = true; }
void HttpPort::StopListening() { state_->StopListening(); }
void HttpPort::Drain() { state_->Drain(); }
int64_t HttpPort::open_exchanges() const { return state_->host.exchanges.load(); }

}  // namespace edgewise::server
