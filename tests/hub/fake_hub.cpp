#include "hub/fake_hub.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "hub/hash.h"

namespace quire::test {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string decoded(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

uint64_t size_of(const FakeFile& f) {
  if (f.path.empty()) return f.content.size();
  struct stat s {};
  stat(f.path.c_str(), &s);
  return static_cast<uint64_t>(s.st_size);
}

FakeRequest parsed(const std::string& head, bool cdn) {
  FakeRequest r{.cdn = cdn, .method = head.substr(0, head.find(' ')), .target = {}, .headers = {}, .range = {}};
  const size_t begin = r.method.size() + 1;
  r.target = head.substr(begin, head.find(' ', begin) - begin);
  for (size_t at = head.find("\r\n"); at != std::string::npos && at + 2 < head.size();) {
    const size_t end = head.find("\r\n", at + 2);
    const std::string line = head.substr(at + 2, end - at - 2);
    if (const size_t colon = line.find(':'); colon != std::string::npos)
      r.headers[lower(line.substr(0, colon))] = line.substr(std::min(line.size(), colon + 2));
    at = end;
  }
  if (const auto range = r.headers.find("range"); range != r.headers.end()) {
    unsigned long long first = 0, last = UINT64_MAX;
    if (std::sscanf(range->second.c_str(), "bytes=%llu-%llu", &first, &last) >= 1) r.range = {first, last};
  }
  return r;
}

}  // namespace

// ---- A connection ----

bool FakePeer::put(const char* at, size_t bytes) {
  while (open && bytes > 0) {
    const ssize_t n = ssl_ != nullptr ? SSL_write(ssl_, at, static_cast<int>(std::min<size_t>(bytes, 1 << 20)))
                                      : send(fd_, at, bytes, MSG_NOSIGNAL);
    if (n <= 0) open = false;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return open;
}

void FakePeer::write(const std::string& bytes) {
  put(bytes.data(), bytes.size());
}

void FakePeer::answer(const std::string& status, const std::string& headers, const std::string& body) {
  write(fmt::format("HTTP/1.1 {}\r\n{}Content-Length: {}\r\n\r\n{}", status, headers, body.size(), body));
}

void FakePeer::file(int from, uint64_t begin, uint64_t end) {
  auto offset = static_cast<off_t>(begin);
  std::vector<char> buffer(ssl_ != nullptr ? size_t{1} << 20 : 0);
  while (open && static_cast<uint64_t>(offset) < end) {
    const size_t want = std::min<uint64_t>(end - static_cast<uint64_t>(offset), 1 << 20);
    if (ssl_ == nullptr) {
      if (sendfile(fd_, from, &offset, want) <= 0) open = false;
    } else {
      const ssize_t n = pread(from, buffer.data(), want, offset);
      if (n <= 0 || !put(buffer.data(), static_cast<size_t>(n))) open = false;
      offset += n;
    }
  }
}

void FakePeer::wait(int milliseconds) const {
  for (int i = 0; i < milliseconds / 10 && !stop_; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

bool FakePeer::read_head(std::string& head) {
  for (;;) {
    if (const size_t end = held_.find("\r\n\r\n"); end != std::string::npos) {
      head = held_.substr(0, end + 2);
      held_.erase(0, end + 4);
      return true;
    }
    char buffer[8192];
    const ssize_t n = ssl_ != nullptr ? SSL_read(ssl_, buffer, sizeof buffer) : recv(fd_, buffer, sizeof buffer, 0);
    if (n <= 0) return false;
    held_.append(buffer, static_cast<size_t>(n));
  }
}

// ---- The servers ----

struct FakeHub::Server {
  bool cdn = false;
  int fd = -1;
  uint16_t port = 0;
  std::thread thread;
  std::mutex mutex;
  std::list<std::thread> talks;
  std::vector<int> open;
};

FakeHub::FakeHub(const std::string& key, const std::string& certificate) : tls_(nullptr, SSL_CTX_free) {
  std::signal(SIGPIPE, SIG_IGN);
  if (!key.empty()) {
    tls_.reset(SSL_CTX_new(TLS_server_method()));
    SSL_CTX_use_certificate_chain_file(tls_.get(), certificate.c_str());
    SSL_CTX_use_PrivateKey_file(tls_.get(), key.c_str(), SSL_FILETYPE_PEM);
  }
  for (const bool cdn : {false, true}) {
    auto server = std::make_unique<Server>();
    server->cdn = cdn;
    server->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t length = sizeof at;
    if (bind(server->fd, reinterpret_cast<sockaddr*>(&at), length) != 0 || listen(server->fd, 128) != 0) std::abort();
    getsockname(server->fd, reinterpret_cast<sockaddr*>(&at), &length);
    server->port = ntohs(at.sin_port);
    (cdn ? cdn_ : hub_) = std::move(server);
  }
  for (Server* s : {hub_.get(), cdn_.get()}) s->thread = std::thread([this, s] { serve(*s); });
}

FakeHub::~FakeHub() {
  stop_ = true;
  for (Server* s : {hub_.get(), cdn_.get()}) {
    shutdown(s->fd, SHUT_RDWR);
    s->thread.join();
    {
      const std::lock_guard lock(s->mutex);
      for (const int fd : s->open) shutdown(fd, SHUT_RDWR);
    }
    for (std::thread& t : s->talks) t.join();
    close(s->fd);
  }
}

std::string FakeHub::url_of(const Server& server) const {
  return fmt::format("{}://127.0.0.1:{}", tls_ ? "https" : "http", server.port);
}
std::string FakeHub::url() const {
  return url_of(*hub_);
}
std::string FakeHub::cdn_url() const {
  return url_of(*cdn_);
}

void FakeHub::add(const std::string& model, const std::string& path, FakeFile file) {
  if (file.hash.empty()) {
    const std::string name(file.large ? 64 : 40, '0');
    if (file.path.empty()) {
      hub::BlobHash hash(name, file.content.size());
      hash.add(std::as_bytes(std::span(file.content)));
      file.hash = hash.hex();
    } else {
      file.hash = *hub::hash_file(file.path, name);
    }
  }
  models_[model][path] = std::move(file);
}

void FakeHub::set_trouble(Trouble trouble) {
  const std::lock_guard lock(mutex_);
  trouble_ = trouble ? std::make_shared<const Trouble>(std::move(trouble)) : nullptr;
}

std::vector<FakeRequest> FakeHub::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

int FakeHub::count(const std::function<bool(const FakeRequest&)>& which) const {
  const std::vector<FakeRequest> all = seen();
  return static_cast<int>(std::count_if(all.begin(), all.end(), which));
}

void FakeHub::serve(Server& server) {
  for (;;) {
    const int fd = accept4(server.fd, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const std::lock_guard lock(server.mutex);
    server.open.push_back(fd);
    server.talks.emplace_back([this, &server, fd] { talk(server, fd); });
  }
}

void FakeHub::talk(Server& server, int fd) {
  const std::unique_ptr<SSL, void (*)(SSL*)> ssl(tls_ ? SSL_new(tls_.get()) : nullptr, SSL_free);
  if (ssl) SSL_set_fd(ssl.get(), fd);
  FakePeer peer(fd, ssl.get(), stop_);
  std::string head;
  if (!ssl || SSL_accept(ssl.get()) == 1)
    while (peer.open && !stop_ && peer.read_head(head)) {
      const FakeRequest r = parsed(head, server.cdn);
      std::shared_ptr<const Trouble> trouble;
      {
        const std::lock_guard lock(mutex_);
        seen_.push_back(r);
        trouble = trouble_;
      }
      if (!trouble || !(*trouble)(r, peer)) answer(r, peer);
    }
  const std::lock_guard lock(server.mutex);
  std::erase(server.open, fd);
  close(fd);
}

// ---- What a hub answers ----

void FakeHub::answer(const FakeRequest& r, FakePeer& peer) {
  const std::string target = decoded(r.target.substr(0, r.target.find('?')));
  for (const auto& [model, files] : models_) {
    if (!r.cdn && target.starts_with("/api/models/" + model + "/tree/")) return answer_tree(model, peer);
    if (!r.cdn && target.starts_with("/api/models/" + model)) return answer_list(model, peer);
    for (const std::string revision : {kCommit, "main"}) {
      const std::string prefix = "/" + model + "/resolve/" + revision + "/";
      if (!target.starts_with(prefix)) continue;
      const auto file = files.find(target.substr(prefix.size()));
      if (file == files.end()) return peer.answer("404 Not Found", "X-Error-Code: EntryNotFound\r\n", "");
      if (!token.empty() && !r.cdn &&
          (!r.headers.contains("authorization") || r.headers.at("authorization") != "Bearer " + token))
        return peer.answer("401 Unauthorized", "X-Error-Code: GatedRepo\r\n", "");
      if (!file->second.large || r.cdn) return answer_file(r, file->second, peer);
      return peer.answer(
          "302 Found",
          fmt::format("Location: {}{}\r\nX-Repo-Commit: {}\r\nX-Linked-Etag: \"{}\"\r\n"
                      "X-Linked-Size: {}\r\nETag: \"{}\"\r\n",
                      cdn_url(), r.target, kCommit, file->second.hash, size_of(file->second), file->second.hash),
          "");
    }
  }
  peer.answer("404 Not Found", "X-Error-Code: RepoNotFound\r\nX-Error-Message: Repository not found\r\n", "");
}

void FakeHub::answer_list(const std::string& model, FakePeer& peer) {
  nlohmann::json siblings = nlohmann::json::array();
  for (const auto& [path, file] : models_.at(model)) {
    nlohmann::json one = {{"rfilename", path}, {"size", size_of(file)}};
    if (file.large)
      one["lfs"] = {{"sha256", file.hash}, {"size", size_of(file)}, {"pointerSize", 134}};
    else
      one["blobId"] = file.hash;
    siblings.push_back(one);
  }
  const nlohmann::json all = {{"id", model}, {"sha", kCommit}, {"private", false}, {"siblings", siblings}};
  peer.answer("200 OK", "Content-Type: application/json\r\n", all.dump());
}

void FakeHub::answer_tree(const std::string& model, FakePeer& peer) {
  nlohmann::json tree = nlohmann::json::array();
  for (const auto& [path, file] : models_.at(model)) {
    nlohmann::json one = {{"type", "file"}, {"path", path}, {"size", size_of(file)}, {"oid", file.hash.substr(0, 40)}};
    if (file.large) one["lfs"] = {{"oid", file.hash}, {"size", size_of(file)}, {"pointerSize", 134}};
    tree.push_back(one);
  }
  peer.answer("200 OK", "Content-Type: application/json\r\n", tree.dump());
}

void FakeHub::answer_file(const FakeRequest& r, const FakeFile& file, FakePeer& peer) const {
  const uint64_t size = size_of(file);
  uint64_t begin = 0, end = size;
  std::string head = "HTTP/1.1 200 OK\r\n";
  if (r.range && r.method != "HEAD") {
    begin = r.range->first;
    end = std::min(size, r.range->second == UINT64_MAX ? size : r.range->second + 1);
    if (begin >= end)
      return peer.answer("416 Range Not Satisfiable", fmt::format("Content-Range: bytes */{}\r\n", size), "");
    head = fmt::format("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {}-{}/{}\r\n", begin, end - 1, size);
  }
  head += fmt::format("Content-Length: {}\r\nETag: \"{}\"\r\nAccept-Ranges: bytes\r\nX-Repo-Commit: {}\r\n\r\n",
                      end - begin, file.hash, kCommit);
  peer.write(head);
  if (r.method == "HEAD") return;
  if (file.path.empty()) return peer.write(file.content.substr(begin, end - begin));
  const int fd = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
  peer.file(fd, begin, end);
  close(fd);
}

}  // namespace quire::test
