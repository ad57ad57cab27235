#include "lab/load/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/optional.hpp>

namespace quire::cli::load {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

struct HttpClient::Response {
  http::response_parser<http::string_body> parser;
  Response() {
    parser.eager(true);
    parser.body_limit(uint64_t{1} << 30);
  }
};

HttpClient::HttpClient(asio::io_context& io, const Url& url, const tcp::resolver::results_type& addresses)
    : socket_(io), timer_(io), url_(url), addresses_(addresses) {}
HttpClient::~HttpClient() = default;

void HttpClient::start(Call call) {
  call_ = std::move(call);
  response_ = std::make_unique<Response>();
  input_.clear();
  told_ = 0;
  timed_out_ = false;
  request_ = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
                         call_.method, url_.base, call_.path, url_.host, call_.body.size());
  if (!call_.authorization.empty()) request_ += "Authorization: " + call_.authorization + "\r\n";
  request_ += "\r\n" + call_.body;
  timer_.expires_after(call_.timeout);
  timer_.async_wait([this](const error_code& ec) {
    if (ec || timer_.expiry() > std::chrono::steady_clock::now()) return;
    timed_out_ = true;
    error_code ignored;
    socket_.close(ignored);
  });
  reused_ = connected_;
  if (connected_) return send();
  connect();
}

void HttpClient::connect() {
  asio::async_connect(socket_, addresses_, [this](const error_code& ec, const tcp::endpoint&) {
    if (ec) return done("cannot connect: " + ec.message());
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    connected_ = true;
    send();
  });
}

// False where that is no answer to what went wrong: a server may close a connection at any time between two requests,
// and does before it says anything to the second.
bool HttpClient::reconnect() {
  if (!reused_ || timed_out_ || response_->parser.got_some() || !input_.empty()) return false;
  error_code ignored;
  socket_.close(ignored);
  connected_ = reused_ = false;
  connect();
  return true;
}

void HttpClient::send() {
  asio::async_write(socket_, asio::buffer(request_), [this](const error_code& ec, size_t) {
    if (!ec) return read();
    if (!reconnect()) done("cannot send: " + ec.message());
  });
}

void HttpClient::read() {
  socket_.async_read_some(asio::buffer(buffer_), [this](const error_code& ec, size_t n) { on_read(ec, n); });
}

void HttpClient::on_read(const error_code& ec, size_t n) {
  auto& parser = response_->parser;
  error_code parse;
  if (ec == asio::error::eof && parser.got_some()) {
    parser.put_eof(parse);
    if (parse) return done("the response was cut short");
  } else if (ec) {
    if (!reconnect()) done(ec.message());
    return;
  }
  input_.append(buffer_.data(), n);
  for (size_t used = 1; used > 0 && !input_.empty() && !parser.is_done();) {
    used = parser.put(asio::const_buffer(input_.data(), input_.size()), parse);
    if (parse && parse != http::error::need_more) return done("no HTTP response: " + parse.message());
    input_.erase(0, used);
  }
  if (parser.is_header_done()) {
    const std::string& body = parser.get().body();
    const int status = static_cast<int>(parser.get().result_int());
    if (body.size() > told_ && call_.on_body) call_.on_body(status, std::string_view(body).substr(told_));
    told_ = body.size();
  }
  if (parser.is_done()) return done("");
  read();
}

void HttpClient::done(std::string error) {
  const bool answered = response_->parser.is_header_done();
  const int status = answered ? static_cast<int>(response_->parser.get().result_int()) : 0;
  timer_.expires_at(std::chrono::steady_clock::time_point::max());
  if (timed_out_) error = "timeout";
  if (!error.empty() || !response_->parser.get().keep_alive()) {
    error_code ignored;
    socket_.close(ignored);
    connected_ = false;
  }
  const auto then = std::move(call_.on_done);
  then(status, std::move(error));
}

Result<tcp::resolver::results_type> resolve(asio::io_context& io, const Url& url) {
  tcp::resolver resolver(io);
  error_code ec;
  auto results = resolver.resolve(url.host, url.port, ec);
  if (ec) return request_error("{}: {}", url.text(), ec.message());
  return results;
}

Result<std::string> fetch(const Url& url, const std::string& method, const std::string& path, const std::string& body,
                          const std::string& authorization) {
  asio::io_context io;
  QUIRE_TRY(const auto addresses, resolve(io, url));
  HttpClient client(io, url, addresses);
  std::string answer, problem;
  int code = 0;
  client.start({.method = method,
                .path = path,
                .body = body,
                .authorization = authorization,
                .timeout = std::chrono::seconds(600),
                .on_body = [&](int, std::string_view piece) { answer += piece; },
                .on_done =
                    [&](int status, std::string error) {
                      code = status;
                      problem = std::move(error);
                      io.stop();
                    }});
  io.run();
  if (!problem.empty()) return request_error("{}{}: {}", url.text(), path, problem);
  if (code != 200) return request_error("{}{}: status {}: {}", url.text(), path, code, answer.substr(0, 200));
  return answer;
}

}  // namespace quire::cli::load
