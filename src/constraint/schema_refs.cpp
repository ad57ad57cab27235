#include "constraint/schema_refs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace quire::schema {
namespace {

std::string unescape(const std::string& step) {
  std::string s;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : (c | 32) - 'a' + 10; };
  for (size_t i = 0; i < step.size(); ++i) {
    if (step[i] == '%' && i + 2 < step.size() && std::isxdigit(static_cast<unsigned char>(step[i + 1])) != 0 &&
        std::isxdigit(static_cast<unsigned char>(step[i + 2])) != 0) {
      s += static_cast<char>(digit(step[i + 1]) * 16 + digit(step[i + 2]));
      i += 2;
    } else if (step[i] == '~' && i + 1 < step.size() && (step[i + 1] == '0' || step[i + 1] == '1')) {
      s += step[++i] == '0' ? '~' : '/';
    } else {
      s += step[i];
    }
  }
  return s;
}

}  // namespace

const Json& resolve(const Json& root, const std::string& uri, Budget& budget) {
  if (uri == "#") return root;
  if (!uri.starts_with("#/"))
    throw Refused{fmt::format("'$ref' to {}: only references within the schema (#/...) are followed", uri)};
  const Json* at = &root;
  size_t begin = 2;
  while (begin <= uri.size()) {
    const size_t end = std::min(uri.find('/', begin), uri.size());
    const std::string step = unescape(uri.substr(begin, end - begin));
    budget.spend_search(*at);
    if (at->is_object() && at->contains(step)) {
      at = &(*at)[step];
    } else if (at->is_array() && !step.empty() && step.size() < 7 &&
               std::all_of(step.begin(), step.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
               std::stoul(step) < at->size()) {
      at = &(*at)[std::stoul(step)];
    } else {
      throw Refused{fmt::format("'$ref' to {}, which does not exist", uri)};
    }
    begin = end + 1;
  }
  return *at;
}

std::string pointer_step(std::string_view step) {
  std::string s;
  for (const char c : step) s += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return s.size() > 64 ? s.substr(0, 64) + "..." : s;
}

}  // namespace quire::schema
