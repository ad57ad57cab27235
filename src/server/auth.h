// API keys: who may use the server.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace quire::server {

// What a line of a key file, "KEY  # whose it is", has before its comment; empty: no key.
std::string_view key_of_line(std::string_view line);

class KeyRing {
 public:
  // Nobody needs a key.
  KeyRing() = default;
  // One key a line, of 8 to 512 printable characters without spaces; empty lines and what follows a # at the
  // beginning of a line, or behind a space, are skipped. Errors name the line and never show a key.
  static Result<KeyRing> parse(std::string_view text);
  // A file, or what a program writes into a pipe (/dev/fd/N of a shell's <(...), a FIFO), to its end. `patience`: how
  // long a pipe may be silent.
  static Result<KeyRing> load(const std::string& path, std::chrono::milliseconds patience = std::chrono::seconds(10));

  bool empty() const { return digests_.empty(); }
  size_t size() const { return digests_.size(); }
  // The number of a key, counted from 1; 0: there is none such. The time it takes depends on neither the keys nor how
  // much of one was guessed.
  int find(std::string_view key) const;
  // Whether two texts are one key, in a time that does not depend on what they have in common.
  static bool same(std::string_view a, std::string_view b);
  // The key in the value of an Authorization header ("Bearer KEY"); empty if it is none.
  static std::string_view bearer(std::string_view authorization);
  // What tells the prompts of a key from those of others, wherever it stands in its file; empty for 0. Not for showing.
  std::string salt(int key) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  static Digest digest(std::string_view key);
  std::vector<Digest> digests_;  // SHA-256, so that all comparisons are of one length
};

}  // namespace quire::server
