#include "server/connection.h"

#include <openssl/err.h>
#include <openssl/x509err.h>

#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>

#include "core/input_file.h"

namespace quire::server {
namespace {

using boost::system::error_code;
using Socket = asio::generic::stream_protocol::socket;

class PlainConnection : public Connection {
 public:
  explicit PlainConnection(Socket socket) : socket_(std::move(socket)) {}

  asio::any_io_executor executor() override { return socket_.get_executor(); }
  void handshake(Handler then) override {
    asio::post(socket_.get_executor(), [then = std::move(then)] { then({}, 0); });
  }
  void read(asio::mutable_buffer into, Handler then) override { socket_.async_read_some(into, std::move(then)); }
  void write(asio::const_buffer all, Handler then) override { asio::async_write(socket_, all, std::move(then)); }
  void shutdown(Handler then) override {
    error_code ec;
    socket_.shutdown(Socket::shutdown_send, ec);
    asio::post(socket_.get_executor(), [then = std::move(then), ec] { then(ec, 0); });
  }
  void close() override {
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  Socket socket_;
};

}  // namespace

class TlsContext {
 public:
  TlsContext() : context(asio::ssl::context::tls_server) {}
  asio::ssl::context context;
  bool asked_for_passphrase = false;  // of its key, which nobody gives
};

namespace {

class TlsConnection : public Connection {
 public:
  TlsConnection(Socket socket, std::shared_ptr<TlsContext> tls)
      : tls_(std::move(tls)), stream_(std::move(socket), tls_->context) {}

  asio::any_io_executor executor() override { return stream_.get_executor(); }
  void handshake(Handler then) override {
    stream_.async_handshake(asio::ssl::stream_base::server,
                            [then = std::move(then)](const error_code& ec) { then(ec, 0); });
  }
  void read(asio::mutable_buffer into, Handler then) override { stream_.async_read_some(into, std::move(then)); }
  void write(asio::const_buffer all, Handler then) override { asio::async_write(stream_, all, std::move(then)); }
  // Done when the client has closed its side as well; a read may be under way.
  void shutdown(Handler then) override {
    stream_.async_shutdown([then = std::move(then)](const error_code& ec) { then(ec, 0); });
  }
  void close() override {
    error_code ignored;
    stream_.next_layer().close(ignored);
  }

 private:
  std::shared_ptr<TlsContext> tls_;
  asio::ssl::stream<Socket> stream_;
};

}  // namespace

namespace {

bool is_no_pair(const error_code& ec) {
  const int why = ERR_GET_REASON(static_cast<unsigned long>(ec.value()));
  return why == X509_R_KEY_VALUES_MISMATCH || why == X509_R_KEY_TYPE_MISMATCH;
}

}  // namespace

Result<std::shared_ptr<TlsContext>> load_tls(const std::string& certificate_file, const std::string& key_file) {
  constexpr const char *kCertificate = "--ssl-certfile", *kKey = "--ssl-keyfile";
  QUIRE_CHECKED(check_pem_file(kCertificate, certificate_file));
  QUIRE_CHECKED(check_pem_file(kKey, key_file));
  auto tls = std::make_shared<TlsContext>();
  asio::ssl::context& c = tls->context;
  error_code ec;
  c.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 | asio::ssl::context::no_sslv3 |
                    asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1,
                ec);
  if (ec) return request_error("TLS: {}", ec.message());
  c.set_password_callback(
      [t = tls.get()](size_t, asio::ssl::context::password_purpose) {
        t->asked_for_passphrase = true;
        return std::string();
      },
      ec);
  if (ec) return request_error("TLS: {}", ec.message());
  c.use_certificate_chain_file(certificate_file, ec);
  if (ec)
    return request_error("{} {}: no certificate chain in PEM format: {}", kCertificate, certificate_file, ec.message());
  c.use_private_key_file(key_file, asio::ssl::context::pem, ec);
  if (tls->asked_for_passphrase)
    return request_error(
        "{0} {1}: a passphrase protects the key, and nobody is asked for one; 'openssl pkey -in {1} -out FILE' "
        "writes it without",
        kKey, key_file);
  if (ec && !is_no_pair(ec))
    return request_error("{} {}: no private key in PEM format: {}", kKey, key_file, ec.message());
  if (ec || SSL_CTX_check_private_key(c.native_handle()) != 1)
    return request_error("{} {}: the key does not belong to the certificate in {}", kKey, key_file, certificate_file);
  return tls;
}

std::unique_ptr<Connection> make_connection(Socket socket, const std::shared_ptr<TlsContext>& tls) {
  if (tls) return std::make_unique<TlsConnection>(std::move(socket), tls);
  return std::make_unique<PlainConnection>(std::move(socket));
}

}  // namespace quire::server
