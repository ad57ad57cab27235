// A hub on this machine, for tests: the API and files of huggingface.co as far as clients use them, and a second
// server, of another origin, that large files are redirected to. It does what it should, or what a test makes it do.
#pragma once

#include <openssl/ssl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace quire::test {

struct FakeRequest {
  bool cdn = false;  // came to the second server
  std::string method, target;
  std::map<std::string, std::string> headers;  // names in lower case
  std::optional<std::pair<uint64_t, uint64_t>> range;

  bool is(const std::string& what) const { return target.find(what) != std::string::npos; }
};

// The connection that a request came on.
class FakePeer {
 public:
  FakePeer(int fd, SSL* ssl, const std::atomic<bool>& stop) : fd_(fd), ssl_(ssl), stop_(stop) {}
  void write(const std::string& bytes);
  // Status line, these headers, Content-Length, body.
  void answer(const std::string& status, const std::string& headers, const std::string& body);
  void file(int from, uint64_t begin, uint64_t end);  // bytes of an open file
  void close() { open = false; }
  void wait(int milliseconds) const;  // or until the hub ends
  bool read_head(std::string& head);

  bool open = true;

 private:
  bool put(const char* at, size_t bytes);
  int fd_;
  SSL* ssl_;
  const std::atomic<bool>& stop_;
  std::string held_;
};

struct FakeFile {
  std::string content;  // or, if `path` is not empty, that file's
  std::string path;
  bool large = true;      // has a SHA-256, and is redirected
  std::string hash = {};  // what the hub says; empty: what is right
};

class FakeHub {
 public:
  // With TLS where a key and a certificate are given (PEM files).
  explicit FakeHub(const std::string& key = "", const std::string& certificate = "");
  ~FakeHub();
  FakeHub(const FakeHub&) = delete;

  static constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";
  void add(const std::string& model, const std::string& path, FakeFile file);
  std::string url() const;
  std::string cdn_url() const;

  // Asked before each answer: true if it has answered itself. On the connections' threads.
  using Trouble = std::function<bool(const FakeRequest&, FakePeer&)>;
  void set_trouble(Trouble trouble);
  std::string token;  // if not empty: needed for files

  std::vector<FakeRequest> seen() const;
  int count(const std::function<bool(const FakeRequest&)>& which) const;

 private:
  struct Server;
  void serve(Server& server);
  void talk(Server& server, int fd);
  void answer(const FakeRequest& r, FakePeer& peer);
  void answer_list(const std::string& model, FakePeer& peer);
  void answer_tree(const std::string& model, FakePeer& peer);
  void answer_file(const FakeRequest& r, const FakeFile& file, FakePeer& peer) const;
  std::string url_of(const Server& server) const;

  std::map<std::string, std::map<std::string, FakeFile>> models_;
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> tls_;
  std::atomic<bool> stop_{false};
  std::unique_ptr<Server> hub_, cdn_;
  mutable std::mutex mutex_;
  std::vector<FakeRequest> seen_;
  std::shared_ptr<const Trouble> trouble_;  // shared: one that is at work outlives its successor's coming
};

}  // namespace quire::test
