#include "server/guard/certificates.h"

#include <grpc/grpc_security_constants.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace edgewise::server {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;

Bio BytesOf(const std::string& pem) { return {BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free}; }

int NoPassword(char*, int, int, void*) { return 0; }

// One certificate or more, and nothing broken behind them.
absl::Status CheckCertificates(const std::string& certificates, const char* flag) {
  const Bio bytes = BytesOf(certificates);
  size_t found = 0;
  while (X509* certificate = PEM_read_bio_X509(bytes.get(), nullptr, NoPassword, nullptr)) {
    X509_free(certificate);
    ++found;
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (found > 0 && at_end) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": not certificates in PEM form"));
}

// The certificate is in its time, and the key is its own.
absl::Status CheckPair(const std::string& certificate, const std::string& key) {
  RETURN_IF_ERROR(CheckCertificates(certificate, "--tls_certificate"));
  const std::unique_ptr<X509, decltype(&X509_free)> parsed(
      PEM_read_bio_X509(BytesOf(certificate).get(), nullptr, NoPassword, nullptr), X509_free);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> parsed_key(
      PEM_read_bio_PrivateKey(BytesOf(key).get(), nullptr, NoPassword, nullptr), EVP_PKEY_free);
  absl::Status status;
  if (!parsed_key) {
    status = absl::InvalidArgumentError("--tls_key: not a private key in PEM form without a password");
  } else if (X509_check_private_key(parsed.get(), parsed_key.get()) != 1) {
    status = absl::InvalidArgumentError("--tls_key is not the key of --tls_certificate");
  } else if (X509_cmp_current_time(X509_get0_notAfter(parsed.get())) <= 0) {
    status = absl::InvalidArgumentError("--tls_certificate has expired");
  } else if (X509_cmp_current_time(X509_get0_notBefore(parsed.get())) > 0) {
    status = absl::InvalidArgumentError("--tls_certificate is not valid yet");
  }
  ERR_clear_error();
  return status;
}

}  // namespace

bool HasExpired(const std::string& pem) {
  const std::unique_ptr<X509, decltype(&X509_free)> parsed(
      PEM_read_bio_X509(BytesOf(pem).get(), nullptr, NoPassword, nullptr), X509_free);
  ERR_clear_error();
  return !parsed || X509_cmp_current_time(X509_get0_notAfter(parsed.get())) <= 0;
}

Certificates::Certificates(const SecurityOptions& security) : security_(security) {
  for (const std::string& path : {security.tls_certificate, security.tls_key, security.tls_client_ca}) {
    if (!path.empty()) watches_.emplace_back(path);
  }
}

absl::StatusOr<std::shared_ptr<Certificates>> Certificates::Read(const SecurityOptions& security) {
  // The files are watched from before they are read.
  std::shared_ptr<Certificates> certificates(new Certificates(security));
  ASSIGN_OR_RETURN(Files files, ReadFiles(security));
  const absl::MutexLock lock(&certificates->mutex_);
  certificates->files_ = std::make_shared<const Files>(std::move(files));
  return certificates;
}

absl::StatusOr<Certificates::Files> Certificates::ReadFiles(const SecurityOptions& security) {
  Files files;
  ASSIGN_OR_RETURN(files.key, ReadSecretFile(security.tls_key, "--tls_key"));
  ASSIGN_OR_RETURN(files.certificate, ReadSecretFile(security.tls_certificate, "--tls_certificate"));
  RETURN_IF_ERROR(CheckPair(files.certificate, files.key));
  if (security.tls_client_ca.empty()) return files;
  ASSIGN_OR_RETURN(files.client_ca, ReadSecretFile(security.tls_client_ca, "--tls_client_ca"));
  RETURN_IF_ERROR(CheckCertificates(files.client_ca, "--tls_client_ca"));
  return files;
}

absl::StatusOr<bool> Certificates::ReadAgain() {
  bool changed = false;
  for (FileWatch& watch : watches_) changed |= watch.Changed();
  if (!changed) return false;
  ASSIGN_OR_RETURN(Files files, ReadFiles(security_));
  const absl::MutexLock lock(&mutex_);
  files_ = std::make_shared<const Files>(std::move(files));
  fetched_ = false;
  return true;
}

std::shared_ptr<const Certificates::Files> Certificates::files() {
  const absl::MutexLock lock(&mutex_);
  return files_;
}

grpc_ssl_certificate_config_reload_status Certificates::Fetch(grpc_ssl_server_certificate_config** config) {
  const absl::MutexLock lock(&mutex_);
  if (fetched_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  const grpc_ssl_pem_key_cert_pair pair = {files_->key.c_str(), files_->certificate.c_str()};
  // gRPC asks for roots in any case, and uses none where clients show no certificate.
  const std::string& roots = files_->client_ca.empty() ? files_->certificate : files_->client_ca;
  *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
  fetched_ = true;
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

grpc_server_credentials* Certificates::MakeCredentials() {
  const auto fetch = [](void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<Certificates*>(self)->Fetch(config);
  };
  return grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(
          security_.tls_client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                          : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY,
          fetch, this));
}

}  // namespace edgewise::server
