// A client that does just what a test says, also what no decent client does: raw bytes over a blocking socket.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace quire::test {

using Json = nlohmann::ordered_json;

struct Reply {
  int status = 0;  // 0: no response
  std::string head, body;
  bool closed = false;  // the server closed the connection after it

  std::string header(std::string_view name) const {
    const std::string key = "\r\n" + std::string(name) + ": ";
    const size_t at = head.find(key);
    if (at == std::string::npos) return "";
    const size_t from = at + key.size();
    return head.substr(from, head.find("\r\n", from) - from);
  }
  Json json() const { return Json::parse(body, nullptr, false); }
  std::string error() const {
    const Json j = json();
    return j.is_object() && j.contains("error") ? j["error"]["message"].get<std::string>() : "";
  }
  // The data of each event of an event stream, comments left out.
  std::vector<std::string> events() const {
    std::vector<std::string> list;
    size_t at = 0;
    while (at < body.size()) {
      const size_t end = body.find("\n\n", at);
      if (end == std::string::npos) break;
      if (body.compare(at, 6, "data: ") == 0) list.push_back(body.substr(at + 6, end - at - 6));
      at = end + 2;
    }
    return list;
  }
};

class Client {
 public:
  explicit Client(uint16_t port) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  // Of a unix domain socket.
  explicit Client(const std::string& path) {
    fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { disconnect(); }
  Client(const Client&) = delete;

  bool connected() const { return connected_; }
  void disconnect() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void end_of_input() const { shutdown(fd_, SHUT_WR); }

  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // What has come by now and until `enough` says so, or the time is up, or the server closes.
  template <class Enough>
  void receive_until(const Enough& enough, double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (!enough(received_)) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
      pollfd p{fd_, POLLIN, 0};
      if (left <= 0 || poll(&p, 1, static_cast<int>(left)) <= 0) return;
      char buffer[16384];
      const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
      if (n <= 0) {
        closed_ = true;
        return;
      }
      received_.append(buffer, static_cast<size_t>(n));
    }
  }

  // The next whole response.
  Reply receive(double seconds = 60, bool head_only = false) {
    Reply r;
    receive_until([](const std::string& s) { return s.find("\r\n\r\n") != std::string::npos; }, seconds);
    const size_t head_end = received_.find("\r\n\r\n");
    if (head_end == std::string::npos) {
      r.closed = closed_;
      return r;
    }
    r.head = received_.substr(0, head_end + 2);
    r.status = std::stoi(r.head.substr(9, 3));
    received_.erase(0, head_end + 4);
    if (r.status == 100) return receive(seconds, head_only);
    if (head_only) return r;
    if (r.header("Transfer-Encoding") == "chunked") {
      while (read_chunk(r.body, seconds)) {
      }
    } else if (const std::string length = r.header("Content-Length"); !length.empty()) {
      const size_t n = std::stoul(length);
      receive_until([&](const std::string& s) { return s.size() >= n; }, seconds);
      r.body = received_.substr(0, n);
      received_.erase(0, r.body.size());
    } else {
      receive_until([](const std::string&) { return false; }, seconds);
      r.body = std::exchange(received_, {});
    }
    if (r.header("Connection") == "close") {
      receive_until([](const std::string&) { return false; }, 60);
      r.closed = closed_;
    }
    return r;
  }

  // Whether the server closes the connection within the time.
  bool closes(double seconds) {
    receive_until([](const std::string&) { return false; }, seconds);
    return closed_;
  }
  const std::string& received() const { return received_; }

 private:
  bool read_chunk(std::string& body, double seconds) {
    receive_until([](const std::string& s) { return s.find("\r\n") != std::string::npos; }, seconds);
    const size_t line = received_.find("\r\n");
    if (line == std::string::npos) return false;
    const size_t n = std::stoul(received_.substr(0, line), nullptr, 16);
    receive_until([&](const std::string& s) { return s.size() >= line + 2 + n + 2; }, seconds);
    if (received_.size() < line + n + 4) return false;
    body += received_.substr(line + 2, n);
    received_.erase(0, line + n + 4);
    return n > 0;
  }

  int fd_ = -1;
  bool connected_ = false, closed_ = false;
  std::string received_;
};

inline std::string get(std::string_view path, std::string_view headers = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers) + "\r\n";
}
inline std::string post(std::string_view path, std::string_view body, std::string_view headers = "") {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + std::string(headers) + "\r\n" + std::string(body);
}
inline std::string post(std::string_view path, const Json& body, std::string_view headers = "") {
  return post(path, std::string_view(body.dump()), headers);
}

// Whether it comes true within a minute: time enough on a machine that others keep busy.
template <class Predicate>
bool eventually(const Predicate& predicate) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!predicate()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// One request over a connection of its own. What HEAD is answered has no body, whatever its length says.
inline Reply ask(uint16_t port, std::string_view request, double seconds = 580) {
  Client c(port);
  if (!c.connected() || !c.send(request)) return {};
  return c.receive(seconds, request.starts_with("HEAD "));
}

}  // namespace quire::test
