#include "command/api_key.h"

#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "command/text_input.h"
#include "server/auth.h"

namespace quire::cli {
namespace {

constexpr int64_t kMaxKeyFile = int64_t{1} << 20;

// Standard input does not echo while it lives.
class Unseen {
 public:
  Unseen() {
    known_ = tcgetattr(STDIN_FILENO, &before_) == 0;
    termios silent = before_;
    silent.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    if (known_) tcsetattr(STDIN_FILENO, TCSAFLUSH, &silent);
  }
  ~Unseen() {
    if (known_) tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;

 private:
  termios before_{};
  bool known_ = false;
};

Result<std::string> ask_for_key() {
  if (isatty(STDIN_FILENO) == 0)
    return request_error("--api-key-file -: standard input is no terminal at which the key could be typed");
  std::fputs("API key: ", stderr);
  std::string key;
  {
    const Unseen unseen;
    for (int c = std::getchar(); c != EOF && c != '\n'; c = std::getchar()) key += static_cast<char>(c);
  }
  std::fputs("\n", stderr);
  return key;
}

}  // namespace

Result<std::string> first_key(const std::string& path) {
  QUIRE_TRY(const std::string text, read_text(path, kMaxKeyFile, "that is too long for keys"));
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    if (const std::string_view key = server::key_of_line(rest.substr(0, end)); !key.empty()) return std::string(key);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return request_error("--api-key-file {}: no key in it", path);
}

Result<std::string> key_for_server(const std::string& path) {
  QUIRE_TRY(const std::string key, path == "-" ? ask_for_key() : first_key(path));
  for (const char c : key)
    if (c <= ' ' || c >= 127) return request_error("--api-key-file {}: a key is one line of visible characters", path);
  if (key.empty()) return request_error("--api-key-file {}: no key was typed", path);
  return key;
}

}  // namespace quire::cli
