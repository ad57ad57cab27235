// HTTPS with a certificate made for the test, asked by OpenSSL's own client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdio>
#include <memory>

#include "server/client.h"
#include "server/demo_server.h"
#include "support/program.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

template <auto Free>
struct FreeWith {
  template <class T>
  void operator()(T* p) const {
    Free(p);
  }
};
using Key = std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>>;

// A key, and a certificate that it signs itself, as PEM files.
Key write_pair(const std::string& key_path, const std::string& certificate_path, std::string passphrase = "") {
  Key key(EVP_EC_gen("P-256"));
  const std::unique_ptr<X509, FreeWith<X509_free>> x(X509_new());
  ASN1_INTEGER_set(X509_get_serialNumber(x.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(x.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(x.get()), 3600);
  X509_set_pubkey(x.get(), key.get());
  X509_NAME* name = X509_get_subject_name(x.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(x.get(), name);
  X509_sign(x.get(), key.get(), EVP_sha256());
  const auto write = [](const std::string& path, const auto& put) {
    std::FILE* f = std::fopen(path.c_str(), "wb");
    ASSERT_NE(f, nullptr);
    EXPECT_EQ(put(f), 1);
    std::fclose(f);
  };
  write(key_path, [&](std::FILE* f) {
    auto* const secret = passphrase.empty() ? nullptr : reinterpret_cast<unsigned char*>(passphrase.data());
    return PEM_write_PrivateKey(f, key.get(), secret == nullptr ? nullptr : EVP_aes_128_cbc(), secret,
                                static_cast<int>(passphrase.size()), nullptr, nullptr);
  });
  write(certificate_path, [&](std::FILE* f) { return PEM_write_X509(f, x.get()); });
  return key;
}

class Tls : public ProgramTest {
 protected:
  Tls() { write_pair(path("key"), path("cert")); }
};

std::string ask_tls(uint16_t port, const std::string& request, int newest) {
  const std::unique_ptr<SSL_CTX, FreeWith<SSL_CTX_free>> context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_max_proto_version(context.get(), newest);
  const std::unique_ptr<BIO, FreeWith<BIO_free_all>> bio(BIO_new_ssl_connect(context.get()));
  BIO_set_conn_hostname(bio.get(), ("127.0.0.1:" + std::to_string(port)).c_str());
  if (BIO_do_connect(bio.get()) != 1) return "";
  BIO_write(bio.get(), request.data(), static_cast<int>(request.size()));
  std::string all;
  char buffer[4096];
  for (int n; (n = BIO_read(bio.get(), buffer, sizeof buffer)) > 0;) all.append(buffer, static_cast<size_t>(n));
  return all;
}

TEST_F(Tls, ServesHttps) {
  DemoServer::Options o;
  o.http.certificate_file = path("cert");
  o.http.key_file = path("key");
  DemoServer s(o);
  const std::string close = "Connection: close\r\n";
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION})
    EXPECT_THAT(ask_tls(s.port(), get("/health", close), version), HasSubstr("{\"status\":\"ok\"}"));
  EXPECT_EQ(ask_tls(s.port(), get("/health", close), TLS1_1_VERSION), "");
  const Json body = {{"prompt", "Once"}, {"max_tokens", 4}, {"stream", true}};
  EXPECT_THAT(ask_tls(s.port(), post("/v1/completions", body, close), TLS1_3_VERSION), HasSubstr("data: [DONE]"));
  // No TLS at all, and a client that stops within the handshake.
  Client plain(s.port());
  plain.send(get("/health"));
  EXPECT_TRUE(plain.closes(15));
  Client silent(s.port());
  silent.send("\x16\x03\x01");
  EXPECT_THAT(ask_tls(s.port(), get("/health", close), TLS1_3_VERSION), HasSubstr("200 OK"));
}

TEST_F(Tls, RefusesFilesThatAreNoPair) {
  write_pair(path("other-key"), path("other-cert"));
  const std::string serve = "serve -m " + demo_model_path() + " --port 0 --ssl-certfile ";
  expect_refused(
      serve + path("cert") + " --ssl-keyfile " + path("other-key"),
      "--ssl-keyfile " + path("other-key") + ": the key does not belong to the certificate in " + path("cert"));
  expect_refused(serve + path("key") + " --ssl-keyfile " + path("key"), "no certificate chain");
  expect_refused(serve + path("cert") + " --ssl-keyfile " + path("cert"), "no private key in PEM format");
  expect_refused(serve + path("none") + " --ssl-keyfile " + path("key"),
                 "--ssl-certfile " + path("none") + ": No such file or directory");
  expect_refused(serve + path("cert") + " --ssl-keyfile " + path(""), "it is a folder; a PEM file is needed");
  // A key with a passphrase: standard input is empty, so that asking would fail, but nobody may be asked at all.
  write_pair(path("locked-key"), path("cert"), "a passphrase");
  expect_refused(serve + path("cert") + " --ssl-keyfile " + path("locked-key"),
                 "--ssl-keyfile " + path("locked-key") + ": a passphrase protects the key");
}

}  // namespace
}  // namespace quire::test
