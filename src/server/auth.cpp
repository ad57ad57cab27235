#include "server/auth.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace quire::server {
namespace {

constexpr size_t kMinKey = 8, kMaxKey = 512, kMaxFile = size_t{1} << 20;

std::string_view trimmed(std::string_view s) {
  const size_t begin = s.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return s.substr(begin, s.find_last_not_of(" \t\r") - begin + 1);
}

}  // namespace

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
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty() || line.front() == '#') continue;
    const bool printable = std::all_of(line.begin(), line.end(), [](char c) { return c > ' ' && c < 0x7f; });
    if (!printable || line.size() < kMinKey || line.size() > kMaxKey)
      return request_error("line {}: a key has {} to {} printable characters and no spaces", number, kMinKey,
                           kMaxKey);
    ring.digests_.push_back(digest(line));
  }
  if (ring.empty()) return request_error("no key in it: everybody would be refused");
  return ring;
}

Result<KeyRing> KeyRing::load(const std::string& path) {
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rb"));
  if (!file) return request_error("{}: {}", path, std::strerror(errno));
  std::string text(kMaxFile, '\0');
  text.resize(std::fread(text.data(), 1, kMaxFile, file.get()));
  if (std::ferror(file.get()) != 0) return request_error("{}: {}", path, std::strerror(errno));
  if (text.size() == kMaxFile) return request_error("{}: more than {} bytes of keys", path, kMaxFile);
  auto ring = parse(text).context(path);
  OPENSSL_cleanse(text.data(), text.size());
  return ring;
}

int KeyRing::find(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return 0;
  for (size_t i = 0; i < kScheme.size(); ++i)
    if (std::tolower(static_cast<unsigned char>(authorization[i])) != kScheme[i]) return 0;
  const Digest asked = digest(trimmed(authorization.substr(kScheme.size())));
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
