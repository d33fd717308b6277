#include "server/guard/auth.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "server/guard/principal.h"
#include "tests/server/test_models.h"

namespace edgewise::server {
namespace {

TEST(TokenSetTest, AllowsExactlyTheTokensOfTheFile) {
  TestFolder folder;
  folder.Write("tokens", "# comment\n\n0123456789abcdef\nsecond-token-of-the-file\r\n");
  absl::StatusOr<TokenSet> tokens = TokenSet::Read(folder.path() + "/tokens");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_NE(tokens->Find("Bearer 0123456789abcdef"), nullptr);
  EXPECT_NE(tokens->Find("Bearer second-token-of-the-file"), nullptr);
  EXPECT_NE(tokens->Find("bearer 0123456789abcdef"), nullptr) << "a scheme has no case";
  for (const char* wrong : {"", "Bearer", "Bearer ", "0123456789abcdef", "bearer 1123456789abcdef",
                            "Bearer 0123456789ABCDEF", "Bearer 0123456789abcde", "Bearer 0123456789abcdef ",
                            "Bearer  0123456789abcdef", "Bearer # comment", "Basic 0123456789abcdef"}) {
    EXPECT_EQ(tokens->Find(wrong), nullptr) << wrong;
  }
}

TEST(TokenSetTest, ATokenIsAPrincipalThatDoesNotShowIt) {
  TestFolder folder;
  folder.Write("tokens", "0123456789abcdef\nsecond-token-of-the-file priority=3\r\n");
  absl::StatusOr<TokenSet> tokens = TokenSet::Read(folder.path() + "/tokens");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  const Principal* first = tokens->Find("Bearer 0123456789abcdef");
  const Principal* second = tokens->Find("Bearer second-token-of-the-file");
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->name, "9f9f5111f7b27a78") << "of its SHA-256";
  EXPECT_EQ(first->highest_level, 1u);
  EXPECT_NE(second->name, first->name);
  EXPECT_EQ(second->highest_level, 3u);
  EXPECT_EQ(tokens->Find("Bearer second-token-of-the-file priority=3"), nullptr);
}

TEST(TokenSetTest, OnlyAPriorityMayFollowAToken) {
  TestFolder folder;
  for (const char* words : {" priority=0", " priority=4", " priority", "  priority=1", " level=1", " priority=1 x"}) {
    folder.Write("tokens", std::string("0123456789abcdef") + words + "\n");
    const absl::Status status = TokenSet::Read(folder.path() + "/tokens").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << words;
    EXPECT_EQ(status.message(), "--auth_token_file: a token is followed by \"" + std::string(words) +
                                    "\"; allowed is \" priority=N\" with 1 to 3");
  }
}

TEST(PrincipalTest, AnAddressIsOnePrincipalWhateverItsPort) {
  EXPECT_EQ(WithoutPort("ipv4:10.0.0.1:1234"), "ipv4:10.0.0.1");
  EXPECT_EQ(WithoutPort("ipv6:%5B::1%5D:1234"), "ipv6:%5B::1%5D");
  EXPECT_EQ(WithoutPort("unix:/tmp/socket:1"), "unix:/tmp/socket:1");
}

TEST(TokenSetTest, ShortTokensAndEmptyFilesAreRefused) {
  TestFolder folder;
  folder.Write("short", "secret\n");
  folder.Write("none", "# only a comment\n");
  EXPECT_EQ(TokenSet::Read(folder.path() + "/short").status().message(),
            "--auth_token_file: a token has 6 characters; allowed are 16 to 1024");
  EXPECT_TRUE(absl::IsInvalidArgument(TokenSet::Read(folder.path() + "/none").status()));
  EXPECT_TRUE(absl::IsNotFound(TokenSet::Read(folder.path() + "/missing").status()));
}

TEST(TokenSetTest, FileThatNeverEndsOrIsNoneIsRefused) {
  TestFolder folder;
  ASSERT_EQ(mkfifo((folder.path() + "/fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/zero", folder.path() + "/zero");
  folder.Write("large", std::string((16 << 20) + 1, 'a'));
  folder.Write("tokens", "0123456789abcdef\n");
  std::filesystem::create_symlink("tokens", folder.path() + "/link");  // as Kubernetes mounts secrets
  const auto error = [&](const std::string& file) {
    return std::string(TokenSet::Read(folder.path() + file).status().message());
  };
  for (const char* file : {"", "/fifo", "/zero"}) {
    EXPECT_EQ(error(file), "--auth_token_file " + folder.path() + file + ": is not a regular file");
  }
  EXPECT_EQ(error("/large"),
            "--auth_token_file " + folder.path() + "/large: has 16777217 bytes; at most 16777216 are allowed");
  EXPECT_EQ(error("/link"), "");
}

TEST(CredentialsTest, OpenAddressNeedsTlsOrAnExplicitWord) {
  ServerOptions options;
  options.listen = "0.0.0.0:8001";
  EXPECT_TRUE(absl::IsInvalidArgument(MakeCredentials(options).status()));
  options.security.insecure_bind = true;
  EXPECT_TRUE(MakeCredentials(options).ok());
  options.security.auth_token_file = "tokens";
  EXPECT_TRUE(absl::IsInvalidArgument(MakeCredentials(options).status()));  // a token in the clear
}

TEST(CredentialsTest, HalfATlsPairIsRefused) {
  ServerOptions options;
  options.security.tls_certificate = "certificate.pem";
  EXPECT_TRUE(absl::IsInvalidArgument(MakeCredentials(options).status()));
  options.security.tls_key = "/nonexistent/key.pem";
  EXPECT_TRUE(absl::IsNotFound(MakeCredentials(options).status()));
}

TEST(CredentialsTest, CertificateAndKeyMustBelongTogether) {
  TestFolder folder;
  const std::string make =
      "cd " + folder.path() +
      " && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out "
      "certificate.pem 2> /dev/null && openssl genrsa -out other.pem 2048 2> /dev/null";
  if (std::system(make.c_str()) != 0) GTEST_SKIP() << "openssl is not installed";
  ServerOptions options;
  options.security.tls_certificate = folder.path() + "/certificate.pem";
  options.security.tls_key = folder.path() + "/key.pem";
  EXPECT_TRUE(MakeCredentials(options).ok());
  options.security.tls_client_ca = folder.path() + "/certificate.pem";
  EXPECT_TRUE(MakeCredentials(options).ok());
  folder.Write("half.pem", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n");
  for (const char* broken : {"/key.pem", "/half.pem"}) {
    options.security.tls_client_ca = folder.path() + broken;
    EXPECT_EQ(MakeCredentials(options).status(),
              absl::InvalidArgumentError("--tls_client_ca: not certificates in PEM form"));
  }
  options.security.tls_client_ca.clear();
  options.security.tls_key = folder.path() + "/other.pem";
  EXPECT_EQ(MakeCredentials(options).status().message(), "--tls_key is not the key of --tls_certificate");
  options.security.tls_key = folder.path() + "/certificate.pem";
  EXPECT_TRUE(absl::IsInvalidArgument(MakeCredentials(options).status()));
}

}  // namespace
}  // namespace edgewise::server
