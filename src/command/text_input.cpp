#include "command/text_input.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>

namespace quire::cli {
namespace {

// /dev/zero and what else goes on for ever. A terminal ends when its user says so, and /dev/null has nothing.
bool is_endless(int fd) {
  struct stat s {};
  if (fstat(fd, &s) != 0) return false;
  return S_ISBLK(s.st_mode) || (S_ISCHR(s.st_mode) && isatty(fd) == 0 && s.st_rdev != makedev(1, 3));
}

}  // namespace

Result<std::string> read_text(const std::string& path, int64_t most, std::string_view why) {
  struct Close {
    void operator()(std::FILE* f) const {
      if (f != stdin) std::fclose(f);
    }
  };
  const std::unique_ptr<std::FILE, Close> file(path == "-" ? stdin : std::fopen(path.c_str(), "rb"));
  const std::string name = path == "-" ? "standard input" : path;
  if (!file) return request_error("{}: {}", name, std::strerror(errno));
  if (is_endless(fileno(file.get()))) return request_error("{} is a device, not a text; give a file", name);
  std::string text;
  char buffer[65536];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, file.get())) {
    text.append(buffer, n);
    if (static_cast<int64_t>(text.size()) > most)
      return request_error("{} has more than {} bytes: {}", name, most, why);
  }
  if (std::ferror(file.get()) != 0) return request_error("{}: {}", name, std::strerror(errno));
  return text;
}

Result<std::vector<TokenId>> parse_token_list(std::string_view text) {
  constexpr std::string_view kBetween = " ,:[]{}\t\r\n";
  if (const size_t key = text.find("\"tokens\""); key != text.npos) text.remove_prefix(key + 8);
  std::vector<TokenId> tokens;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p != end) {
    if (kBetween.find(*p) != kBetween.npos) {
      ++p;
    } else if (*p == '\'' && !tokens.empty()) {
      p = std::find(p, end, '\n');  // the token's text, which ends its line
    } else {
      TokenId t = 0;
      const auto [next, error] = std::from_chars(p, end, t);
      if (error != std::errc{} || t < 0)
        return request_error("--tokens: expected token ids as `quire tokenize` prints them, at byte {}",
                             p - text.data() + 1);
      tokens.push_back(t);
      p = next;
    }
  }
  if (tokens.empty()) return request_error("--tokens: no token given");
  return tokens;
}

Result<std::vector<TokenId>> parse_tokens(std::string_view text) {
  std::vector<TokenId> tokens;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p != end) {
    TokenId t = 0;
    const auto [next, error] = std::from_chars(p, end, t);
    if (error != std::errc{} || (next != end && (*next != ',' || next + 1 == end)))
      return request_error("--tokens: expected numbers separated by commas, at character {}", p - text.data() + 1);
    tokens.push_back(t);
    p = next == end ? end : next + 1;
  }
  if (tokens.empty()) return request_error("--tokens: no token given");
  return tokens;
}

}  // namespace quire::cli
