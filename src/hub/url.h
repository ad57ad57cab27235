// Where something is: http[s]://host[:port]/path[?query].
#pragma once

#include <string>
#include <string_view>

#include "core/result.h"

namespace quire::hub {

struct Url {
  bool tls = true;
  std::string host;          // a name or an address, that of IPv6 without brackets
  std::string port;          // decimal
  std::string target = "/";  // path and query, as they stand in a request

  // Errors: another scheme, no host, a user's name before it, or bytes that may not stand in a request.
  static Result<Url> parse(std::string_view text);
  // Where a redirect from here leads: an absolute URL, one without a scheme, or a path.
  Result<Url> join(std::string_view reference) const;

  // "https://host" with the port where it is not the usual one. What has the same origin may see the same token.
  std::string origin() const;
  std::string text() const { return origin() + target; }
};

// As part of a path: all but letters, digits and "-._~" as %XX; slashes stay.
std::string percent_encoded(std::string_view path);

}  // namespace quire::hub
