#include "lab/load/url.h"

#include <algorithm>

namespace quire::cli::load {

Result<Url> Url::parse(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  if (text.starts_with("https://"))
    return request_error("--url {}: https is not spoken here; measure without TLS, or through a local proxy", text);
  if (!text.starts_with(kScheme)) return request_error("--url {}: write it as http://host:port", text);
  std::string_view rest = text.substr(kScheme.size());
  Url u;
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash), base = rest.substr(slash);
  while (base.ends_with('/')) base.remove_suffix(1);
  if (base.ends_with("/v1")) base.remove_suffix(3);
  u.base = base;
  if (authority.starts_with('[')) {  // an IPv6 address
    const size_t close = authority.find(']');
    if (close == std::string_view::npos) return request_error("--url {}: ']' is missing", text);
    u.host = authority.substr(1, close - 1);
    authority.remove_prefix(close + 1);
    if (!authority.empty() && !authority.starts_with(':'))
      return request_error("--url {}: write it as http://[address]:port", text);
  } else {
    u.host = authority.substr(0, std::min(authority.find(':'), authority.size()));
    authority.remove_prefix(u.host.size());
  }
  if (authority.starts_with(':')) u.port = authority.substr(1);
  const bool digits = std::all_of(u.port.begin(), u.port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (u.host.empty() || u.port.empty() || u.port.size() > 5 || !digits)
    return request_error("--url {}: write it as http://host:port", text);
  const auto printable = [](char c) { return c > ' ' && c < 0x7f; };
  if (!std::all_of(u.host.begin(), u.host.end(), printable) || !std::all_of(u.base.begin(), u.base.end(), printable))
    return request_error("--url: characters that no URL has");
  return u;
}

}  // namespace quire::cli::load
