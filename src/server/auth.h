// API keys: who may use the server.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace quire::server {

class KeyRing {
 public:
  // Nobody needs a key.
  KeyRing() = default;
  // One key a line, of 8 to 512 printable characters without spaces; empty lines and those that begin with # are
  // skipped. Errors name the line and never show a key.
  static Result<KeyRing> parse(std::string_view text);
  static Result<KeyRing> load(const std::string& path);

  bool empty() const { return digests_.empty(); }
  size_t size() const { return digests_.size(); }
  // The number of the key, counted from 1, that the value of an Authorization header presents ("Bearer KEY"); 0: none.
  // The time it takes depends on neither the keys nor how much of one was guessed.
  int find(std::string_view authorization) const;
  // What tells the prompts of a key from those of others, wherever it stands in its file; empty for 0. Not for showing.
  std::string salt(int key) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  static Digest digest(std::string_view key);
  std::vector<Digest> digests_;  // SHA-256, so that all comparisons are of one length
};

}  // namespace quire::server
