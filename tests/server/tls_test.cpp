// HTTPS with a certificate made for the test, asked by OpenSSL's own client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <memory>

#include "server/client.h"
#include "server/demo_server.h"
#include "support/program.h"
#include "support/tls_pair.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

class Tls : public ProgramTest {
 protected:
  Tls() { write_tls_pair(path("key"), path("cert")); }
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
  write_tls_pair(path("other-key"), path("other-cert"));
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
  write_tls_pair(path("locked-key"), path("cert"), "a passphrase");
  expect_refused(serve + path("cert") + " --ssl-keyfile " + path("locked-key"),
                 "--ssl-keyfile " + path("locked-key") + ": a passphrase protects the key");
}

}  // namespace
}  // namespace quire::test
