// A port of HTTP over TLS: whose sessions are resumed and for how long, and how its connections end.
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "server/guard/certificates.h"
#include "server/http/port.h"
#include "server/http/state.h"
#include "server/http/transport.h"
#include "tests/server/test_models.h"
#include "tests/server/tls_client.h"
#include "tests/server/wait_until.h"

namespace edgewise::server {
namespace {

constexpr long kDay = 86400;

// By the version of TLS.
class HttpTlsTest : public ::testing::TestWithParam<int> {
 protected:
  HttpTlsTest() {
    AddStateRoutes(routes_, {[] { return std::string(); }, [](std::string*) { return true; }});
  }

  // The files of the port, and which clients it lets in.
  void WriteFiles(const Identity& server, const Identity& client_ca) {
    folder_.Write("certificate.pem", server.certificate_pem());
    folder_.Write("key.pem", server.key_pem());
    folder_.Write("ca.pem", client_ca.certificate_pem());
  }

  void Open(const Identity& server, const Identity& client_ca,
            std::chrono::milliseconds idle_timeout = std::chrono::hours(1)) {
    WriteFiles(server, client_ca);
    const std::string path = folder_.path();
    certificates_ = Certificates::Read({.tls_certificate = path + "/certificate.pem",
                                        .tls_key = path + "/key.pem",
                                        .tls_client_ca = path + "/ca.pem"})
                        .value();
    HttpPortOptions options{.flag = "--here", .address = "127.0.0.1:0", .idle_timeout = idle_timeout};
    port_ = HttpPort::Open(options, routes_, nullptr, certificates_).value();
    port_->Start();
  }

  struct Outcome {
    int code = 0;  // 0: the server let it not in
    bool resumed = false;
    Session session;
  };
  Outcome Ask(const Identity& client, SSL_SESSION* session = nullptr, const Identity* issuer = nullptr) {
    TlsClient asks(port_->port(), {GetParam(), &client, issuer, session});
    if (!asks.connected()) return {};
    Outcome outcome{.code = asks.Ask("GET", "/livez").code, .resumed = asks.resumed()};
    if (outcome.code != 0) outcome.session = asks.session();
    return outcome;
  }

