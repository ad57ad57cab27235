// A host of pictures on this machine, which a test makes answer what it likes, and names that lead where a test says.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hub/fake_hub.h"
#include "hub/stream.h"

namespace quire::test {

class PictureHost {
 public:
  using Page = std::function<void(const FakeRequest& request, FakePeer& peer)>;

  explicit PictureHost(const std::string& key = "", const std::string& certificate = "")
      : server_(std::make_unique<FakeHub>(key, certificate)) {
    server_->set_trouble([pages = pages_](const FakeRequest& r, FakePeer& peer) {
      Page page;
      {
        const std::lock_guard lock(pages->mutex);
        const auto at = pages->by_path.find(r.target.substr(0, r.target.find('?')));
        if (at != pages->by_path.end()) page = at->second;
      }
      if (page)
        page(r, peer);
      else
        peer.answer("404 Not Found", "", "");
      peer.close();  // as it was asked for
      return true;
    });
  }

  void add(const std::string& path, Page page) {
    const std::lock_guard lock(pages_->mutex);
    pages_->by_path[path] = std::move(page);
  }
  void add_file(const std::string& path, const std::string& bytes, const std::string& headers = "") {
    add(path, [bytes, headers](const FakeRequest&, FakePeer& peer) { peer.answer("200 OK", headers, bytes); });
  }
  void add_redirect(const std::string& path, const std::string& to, const std::string& status = "302 Found") {
    add(path,
        [to, status](const FakeRequest&, FakePeer& peer) { peer.answer(status, "Location: " + to + "\r\n", ""); });
  }
  // Says nothing until the test lets it go, or the client does.
  void add_silence(const std::string& path) {
    add(path, [pages = pages_](const FakeRequest&, FakePeer& peer) {
      ++pages->silent;
      while (!pages->released && !pages->ended) peer.wait(10);
      --pages->silent;
      peer.answer("200 OK", "", "late");
    });
  }
  int silent() const { return pages_->silent; }  // requests that wait there
  void release() { pages_->released = true; }
  ~PictureHost() {
    pages_->ended = true;
    server_.reset();          // whose threads use the pages
    pages_->by_path.clear();  // which hold themselves
  }

  std::string port() const { return server_->url().substr(server_->url().rfind(':') + 1); }
  std::string other_port() const { return server_->cdn_url().substr(server_->cdn_url().rfind(':') + 1); }
  // Of a host's name or address that leads here.
  std::string url(const std::string& path, const std::string& host = "127.0.0.1") const {
    return fmt::format("{}{}:{}{}", server_->url().substr(0, server_->url().find("//") + 2), host, port(), path);
  }
  int asked(const std::string& path = "/") const {
    return server_->count([&](const FakeRequest& r) { return r.target.starts_with(path); });
  }
  std::vector<FakeRequest> seen() const { return server_->seen(); }

 private:
  struct Pages {
    std::mutex mutex;
    std::map<std::string, Page> by_path;
    std::atomic<int> silent{0};
    std::atomic<bool> released{false}, ended{false};
  };
  std::shared_ptr<Pages> pages_ = std::make_shared<Pages>();
  std::unique_ptr<FakeHub> server_;
};

inline hub::SocketAddress address_of(const std::string& ip, const std::string& port) {
  hub::SocketAddress address;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.bytes);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address.bytes);
  if (inet_pton(AF_INET, ip.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<uint16_t>(std::stoi(port)));
    address.length = sizeof v4;
  } else {
    EXPECT_EQ(inet_pton(AF_INET6, ip.c_str(), &v6.sin6_addr), 1) << ip;
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(static_cast<uint16_t>(std::stoi(port)));
    address.length = sizeof v6;
  }
  return address;
}

// Names that lead to other addresses with every question, the last ones from then on.
class FakeNames {
 public:
  using Addresses = std::vector<std::string>;
  void add(const std::string& host, std::vector<Addresses> answers) {
    const std::lock_guard lock(state_->mutex);
    state_->answers[host] = std::move(answers);
  }
  int asked() const { return state_->asked; }
  auto look_up() const {
    return [state = state_](const std::string& host, const std::string& port) {
      hub::Lookup found;
      const std::lock_guard lock(state->mutex);
      ++state->asked;
      auto& answers = state->answers[host];
      if (answers.empty()) {
        found.failure.emplace(hub::ConnectFailure{request_error("{}: no such name", host)});
        return found;
      }
      for (const std::string& ip : answers.front()) found.addresses.push_back(address_of(ip, port));
      if (answers.size() > 1) answers.erase(answers.begin());
      return found;
    };
  }

 private:
  struct State {
    std::mutex mutex;
    std::map<std::string, std::vector<Addresses>> answers;
    std::atomic<int> asked{0};
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace quire::test
