// From where a server may fetch pictures for its clients: hosts that its operator lists, and files below one folder.
// Who sends a request chooses the URL, and the server stands where that client may not reach: all that it asks for is
// judged here, each redirect and each address that a name leads to among it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/ip_address.h"
#include "hub/url.h"

namespace quire::server {

// A file below the folder: the names of the folders on the way to it, and its own.
struct MediaFile {
  std::string folder;
  std::vector<std::string> parts;
};
using MediaSource = std::variant<hub::Url, MediaFile>;

class MediaPolicy {
 public:
  MediaPolicy() = default;  // nothing may be fetched
  // `domains`: "host" at the usual ports, "host:port", addresses (those of version 6 in brackets where a port follows),
  // and "localhost", which is this machine by all of its loopback addresses. `folder`: empty: no files. Errors name the
  // option.
  static Result<MediaPolicy> create(const std::vector<std::string>& domains, const std::string& folder);

  bool any() const { return !hosts_.empty() || !folder_.empty(); }

  // Whether a text begins as the URLs do that are judged: with http:, https: or file:.
  static bool knows_scheme(std::string_view url);
  // What the URL of a request names, if it may be fetched. Errors are sentences for the client, which say what the
  // operator can do.
  Result<MediaSource> judge(std::string_view url) const;
  // The same of where a redirect leads.
  Status judge_host(const hub::Url& url) const;
  // Of an address that the host's name leads to: it is public, or listed itself, at the URL's port.
  bool may_connect(const IpAddress& address, const hub::Url& url) const;

  // The message for whatever keeps a file from being read: it tells nobody which files there are.
  static Error no_file();

 private:
  struct Host {
    std::string name;                  // lower case; empty: an address
    std::optional<IpAddress> address;  // nothing: a name
    int port = 0;                      // 0: the usual one of the URL's scheme

    // Whether it is listed by this: a URL's port at its host, which may be an address.
    bool is(const hub::Url& url, const std::optional<IpAddress>& host) const;
  };
  static Result<Host> parse_host(const std::string& text);
  Result<MediaSource> judge_file(std::string_view path) const;

  std::vector<Host> hosts_;
  std::string folder_;                             // as it is opened
  std::vector<std::vector<std::string>> folders_;  // the names on the way to it, in each of its spellings
};

}  // namespace quire::server