  TestFolder folder_;
  Routes routes_;
  std::shared_ptr<Certificates> certificates_;
  std::unique_ptr<HttpPort> port_;
};

INSTANTIATE_TEST_SUITE_P(Tls, HttpTlsTest, ::testing::Values(TLS1_2_VERSION, TLS1_3_VERSION),
                         [](const auto& version) { return version.param == TLS1_2_VERSION ? "1_2" : "1_3"; });

TEST_P(HttpTlsTest, SessionsOfClientsWithCertificatesAreResumed) {
  const Identity server("server", kDay), ca("ca", kDay), client("client", kDay, &ca);
  Open(server, ca);
  Outcome last = Ask(client);
  EXPECT_EQ(last.code, 200);
  EXPECT_FALSE(last.resumed);
  for (int i = 0; i < 3; ++i) {
    ASSERT_NE(last.session, nullptr);
    Outcome next = Ask(client, last.session.get());
    EXPECT_EQ(next.code, 200);
    EXPECT_TRUE(next.resumed);
    if (next.session) last.session = std::move(next.session);  // TLS 1.2 goes on with the first one
  }
}

TEST_P(HttpTlsTest, AResumedSessionHasTheSubjectOfItsFirstHandshake) {
  const Identity server("server", kDay), ca("ca", kDay), client("client", kDay, &ca), other("other", kDay, &ca);
  const auto context = MakeTlsContext(
      {.certificate = server.certificate_pem(), .key = server.key_pem(), .client_ca = ca.certificate_pem()});
  ASSERT_TRUE(context.ok()) << context.status();
  Session session;
  for (const Identity* shown : {&client, &other}) {
    boost::asio::io_context io;
    boost::asio::ip::tcp::acceptor acceptor(io, {boost::asio::ip::address_v4::loopback(), 0});
    bool resumed = false;
    std::thread asks([&] {
      TlsClient asked(acceptor.local_endpoint().port(), {GetParam(), shown, nullptr, session.get()});
      resumed = asked.resumed();
      EXPECT_TRUE(asked.Ended());  // reads the session
      if (!session) session = asked.session();
    });
    {
      const std::unique_ptr<Transport> transport = MakeTlsTransport(acceptor.accept(), *context);
      transport->Handshake([&](const Transport::Error& error) {
        EXPECT_FALSE(error) << error.message();
        EXPECT_EQ(transport->Subject(), "CN=client");
        transport->EndWrites([](const Transport::Error& failed) { EXPECT_FALSE(failed) << failed.message(); });
      });
      io.run();
    }
    asks.join();
    EXPECT_EQ(resumed, shown == &other);
  }
}

// The leaf of a client's chain expires, then what signed it: tickets hold the leaf alone.
TEST_P(HttpTlsTest, NoSessionOutlivesTheCertificatesOfItsClient) {
  const Identity server("server", kDay), ca("ca", kDay);
  Open(server, ca);
  for (const bool leaf : {true, false}) {
    Outcome first, second;
    std::unique_ptr<Identity> middle, client;
    for (long seconds = 2; second.code == 0 && seconds < 100; seconds *= 2) {  // a busy machine may need more
      middle = std::make_unique<Identity>("middle", leaf ? kDay : seconds, &ca);
      client = std::make_unique<Identity>("client", leaf ? seconds : kDay, middle.get());
      first = Ask(*client, nullptr, middle.get());
      if (first.code != 0) second = Ask(*client, first.session.get(), middle.get());
    }
    ASSERT_EQ(second.code, 200);
    EXPECT_TRUE(second.resumed);
    ASSERT_TRUE(WaitUntil("the certificate to expire", [&] { return (leaf ? client : middle)->expired(); }));
    EXPECT_EQ(Ask(*client, first.session.get(), middle.get()).code, 0) << leaf;
    if (second.session) {
      EXPECT_EQ(Ask(*client, second.session.get(), middle.get()).code, 0) << leaf << ": of the resumed one";
    }
  }
}

TEST_P(HttpTlsTest, NoSessionOutlivesAReloadOfCertificateKeyOrCa) {
  const Identity server("server", kDay), next_server("server", kDay), ca("ca", kDay), next_ca("ca", kDay);
  const Identity client("client", kDay, &ca), next_client("client", kDay, &next_ca);
  Open(server, ca);
  const Outcome first = Ask(client);
  ASSERT_NE(first.session, nullptr);
  const auto reload = [&](const Identity& shown, const Identity& client_ca) {
    EXPECT_TRUE(WaitUntil("the files to be read", [&] {
      WriteFiles(shown, client_ca);  // again, as long as the times of the files are those from before
      return certificates_->ReadAgain().value_or(false);
    }));
  };
  reload(next_server, ca);
  const Outcome second = Ask(client, first.session.get());
  EXPECT_EQ(second.code, 200);
  EXPECT_FALSE(second.resumed);
  ASSERT_NE(second.session, nullptr);
  reload(next_server, next_ca);
  EXPECT_EQ(Ask(client, second.session.get()).code, 0) << "the new CA did not sign it";
  EXPECT_EQ(Ask(next_client).code, 200);
}

TEST_P(HttpTlsTest, ConnectionsEndWithCloseNotify) {
  const Identity server("server", kDay), ca("ca", kDay), client("client", kDay, &ca);
  Open(server, ca);
  const TlsClientOptions options{GetParam(), &client};
  TlsClient told(port_->port(), options);
  EXPECT_EQ(told.Ask("GET", "/livez", "Connection: close\r\n").code, 200);
  EXPECT_TRUE(told.Ended());
  EXPECT_TRUE(told.got_close_notify());
  TlsClient drained(port_->port(), options);
  EXPECT_EQ(drained.Ask("GET", "/livez").code, 200);
  port_->AnnounceDrain();
  port_->Drain();
  EXPECT_TRUE(drained.Ended());
  EXPECT_TRUE(drained.got_close_notify());
  Open(server, ca, std::chrono::milliseconds(50));
  TlsClient idle(port_->port(), options);
  EXPECT_TRUE(idle.Ended());
  EXPECT_TRUE(idle.got_close_notify());
}

}  // namespace
}  // namespace edgewise::server
