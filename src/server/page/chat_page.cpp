#include "server/page/chat_page.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <array>
#include <cstddef>

#include "server/protocol/base64.h"

namespace quire::server {

extern const std::string_view kChatPage;  // cmake/embed.cmake makes it of page.html

namespace {

// What stands between two tags of the page.
std::string_view between(std::string_view open, std::string_view close) {
  const size_t begin = kChatPage.find(open) + open.size();
  return kChatPage.substr(begin, kChatPage.find(close, begin) - begin);
}

// As a Content-Security-Policy names an inline script or style that may be used.
std::string hash_source(std::string_view text) {
  std::array<std::byte, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return "'sha256-" + base64(digest) + "'";
}

// Nothing may run, be loaded or be asked but what the page came with and the server it came from. Trusted types forbid
// the script itself to make markup of text.
std::string make_policy() {
  return fmt::format(
      "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; "
      "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
      hash_source(between("<script type=\"module\">", "</script>")), hash_source(between("<style>", "</style>")));
}

}  // namespace

bool wants_page(const HttpRequest& request) {
  return request.header("accept").find("text/html") != std::string_view::npos;
}

HttpResponse chat_page() {
  static const std::string policy = make_policy();
  return {.body = std::string(kChatPage),
          .content_type = "text/html; charset=utf-8",
          .headers = {{"Content-Security-Policy", policy},
                      {"Referrer-Policy", "no-referrer"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"X-Frame-Options", "DENY"},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Permissions-Policy", "camera=(), microphone=(), geolocation=()"},
                      {"Cache-Control", "no-cache"},
                      {"Vary", "Accept"}}};
}

}  // namespace quire::server
