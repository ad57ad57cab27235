// Where a server is: http://host[:port][/base].
#pragma once

#include <string>
#include <string_view>

#include "core/result.h"

namespace quire::cli::load {

struct Url {
  std::string host, port = "80", base;  // base: what stands before /v1, without a slash at its end

  // Errors: a scheme other than http, no host. A base that ends in /v1 is taken without it.
  static Result<Url> parse(std::string_view text);
  std::string text() const { return "http://" + host + ":" + port + base; }
};

}  // namespace quire::cli::load
