#include "server/http/transport.h"

#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <ctime>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace edgewise::server {
namespace {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;
using asio::ip::tcp;

constexpr unsigned char kSessionContext[] = "edgewise";

std::time_t EndOf(const X509* certificate) {
  std::tm end{};
  return ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) == 1 ? timegm(&end) : 0;
}

// OpenSSL checks the client's certificate in the first handshake only, and a ticket does not hold the whole chain: so
// it gets the time at which the chain's first certificate expires. Tickets of a resumed session are copies, with this
// time.
int BoundTicket(SSL* ssl, void*) {
  if (SSL_session_reused(ssl)) return 1;
  std::time_t end = std::numeric_limits<std::time_t>::max();
  const STACK_OF(X509)* chain = SSL_get0_verified_chain(ssl);
  for (int i = 0; i < sk_X509_num(chain); ++i) end = std::min(end, EndOf(sk_X509_value(chain, i)));
  return SSL_SESSION_set1_ticket_appdata(SSL_get_session(ssl), &end, sizeof end);
}

// A ticket that is ignored makes the handshake a whole one, which checks the certificate.
SSL_TICKET_RETURN UseTicket(SSL*, SSL_SESSION* session, const unsigned char*, size_t, SSL_TICKET_STATUS status, void*) {
  if (status != SSL_TICKET_SUCCESS && status != SSL_TICKET_SUCCESS_RENEW) return SSL_TICKET_RETURN_IGNORE_RENEW;
  std::time_t end = 0;
  void* data = nullptr;
  size_t size = 0;
  if (SSL_SESSION_get0_ticket_appdata(session, &data, &size) == 1 && size == sizeof end) std::memcpy(&end, data, size);
  if (std::time(nullptr) >= end) return SSL_TICKET_RETURN_IGNORE_RENEW;
  return status == SSL_TICKET_SUCCESS ? SSL_TICKET_RETURN_USE : SSL_TICKET_RETURN_USE_RENEW;
}

void ResumeByTickets(SSL_CTX* context) {
  // Without it OpenSSL ends the resumption of a session that has a certificate.
  SSL_CTX_set_session_id_context(context, kSessionContext, sizeof kSessionContext - 1);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_session_ticket_cb(context, BoundTicket, UseTicket, nullptr);
}

class Plain final : public Transport {
 public:
  explicit Plain(tcp::socket socket) : socket_(std::move(socket)) {}

  tcp::socket& socket() override { return socket_; }
  void Handshake(std::function<void(const Error&)> done) override { done({}); }
  void Read(asio::mutable_buffer bytes, Done done) override { socket_.async_read_some(bytes, std::move(done)); }
  void Write(asio::const_buffer bytes, Done done) override { asio::async_write(socket_, bytes, std::move(done)); }
  void EndWrites(std::function<void(const Error&)> done) override {
    Error error;
    socket_.shutdown(tcp::socket::shutdown_send, error);
    done(error);
  }
  std::string Subject() const override { return ""; }

 private:
  tcp::socket socket_;
};

class Tls final : public Transport {
 public:
  Tls(tcp::socket socket, std::shared_ptr<ssl::context> context)
      : context_(std::move(context)), stream_(std::move(socket), *context_) {}

  tcp::socket& socket() override { return stream_.next_layer(); }
  void Handshake(std::function<void(const Error&)> done) override {
    stream_.async_handshake(ssl::stream_base::server, std::move(done));
  }
  void Read(asio::mutable_buffer bytes, Done done) override { stream_.async_read_some(bytes, std::move(done)); }
  void Write(asio::const_buffer bytes, Done done) override { asio::async_write(stream_, bytes, std::move(done)); }
  void EndWrites(std::function<void(const Error&)> done) override {
    // Asio would wait for the client's close_notify, were it not thought to be there when it begins.
    SSL* ssl = stream_.native_handle();
    const int before = SSL_get_shutdown(ssl);
    SSL_set_shutdown(ssl, before | SSL_RECEIVED_SHUTDOWN);
    stream_.async_shutdown([this, done = std::move(done)](const Error& error) {
      Error ignored;
      socket().shutdown(tcp::socket::shutdown_send, ignored);
      done(error);
    });
    SSL_set_shutdown(ssl, before | SSL_SENT_SHUTDOWN);
  }

  // As gRPC writes it (GRPC_X509_SUBJECT_PROPERTY_NAME): a client is one principal on both ports.
  std::string Subject() const override {
    const std::unique_ptr<X509, decltype(&X509_free)> certificate(
        SSL_get_peer_certificate(const_cast<ssl::stream<tcp::socket>&>(stream_).native_handle()), X509_free);
    const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), BIO_free);
    if (!certificate || !out) return "";
    X509_NAME_print_ex(out.get(), X509_get_subject_name(certificate.get()), 0, XN_FLAG_RFC2253);
    char* text = nullptr;
    const long size = BIO_get_mem_data(out.get(), &text);
    return size > 0 ? std::string(text, static_cast<size_t>(size)) : "";
  }

 private:
  const std::shared_ptr<ssl::context> context_;
  ssl::stream<tcp::socket> stream_;
};

}  // namespace

std::unique_ptr<Transport> MakePlainTransport(tcp::socket socket) { return std::make_unique<Plain>(std::move(socket)); }

std::unique_ptr<Transport> MakeTlsTransport(tcp::socket socket, std::shared_ptr<ssl::context> context) {
  return std::make_unique<Tls>(std::move(socket), std::move(context));
}

absl::StatusOr<std::shared_ptr<ssl::context>> MakeTlsContext(const Certificates::Files& files) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
  Transport::Error error;
  context->use_certificate_chain(asio::buffer(files.certificate), error);
  if (!error) context->use_private_key(asio::buffer(files.key), ssl::context::pem, error);
  if (!error && !files.client_ca.empty()) {
    context->add_certificate_authority(asio::buffer(files.client_ca), error);
    if (!error) context->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert, error);
    ResumeByTickets(context->native_handle());
  }
  if (error) return absl::InvalidArgumentError(absl::StrCat("--tls_certificate: ", error.message()));
  return context;
}

}  // namespace edgewise::server
