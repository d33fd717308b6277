// The bytes of a connection, plain or by TLS. Includes Asio.
#ifndef EDGEWISE_SERVER_HTTP_TRANSPORT_H_
#define EDGEWISE_SERVER_HTTP_TRANSPORT_H_

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/guard/certificates.h"

namespace edgewise::server {

// One read and one write at a time. All on the strand of the socket.
class Transport {
 public:
  using Error = boost::system::error_code;
  using Done = std::function<void(const Error&, size_t)>;

  virtual ~Transport() = default;
  virtual boost::asio::ip::tcp::socket& socket() = 0;
  // Call once, before all else.
  virtual void Handshake(std::function<void(const Error&)> done) = 0;
  virtual void Read(boost::asio::mutable_buffer bytes, Done done) = 0;  // some
  virtual void Write(boost::asio::const_buffer bytes, Done done) = 0;   // all
  // Tells the client that no more bytes come: by close_notify of TLS, then by the end of the socket's half. Reads go
  // on. Not during a Write.
  virtual void EndWrites(std::function<void(const Error&)> done) = 0;
  // The subject of the client's certificate; empty: it showed none.
  virtual std::string Subject() const = 0;
};

std::unique_ptr<Transport> MakePlainTransport(boost::asio::ip::tcp::socket socket);
std::unique_ptr<Transport> MakeTlsTransport(boost::asio::ip::tcp::socket socket,
                                            std::shared_ptr<boost::asio::ssl::context> context);

// From TLS 1.2 on. Clients with certificates resume sessions, by tickets, until the first certificate of the chain that
// they showed expires; a session is known to the context that made it, and to no other. INVALID_ARGUMENT: OpenSSL does
// not take a file, which Certificates has checked.
absl::StatusOr<std::shared_ptr<boost::asio::ssl::context>> MakeTlsContext(const Certificates::Files& files);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_TRANSPORT_H_
