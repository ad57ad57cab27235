#include "server/origin_policy.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "core/loopback.h"
#include "gguf/metadata.h"
#include "server/protocol/json.h"

namespace quire::server {
namespace {

// What clients of the OpenAI API send, besides what browsers allow everybody.
constexpr std::string_view kAllowedHeaders = "authorization, content-type, x-api-key, x-request-id, traceparent";
constexpr std::string_view kExposedHeaders =
    "X-Request-Id, X-Ignored-Parameters, X-Left-Out, X-Dropped-Messages, X-Unenforced, Retry-After, traceparent";

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string_view trimmed(std::string_view s) {
  const size_t begin = s.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return s.substr(begin, s.find_last_not_of(" \t") - begin + 1);
}

struct Authority {
  std::string host, port;  // lower case, an IPv6 address without its brackets; empty: none given
};

Authority split(std::string_view text) {
  size_t end = text.find(':');
  const bool bracketed = text.starts_with('[') && text.find(']') != std::string_view::npos;
  if (bracketed) end = text.find(']') + 1;
  const std::string_view host = text.substr(0, end), rest = text.substr(host.size());
  return {lower(bracketed ? host.substr(1, host.size() - 2) : host),
          std::string(rest.starts_with(':') ? rest.substr(1) : rest)};
}

// "https://Example.org:443" as "https://example.org"; nothing if it is no origin.
std::optional<std::string> normal_origin(std::string_view text) {
  const std::string origin = lower(text);
  if (origin == "null") return origin;  // of files and of pages in a sandbox
  const size_t colon = origin.find("://");
  if (colon == std::string::npos || colon == 0) return std::nullopt;
  const std::string scheme = origin.substr(0, colon), authority = origin.substr(colon + 3);
  if (authority.empty() || authority.find_first_of("/?#@ ,") != std::string::npos) return std::nullopt;
  const Authority a = split(authority);
  const bool all_digits = std::all_of(a.port.begin(), a.port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (a.host.empty() || !all_digits) return std::nullopt;
  std::string normal = scheme + "://" + (a.host.find(':') == std::string::npos ? a.host : "[" + a.host + "]");
  const bool usual = (scheme == "http" && a.port == "80") || (scheme == "https" && a.port == "443");
  if (!a.port.empty() && !usual) normal += ":" + a.port;
  return normal;
}

Result<std::vector<std::string>> read_list(std::string_view option, std::string_view text) {
  std::vector<std::string> list;
  if (trimmed(text).starts_with('[')) {
    const auto parsed = Json::parse(text, nullptr, false);
    const bool texts =
        parsed.is_array() && std::all_of(parsed.begin(), parsed.end(), [](const Json& j) { return j.is_string(); });
    if (!texts && trimmed(text).find("\"") != std::string_view::npos)
      return request_error("{} {}: no JSON list of strings; a list with commas is as good", option, text);
    if (texts) return parsed.get<std::vector<std::string>>();
  }
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (const std::string_view item = trimmed(text.substr(0, comma)); !item.empty()) list.emplace_back(item);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return list;
}

ApiError foreign_origin(std::string_view origin) {
  return {403,
          fmt::format("pages of {} may not use this server; --allowed-origins lists those that may",
                      gguf::printable(origin)),
          "", "origin_not_allowed"};
}

bool is_header_list(std::string_view s) {
  return !s.empty() && s.size() <= 1024 && std::all_of(s.begin(), s.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == ',' || c == ' ';
  });
}

}  // namespace

bool comes_from_page(const HttpRequest& head) {
  return std::any_of(head.headers.begin(), head.headers.end(),
                     [](const auto& header) { return header.first == "origin" || header.first == "sec-fetch-site"; });
}

Result<OriginPolicy> OriginPolicy::create(std::string_view origins, std::string_view hosts, Guard guard) {
  OriginPolicy p;
  p.guard_ = guard;
  QUIRE_TRY(const std::vector<std::string> pages, read_list("--allowed-origins", origins));
  for (std::string text : pages) {
    if (text == "*") {
      p.any_origin_ = true;
      continue;
    }
    if (text.ends_with('/')) text.pop_back();
    const std::optional<std::string> origin = normal_origin(text);
    if (!origin)
      return request_error(
          "--allowed-origins '{}': an origin is a scheme, a host and maybe a port, such as https://example.org or "
          "http://localhost:3000; * allows all",
          text);
    p.origins_.insert(*origin);
  }
  QUIRE_TRY(const std::vector<std::string> names, read_list("--allowed-hosts", hosts));
  for (const std::string& text : names) {
    if (text == "*") {
      p.any_host_ = true;
      continue;
    }
    const bool bare_v6 = std::count(text.begin(), text.end(), ':') > 1 && !text.starts_with('[');
    if (text.find_first_of("/ ") != std::string::npos)
      return request_error("--allowed-hosts '{}': a name such as models.example.org; * allows all", text);
    p.hosts_.insert(bare_v6 ? lower(text) : split(text).host);
  }
  return p;
}

bool OriginPolicy::allows(std::string_view origin) const {
  if (any_origin_) return true;
  const std::optional<std::string> normal = normal_origin(origin);
  return normal && origins_.contains(*normal);
}

// A name of another machine that leads here is how a page makes the browser take this server for its own
// (DNS rebinding). HTTP/1.0 has no Host, and browsers do not speak it.
ApiStatus OriginPolicy::judge_host(const HttpRequest& head) const {
  if (guard_ != Guard::kLoopback || any_host_) return {};
  const std::string_view given = head.header("host");
  const std::string host = split(given).host;
  if (is_this_machine(host) || hosts_.contains(host) || (given.empty() && head.http_1_0)) return {};
  return ApiError{403,
                  fmt::format("this server has no API keys and answers to localhost only, not to {}; --allowed-hosts "
                              "lists further names",
                              gguf::printable(host)),
                  "", "host_not_allowed"};
}

ApiStatus OriginPolicy::judge(const HttpRequest& head) const {
  QUIRE_CHECKED(judge_host(head));
  const std::string_view origin = head.header("origin");
  if (guard_ == Guard::kOther || origin.empty() || allows(origin)) return {};
  const std::string_view scheme = origin.substr(0, std::min(origin.find("://"), origin.size()));
  const std::optional<std::string> own = normal_origin(fmt::format("{}://{}", scheme, head.header("host")));
  if (own && own == normal_origin(origin)) return {};  // a page that came from here, through a proxy for example
  return foreign_origin(origin);
}

std::optional<HttpResponse> OriginPolicy::preflight(const HttpRequest& head) const {
  const std::string_view origin = head.header("origin");
  if (head.method != "OPTIONS" || origin.empty() || head.header("access-control-request-method").empty())
    return std::nullopt;
  if (const ApiStatus host = judge_host(head); !host.ok()) return to_response(host.error(), ErrorShape::kOpenAi);
  if (!allows(origin)) return to_response(foreign_origin(origin), ErrorShape::kOpenAi);
  std::string allowed(kAllowedHeaders);
  // Client libraries add headers of their own; a page that is allowed may send any.
  if (const std::string_view more = head.header("access-control-request-headers"); is_header_list(more))
    allowed += fmt::format(", {}", more);
  HttpResponse r{.status = 204,
                 .headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE"},
                             {"Access-Control-Allow-Headers", allowed},
                             {"Access-Control-Max-Age", "3600"}}};
  if (head.header("access-control-request-private-network") == "true")
    r.headers.emplace_back("Access-Control-Allow-Private-Network", "true");
  return r;
}

Headers OriginPolicy::headers(const HttpRequest& head) const {
  if (!any_origin_ && origins_.empty()) return {};
  Headers h = {{"Vary", "Origin"}};  // what a cache keeps for one page is not for another
  const std::string_view origin = head.header("origin");
  if (origin.empty() || !allows(origin)) return h;
  h.emplace_back("Access-Control-Allow-Origin", any_origin_ ? "*" : std::string(origin));
  h.emplace_back("Access-Control-Expose-Headers", kExposedHeaders);
  return h;
}

}  // namespace quire::server
