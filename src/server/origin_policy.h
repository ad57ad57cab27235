// Which pages a browser may let use the server. A browser sends requests to a server on its own machine for whatever
// page is open in it, and tells in Host and Origin how it came to: judging them keeps pages out that nobody allowed,
// and answers to pages that are allowed say so (CORS).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "server/protocol/http.h"

namespace quire::server {

// Whether a browser sent a request for a page. With a POST every browser names the page's origin, or "null", and with
// requests to this machine, whose origins they trust, newer ones also how the page is related to it (Sec-Fetch-Site).
// The other headers of that family tell nothing: browsers send all of them or none, and programs that fetch as browsers
// do, such as Node, send Sec-Fetch-Mode alone.
bool comes_from_page(const HttpRequest& head);

class OriginPolicy {
 public:
  // What keeps strangers out besides.
  enum class Guard {
    kOther,       // API keys, or the network that the operator chose to listen to: nothing is refused here
    kLoopback,    // nothing but listening to this machine alone: Host, Origin and Content-Type must be right
    kUnixSocket,  // the socket's file: Origin must be right
  };

  // No page is allowed, nothing is refused.
  OriginPolicy() = default;
  // Lists with commas, or JSON lists of strings: `origins` of "https://HOST[:PORT]" or "*" for all; `hosts` of names
  // besides those of the loopback, or "*". Errors name the option.
  static Result<OriginPolicy> create(std::string_view origins, std::string_view hosts, Guard guard);

  // By the headers: 403 for a foreign Host or Origin, where the guard wants it.
  ApiStatus judge(const HttpRequest& head) const;
  // Whether the body of a page's POST must name its type: forms and texts are sent for any page without asking first.
  bool guards_types() const { return guard_ == Guard::kLoopback; }
  // The answer to a browser that asks what a page may do, before it does it; nothing if the request is none of these.
  std::optional<HttpResponse> preflight(const HttpRequest& head) const;
  // What every answer to this request says about who may read it.
  Headers headers(const HttpRequest& head) const;

 private:
  bool allows(std::string_view origin) const;
  ApiStatus judge_host(const HttpRequest& head) const;

  Guard guard_ = Guard::kOther;
  bool any_origin_ = false, any_host_ = false;
  std::set<std::string, std::less<>> origins_, hosts_;  // in the form of normal_origin(); lower case
};

}  // namespace quire::server
