#include "hub/url.h"

#include <algorithm>
#include <cctype>

#include "core/escape.h"

namespace quire::hub {
namespace {

constexpr size_t kMaxUrl = 8192;

bool is_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Error bad(std::string_view text, const char* why) {
  return request_error("'{}' is no URL that can be fetched: {}", escaped(text, 200), why);
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

Result<Url> Url::parse(std::string_view text) {
  Url url;
  if (text.size() > kMaxUrl) return bad(text, "it is too long");
  for (const char c : text)
    if (c <= ' ' || c >= 127) return bad(text, "it has a space, a control character or a letter beyond ASCII");
  const std::string scheme = lower(text.substr(0, text.find("://")));
  if ((scheme != "https" && scheme != "http") || scheme.size() == text.size())
    return bad(text, "it begins with neither https:// nor http://");
  url.tls = scheme == "https";
  std::string_view rest = text.substr(scheme.size() + 3);
  rest = rest.substr(0, rest.find('#'));
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  std::string_view authority = rest.substr(0, end);
  if (end < rest.size()) url.target = (rest[end] == '?' ? "/" : "") + std::string(rest.substr(end));
  if (authority.find('@') != authority.npos) return bad(text, "it names a user");
  url.port = url.tls ? "443" : "80";
  size_t colon = authority.rfind(':');
  if (authority.starts_with("[")) {
    const size_t bracket = authority.find(']');
    if (bracket == authority.npos) return bad(text, "a bracket is not closed");
    url.host = authority.substr(1, bracket - 1);
    if (bracket + 1 < authority.size() && authority[bracket + 1] != ':') return bad(text, "its host is none");
    colon = bracket + 1 < authority.size() ? bracket + 1 : authority.npos;
  } else {
    url.host = lower(authority.substr(0, colon));
  }
  if (colon != std::string_view::npos) {
    url.port = authority.substr(colon + 1);
    if (!is_digits(url.port) || url.port.size() > 5) return bad(text, "its port is no number");
  }
  constexpr char kHostLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:";
  if (url.host.empty() || url.host.size() > 255 || url.host.find_first_not_of(kHostLetters) != std::string::npos)
    return bad(text, "its host is none");
  return url;
}

Result<Url> Url::join(std::string_view reference) const {
  if (reference.find("://") < reference.find_first_of("/?#")) return parse(reference);
  if (reference.starts_with("//")) return parse((tls ? "https:" : "http:") + std::string(reference));
  if (reference.starts_with("/")) return parse(origin() + std::string(reference));
  const std::string path = target.substr(0, target.find('?'));
  return parse(origin() + path.substr(0, path.rfind('/') + 1) + std::string(reference));
}

std::string Url::origin() const {
  const bool v6 = host.find(':') != std::string::npos;
  const bool usual = port == (tls ? "443" : "80");
  return fmt::format("{}://{}{}{}{}", tls ? "https" : "http", v6 ? "[" : "", host, v6 ? "]" : "",
                     usual ? "" : ":" + port);
}

std::string percent_encoded(std::string_view path) {
  std::string out;
  for (const char c : path) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u) != 0 || std::string_view("-._~/").find(c) != std::string_view::npos)
      out += c;
    else
      out += fmt::format("%{:02X}", u);
  }
  return out;
}

}  // namespace quire::hub
