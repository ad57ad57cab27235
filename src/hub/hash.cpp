#include "hub/hash.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace quire::hub {

BlobHash::BlobHash(std::string_view name, uint64_t bytes) : context_(EVP_MD_CTX_new()) {
  const bool git = name.size() == 40;
  QUIRE_CHECK(context_ && EVP_DigestInit_ex(context_.get(), git ? EVP_sha1() : EVP_sha256(), nullptr) == 1,
              "no digest for {}", name);
  if (!git) return;
  const std::string head = fmt::format("blob {}", bytes);
  EVP_DigestUpdate(context_.get(), head.c_str(), head.size() + 1);  // with its NUL
}

void BlobHash::add(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
}

std::string BlobHash::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int n = 0;
  EVP_DigestFinal_ex(context_.get(), digest, &n);
  std::string text;
  for (unsigned int i = 0; i < n; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

Result<std::string> hash_file(const std::string& path, std::string_view name) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return request_error("cannot open {}: {}", path, std::strerror(errno));
  struct stat s {};
  fstat(fd, &s);
  BlobHash hash(name, static_cast<uint64_t>(s.st_size));
  std::vector<std::byte> buffer(size_t{256} << 10);
  ssize_t n = 0;
  while ((n = ::read(fd, buffer.data(), buffer.size())) > 0) hash.add(std::span(buffer).first(static_cast<size_t>(n)));
  const int number = errno;
  close(fd);
  if (n < 0) return request_error("cannot read {}: {}", path, std::strerror(number));
  return hash.hex();
}

}  // namespace quire::hub
