// Certificates that a test makes, and a client of HTTP/1.1 over TLS that keeps its sessions. Includes OpenSSL.
#ifndef EDGEWISE_TESTS_SERVER_TLS_CLIENT_H_
#define EDGEWISE_TESTS_SERVER_TLS_CLIENT_H_

#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <string>

#include "tests/server/http_client.h"

namespace edgewise::server {

template <auto Free>
struct OpenSslFree {
  template <typename T>
  void operator()(T* value) const {
    Free(value);
  }
};
using Certificate = std::unique_ptr<X509, OpenSslFree<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, OpenSslFree<EVP_PKEY_free>>;
using Session = std::unique_ptr<SSL_SESSION, OpenSslFree<SSL_SESSION_free>>;

// A certificate with its key. It may sign others.
class Identity {
 public:
  // Valid until `seconds` from now. Null `issuer`: it signs itself.
  Identity(const std::string& name, long seconds, const Identity* issuer = nullptr)
      : key_(EVP_EC_gen("P-256")), certificate_(X509_new()) {
    static long serial = 0;
    X509* made = certificate_.get();
    X509_set_version(made, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(made), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(made), -3600);
    X509_gmtime_adj(X509_getm_notAfter(made), seconds);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(made), "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    const Identity& signer = issuer != nullptr ? *issuer : *this;
    X509_set_issuer_name(made, X509_get_subject_name(signer.certificate_.get()));
    X509_set_pubkey(made, key_.get());
    const std::unique_ptr<X509_EXTENSION, OpenSslFree<X509_EXTENSION_free>> may_sign(
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, "critical,CA:TRUE"));
    X509_add_ext(made, may_sign.get(), -1);
    const std::unique_ptr<X509_EXTENSION, OpenSslFree<X509_EXTENSION_free>> address(
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1"));
    X509_add_ext(made, address.get(), -1);
    EXPECT_GT(X509_sign(made, signer.key_.get(), EVP_sha256()), 0);
  }

  X509* certificate() const { return certificate_.get(); }
  EVP_PKEY* key() const { return key_.get(); }
  std::string certificate_pem() const {
    return Pem([this](BIO* out) { PEM_write_bio_X509(out, certificate()); });
  }
  std::string key_pem() const {
    return Pem([this](BIO* out) { PEM_write_bio_PrivateKey(out, key(), nullptr, nullptr, 0, nullptr, nullptr); });
  }
  bool expired() const { return X509_cmp_current_time(X509_get0_notAfter(certificate())) <= 0; }

 private:
  template <typename Write>
  static std::string Pem(Write write) {
    const std::unique_ptr<BIO, OpenSslFree<BIO_free>> out(BIO_new(BIO_s_mem()));
    write(out.get());
    char* text = nullptr;
    const long size = BIO_get_mem_data(out.get(), &text);
    return std::string(text, static_cast<size_t>(size));
  }

  const Key key_;
  const Certificate certificate_;
};

struct TlsClientOptions {
  int version = TLS1_3_VERSION;
  const Identity* identity = nullptr;  // null: it shows no certificate
  const Identity* issuer = nullptr;    // of it, shown with it
  SSL_SESSION* session = nullptr;      // that it offers to resume
};

// Takes any certificate of the server.
class TlsClient : public HttpClient {
 public:
  TlsClient(int port, const TlsClientOptions& options, bool* refused = nullptr)
      : HttpClient(port, 1, refused), context_(SSL_CTX_new(TLS_client_method())) {
    std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
    SSL_CTX* context = context_.get();
    SSL_CTX_set_min_proto_version(context, options.version);
    SSL_CTX_set_max_proto_version(context, options.version);
    // Not in a store of the context, which would give them up at its end.
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(context, [](SSL* ssl, SSL_SESSION* session) {
      static_cast<TlsClient*>(SSL_get_app_data(ssl))->session_.reset(session);
      return 1;
    });
    if (options.identity != nullptr) {
      SSL_CTX_use_certificate(context, options.identity->certificate());
      SSL_CTX_use_PrivateKey(context, options.identity->key());
    }
    if (options.issuer != nullptr) SSL_CTX_add1_chain_cert(context, options.issuer->certificate());
    ssl_.reset(SSL_new(context));
    SSL_set_app_data(ssl_.get(), this);
    SSL_set_fd(ssl_.get(), fd());
    if (options.session != nullptr) SSL_set_session(ssl_.get(), options.session);
    connected_ = SSL_connect(ssl_.get()) == 1;
  }

  ~TlsClient() override {
    if (connected_) SSL_shutdown(ssl_.get());  // else OpenSSL gives the session up
  }

  // Whether the client's part of the handshake is done. The server may refuse its certificate after that.
  bool connected() const { return connected_; }
  bool resumed() const { return SSL_session_reused(ssl_.get()) == 1; }
  // The last session that the server has given; null: none. TLS 1.3 gives it with the first answer.
  Session session() const {
    if (session_) SSL_SESSION_up_ref(session_.get());
    return Session(session_.get());
  }
  bool got_close_notify() const { return (SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN) != 0; }

 private:
  ssize_t WriteSome(const char* bytes, size_t size) override {
    return SSL_write(ssl_.get(), bytes, static_cast<int>(size));
  }
  ssize_t ReadSome(char* bytes, size_t size) override {
    return std::max(0, SSL_read(ssl_.get(), bytes, static_cast<int>(size)));
  }

  const std::unique_ptr<SSL_CTX, OpenSslFree<SSL_CTX_free>> context_;
  Session session_;
  std::unique_ptr<SSL, OpenSslFree<SSL_free>> ssl_;
  bool connected_ = false;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_TLS_CLIENT_H_
