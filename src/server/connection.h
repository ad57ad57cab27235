// A byte stream to a client: over TCP or a unix domain socket, plain or with TLS.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/system/error_code.hpp>
#include <functional>
#include <memory>
#include <string>

#include "core/result.h"

namespace quire::server {

namespace asio = boost::asio;

// All functions on the executor, handlers too. At most one read and one write at a time; buffers must live until their
// handler runs. No handler runs within the call.
class Connection {
 public:
  using Handler = std::function<void(const boost::system::error_code& error, size_t bytes)>;

  virtual ~Connection() = default;
  virtual asio::any_io_executor executor() = 0;
  virtual void handshake(Handler then) = 0;
  virtual void read(asio::mutable_buffer into, Handler then) = 0;
  virtual void write(asio::const_buffer all, Handler then) = 0;
  // Tells the client that nothing more will come; reading goes on.
  virtual void shutdown(Handler then) = 0;
  virtual void close() = 0;
};

// Certificate and key of a server; shared by its connections. Errors say which file is wrong; a key that a passphrase
// protects is refused, for nobody would be asked.
class TlsContext;
Result<std::shared_ptr<TlsContext>> load_tls(const std::string& certificate_file, const std::string& key_file);

// The socket's executor must be a strand. `tls`: null for none.
std::unique_ptr<Connection> make_connection(asio::generic::stream_protocol::socket socket,
                                            const std::shared_ptr<TlsContext>& tls);

}  // namespace quire::server
