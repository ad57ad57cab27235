#include "server/protocol/media_policy.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>

#include "core/escape.h"

namespace quire::server {
namespace {

constexpr std::string_view kLocalhost = "localhost";
constexpr size_t kMostBytes = 8192;  // of a URL of a file

std::string lowered(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool is_begun_by(std::string_view text, std::string_view small) {
  return lowered(text.substr(0, small.size())) == small;
}

// 1 to 65535 in decimal digits; 0: it is none.
int port_number(std::string_view text) {
  int port = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool whole = !text.empty() && failed == std::errc() && end == text.data() + text.size();
  return whole && port >= 1 && port <= 65535 && text.front() != '+' ? port : 0;
}

// Resolvers take numbers in other notations than four decimal parts for addresses, too.
bool ends_in_number(const std::string& name) {
  const std::string last = name.substr(name.rfind('.') + 1);
  return !last.empty() && std::isdigit(static_cast<unsigned char>(last.front())) != 0 &&
         last.find_first_not_of("0123456789abcdefx") == std::string::npos;
}

Error bad_host(const std::string& text, const char* why) {
  return request_error(
      "--allowed-media-domains '{}': {}; a host is listed as in images.example.org, "
      "images.example.org:8443, 192.0.2.7, [2001:db8::7]:8080 or localhost:9000",
      escaped(text, 200), why);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char l = static_cast<char>(c | 0x20);
  return l >= 'a' && l <= 'f' ? l - 'a' + 10 : -1;
}

// Nothing if an escape is none, or stands for what no name of a file has.
std::optional<std::string> decoded_name(std::string_view text) {
  std::string name;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (c == '\0' || c == '/') return std::nullopt;
    name += c;
  }
  if (name.empty() || name == "." || name == ".." || name.size() > 255) return std::nullopt;
  return name;
}

std::vector<std::string> names_of(const std::filesystem::path& path) {
  std::vector<std::string> names;
  for (const auto& name : path.relative_path())
    if (!name.empty()) names.push_back(name.string());
  return names;
}

bool is_begun_by(const std::vector<std::string>& path, const std::vector<std::string>& folder) {
  return path.size() > folder.size() && std::equal(folder.begin(), folder.end(), path.begin());
}

}  // namespace

bool MediaPolicy::Host::is(const hub::Url& url, const std::optional<IpAddress>& host) const {
  const int asked = port_number(url.port);
  if (asked == 0 || asked != (port != 0 ? port : url.tls ? 443 : 80)) return false;
  if (address) return host == address;
  if (name == kLocalhost && host) return host->is_loopback();
  return !host && url.host == name;
}

Result<MediaPolicy::Host> MediaPolicy::parse_host(const std::string& text) {
  Host host;
  std::string name = lowered(text);
  const bool bracketed = name.starts_with('[');
  const size_t colon = name.rfind(':');
  const bool bare_v6 = !bracketed && std::count(name.begin(), name.end(), ':') > 1;
  if (name.find("://") != std::string::npos) return bad_host(text, "it is a URL");
  if (!bare_v6 && colon != std::string::npos && (!bracketed || colon == name.find(']') + 1)) {
    host.port = port_number(std::string_view(name).substr(colon + 1));
    if (host.port == 0) return bad_host(text, "its port is none");
    name.resize(colon);
  }
  if (bracketed) {
    if (name.back() != ']') return bad_host(text, "a bracket is not closed");
    name = name.substr(1, name.size() - 2);
  }
  host.address = IpAddress::parse(name);
  if (host.address) return host;
  if (bracketed || bare_v6) return bad_host(text, "it is no address");
  if (name.empty() || name.size() > 253 ||
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_.") != std::string::npos)
    return bad_host(text, "it is no host");
  if (ends_in_number(name)) return bad_host(text, "it ends in a number and is no address");
  host.name = std::move(name);
  return host;
}

Result<MediaPolicy> MediaPolicy::create(const std::vector<std::string>& domains, const std::string& folder) {
  namespace fs = std::filesystem;
  MediaPolicy policy;
  for (const std::string& domain : domains) {
    QUIRE_TRY(Host host, parse_host(domain));
    policy.hosts_.push_back(std::move(host));
  }
  if (folder.empty()) return policy;
  std::error_code failed;
  const fs::path whole = fs::absolute(folder, failed).lexically_normal(), real = fs::canonical(folder, failed);
  if (failed || !fs::is_directory(real, failed))
    return request_error("--allowed-local-media-path {}: {}", folder, failed ? failed.message() : "it is no folder");
  policy.folder_ = real.string();
  policy.folders_ = {names_of(whole), names_of(real)};
  return policy;
}

bool MediaPolicy::knows_scheme(std::string_view url) {
  return is_begun_by(url, "http:") || is_begun_by(url, "https:") || is_begun_by(url, "file:");
}

Error MediaPolicy::no_file() {
  return request_error(
      "the file cannot be read: it must be a regular file, no larger than a picture may be, in the folder of "
      "--allowed-local-media-path or below it, with no link on the way");
}

Result<MediaSource> MediaPolicy::judge(std::string_view url) const {
  constexpr std::string_view kFile = "file:";
  if (is_begun_by(url, kFile)) return judge_file(url.substr(kFile.size()));
  if (hosts_.empty())
    return request_error(
        "this server fetches no pictures (--allowed-media-domains lists the hosts that it may ask); send it as a data: "
        "URL, with the picture as base64");
  QUIRE_TRY(hub::Url parsed, hub::Url::parse(url));
  QUIRE_CHECKED(judge_host(parsed));
  return MediaSource(std::move(parsed));
}

Status MediaPolicy::judge_host(const hub::Url& url) const {
  const std::optional<IpAddress> address = IpAddress::parse(url.host);
  if (std::any_of(hosts_.begin(), hosts_.end(), [&](const Host& h) { return h.is(url, address); })) return {};
  return request_error(
      "this server fetches no pictures from {} (--allowed-media-domains lists the hosts and ports that it may ask); "
      "send "
      "it as a data: URL, with the picture as base64",
      url.origin());
}

bool MediaPolicy::may_connect(const IpAddress& address, const hub::Url& url) const {
  return address.is_public() ||
         std::any_of(hosts_.begin(), hosts_.end(), [&](const Host& h) { return h.is(url, address); });
}

// "//localhost/srv/pictures/a%20b.png", without the scheme.
Result<MediaSource> MediaPolicy::judge_file(std::string_view text) const {
  if (folder_.empty())
    return request_error(
        "this server reads no pictures from files (--allowed-local-media-path names the folder that it may read); send "
        "it as a data: URL, with the picture as base64");
  if (!text.starts_with("//") || text.size() > kMostBytes || text.find_first_of("?#") != text.npos) return no_file();
  text.remove_prefix(2);
  const size_t slash = std::min(text.find('/'), text.size());
  if (const std::string host = lowered(text.substr(0, slash)); !host.empty() && host != kLocalhost) return no_file();
  std::vector<std::string> path;
  for (text.remove_prefix(slash); !text.empty();) {
    const size_t end = std::min(text.find('/', 1), text.size());
    std::optional<std::string> name = decoded_name(text.substr(1, end - 1));
    if (!name) return no_file();
    path.push_back(std::move(*name));
    text.remove_prefix(end);
  }
  for (const std::vector<std::string>& folder : folders_)
    if (is_begun_by(path, folder)) {
      path.erase(path.begin(), path.begin() + std::ssize(folder));
      return MediaSource(MediaFile{folder_, std::move(path)});
    }
  return no_file();
}

}  // namespace quire::server
