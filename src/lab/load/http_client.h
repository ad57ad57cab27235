// A client for measuring: one connection, one request at a time, told of the body as it comes. Plain HTTP.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lab/load/url.h"

namespace quire::cli::load {

class HttpClient {
 public:
  struct Call {
    std::string method = "POST", path, body;
    std::string authorization;  // value of the header, or empty
    std::chrono::milliseconds timeout{600'000};
    std::function<void(int status, std::string_view piece)> on_body;  // as it comes
    std::function<void(int status, std::string error)> on_done;       // once; status 0: no response; error: or empty
  };

  HttpClient(boost::asio::io_context& io, const Url& url,
             const boost::asio::ip::tcp::resolver::results_type& addresses);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;

  // One at a time; on_done may start the next. Connects first where there is no connection, and anew where the server
  // has closed that of the request before without an answer to this one. The object must live until on_done.
  void start(Call call);

 private:
  struct Response;
  void connect();
  bool reconnect();
  void send();
  void read();
  void on_read(const boost::system::error_code& ec, size_t n);
  void done(std::string error);

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  Url url_;
  boost::asio::ip::tcp::resolver::results_type addresses_;
  Call call_;
  std::string request_, input_;
  std::array<char, 65536> buffer_;
  std::unique_ptr<Response> response_;
  size_t told_ = 0;  // bytes of the body
  bool connected_ = false, reused_ = false, timed_out_ = false;
};

// Finds the addresses of a server. Errors name it.
Result<boost::asio::ip::tcp::resolver::results_type> resolve(boost::asio::io_context& io, const Url& url);

// One request with its whole answer; blocks. Errors: no answer, or another status than 200.
Result<std::string> fetch(const Url& url, const std::string& method, const std::string& path, const std::string& body,
                          const std::string& authorization);

}  // namespace quire::cli::load
