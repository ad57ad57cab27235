#include "server/auth.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace quire::server {
namespace {

constexpr size_t kMinKey = 8, kMaxKey = 512, kMaxFile = size_t{1} << 20;

std::string_view trimmed(std::string_view s) {
  const size_t begin = s.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return s.substr(begin, s.find_last_not_of(" \t\r") - begin + 1);
}

struct Descriptor {
  explicit Descriptor(int opened) : fd(opened) {}
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  const int fd;
};

// To the end of a file or pipe. A pipe ends when all its writers have closed it; before the first one has come,
// reading it finds an end too, which is none.
Status read_all(int fd, std::chrono::milliseconds patience, std::string& text) {
  struct stat s {};
  if (fstat(fd, &s) != 0) return request_error("{}", std::strerror(errno));
  if (S_ISDIR(s.st_mode)) return request_error("it is a folder; a file with one key a line is needed");
  bool begun = !S_ISFIFO(s.st_mode);
  text.reserve(kMaxFile);  // so that growing leaves no copies of keys behind
  for (;;) {
    char buffer[4096];
    const ssize_t n = read(fd, buffer, sizeof buffer);
    const int code = errno;
    if (n > 0 && text.size() + static_cast<size_t>(n) < kMaxFile) text.append(buffer, static_cast<size_t>(n));
    OPENSSL_cleanse(buffer, sizeof buffer);
    if (n > 0 && text.size() + static_cast<size_t>(n) >= kMaxFile)
      return request_error("more than {} bytes of keys", kMaxFile);
    if (n > 0) begun = true;
    if (n == 0 && begun) return {};
    if (n > 0 || (n < 0 && code == EINTR)) continue;
    if (n < 0 && code != EAGAIN) return request_error("{}", std::strerror(code));
    pollfd p{fd, POLLIN, 0};
    const int ready = poll(&p, 1, static_cast<int>(patience.count()));
    if (ready < 0 && errno != EINTR) return request_error("{}", std::strerror(errno));
    if (ready == 0)
      return request_error("it is a pipe into which nobody has written for {:.0f} s, or which nobody closes",
                           std::chrono::duration<double>(patience).count());
    if (ready > 0 && (p.revents & POLLIN) == 0) begun = true;  // its writers have come and gone
  }
}

}  // namespace

// A # within a word is part of it.
std::string_view key_of_line(std::string_view line) {
  for (size_t at = line.find('#'); at != std::string_view::npos; at = line.find('#', at + 1))
    if (at == 0 || line[at - 1] == ' ' || line[at - 1] == '\t') return trimmed(line.substr(0, at));
  return trimmed(line);
}

KeyRing::Digest KeyRing::digest(std::string_view key) {
  Digest d{};
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), d.data());
  return d;
}

Result<KeyRing> KeyRing::parse(std::string_view text) {
  KeyRing ring;
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = key_of_line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty()) continue;
    const bool printable = std::all_of(line.begin(), line.end(), [](char c) { return c > ' ' && c < 0x7f; });
    if (!printable || line.size() < kMinKey || line.size() > kMaxKey)
      return request_error("line {}: a key has {} to {} printable characters and no spaces", number, kMinKey, kMaxKey);
    ring.digests_.push_back(digest(line));
  }
  if (ring.empty()) return request_error("no key in it: everybody would be refused");
  return ring;
}

Result<KeyRing> KeyRing::load(const std::string& path, std::chrono::milliseconds patience) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (file.fd < 0) return request_error("{}: {}", path, std::strerror(errno));
  std::string text;
  const Status read = read_all(file.fd, patience, text);
  auto ring = read.ok() ? parse(text) : Result<KeyRing>(read.error());
  OPENSSL_cleanse(text.data(), text.size());
  return std::move(ring).context(path);
}

std::string_view KeyRing::bearer(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return {};
  for (size_t i = 0; i < kScheme.size(); ++i)
    if (std::tolower(static_cast<unsigned char>(authorization[i])) != kScheme[i]) return {};
  return trimmed(authorization.substr(kScheme.size()));
}

bool KeyRing::same(std::string_view a, std::string_view b) {
  const Digest x = digest(a), y = digest(b);
  return CRYPTO_memcmp(x.data(), y.data(), x.size()) == 0;
}

int KeyRing::find(std::string_view key) const {
  const Digest asked = digest(key);
  int found = 0;
  for (size_t i = 0; i < digests_.size(); ++i) {
    const bool same = CRYPTO_memcmp(asked.data(), digests_[i].data(), asked.size()) == 0;
    found = same ? static_cast<int>(i) + 1 : found;
  }
  return found;
}

std::string KeyRing::salt(int key) const {
  std::string text;
  if (key > 0)
    for (const uint8_t byte : digests_.at(static_cast<size_t>(key) - 1)) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace quire::server
