// The hashes that blobs are called by: SHA-256 of large files, Git's of small ones.
#pragma once

#include <openssl/evp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/result.h"

namespace quire::hub {

class BlobHash {
 public:
  // For a blob of `bytes` bytes called `name`: 64 hexadecimal digits are its SHA-256, 40 are Git's SHA-1 of it.
  BlobHash(std::string_view name, uint64_t bytes);
  void add(std::span<const std::byte> bytes);
  std::string hex();  // once, at the end

 private:
  struct Free {
    void operator()(EVP_MD_CTX* p) const { EVP_MD_CTX_free(p); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

// Of a file's bytes from its beginning to its end.
Result<std::string> hash_file(const std::string& path, std::string_view name);

}  // namespace quire::hub
