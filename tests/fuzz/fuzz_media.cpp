// Any bytes as the URL of a picture, as where a redirect leads, and as an entry of --allowed-media-domains: the first
// byte says as what. What is taken is on the list, whoever reads it, and no file is outside its folder.
//   build/fuzz/fuzz_media -max_total_time=600 -rss_limit_mb=2048 tests/fuzz/corpus/media
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

#include "server/protocol/media_policy.h"

namespace quire::server {
namespace {

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

const MediaPolicy& policy() {
  static const MediaPolicy p = std::move(MediaPolicy::create({"images.example.org", "b.example:8443", "10.0.0.5:9000",
                                                              "[2001:db8::7]", "localhost:3000"},
                                                             "/usr"))
                                   .value();
  return p;
}

// Hosts and ports that stand as themselves, beside other notations of addresses.
void require_listed(const hub::Url& url) {
  static const std::set<std::pair<std::string, int>> names = {
      {"images.example.org", 80}, {"images.example.org", 443}, {"b.example", 8443}, {"localhost", 3000}};
  const int port = std::atoi(url.port.c_str());
  if (names.contains({url.host, port})) {
    require(url.host != "images.example.org" || port == (url.tls ? 443 : 80), "the usual port is the scheme's");
    return;
  }
  const auto address = IpAddress::parse(url.host);
  require(address.has_value(), "what is no listed name is an address");
  const bool private_one = address == IpAddress::parse("10.0.0.5") && port == 9000;
  const bool v6 = address == IpAddress::parse("2001:db8::7") && port == (url.tls ? 443 : 80);
  require(private_one || v6 || (address->is_loopback() && port == 3000), "an address is listed");
  require(policy().may_connect(*address, url), "and may be connected to");
}

void check(const MediaSource& source) {
  if (const auto* const url = std::get_if<hub::Url>(&source)) {
    require_listed(*url);
    require(url->target.starts_with("/"), "a request asks for a path");
    for (const char c : url->host + url->target) require(c > ' ' && c < 127, "a request has one line");
    const auto again = policy().judge(url->text());
    require(again.ok() && std::get<hub::Url>(*again).text() == url->text(), "a URL is read back as itself");
    return;
  }
  const auto& file = std::get<MediaFile>(source);
  require(file.folder == "/usr" && !file.parts.empty(), "a file is below the folder");
  for (const std::string& part : file.parts)
    require(!part.empty() && part != "." && part != ".." && part.find('/') == part.npos && part.find('\0') == part.npos,
            "a part is a name");
}

// Whether an entry, with a port or without, is this address, or this machine.
bool names(std::string_view entry, const IpAddress& address) {
  for (std::string host : {std::string(entry), std::string(entry.substr(0, entry.rfind(':')))}) {
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    for (char& c : host) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (IpAddress::parse(host) == address || (host == "localhost" && address.is_loopback())) return true;
  }
  return false;
}

void run(uint8_t kind, std::string_view text) {
  if (kind % 3 == 0) {
    const auto source = policy().judge(text);
    if (source.ok()) return check(*source);
    require(!source.error().message.empty() && source.error().message.size() < 12'000, "an error is a sentence");
    require(source.error().fault == Fault::kRequest, "of the client");
  }
  if (kind % 3 == 1) {
    const auto next = hub::Url::parse("https://images.example.org/a/b?c")->join(text);
    if (next.ok() && policy().judge_host(*next).ok()) check(*next);
  }
  if (kind % 3 == 2) {
    const auto made = MediaPolicy::create({std::string(text)}, "");
    if (!made.ok()) return require(made.error().message.starts_with("--allowed-media-domains"), "an error names it");
    require(made->any(), "an entry is one");
    const hub::Url url = *hub::Url::parse("http://images.example.org/");
    for (const char* const ip : {"10.1.2.3", "169.254.169.254", "::1", "fd00::1"})
      if (const IpAddress address = *IpAddress::parse(ip); made->may_connect(address, url))
        require(names(text, address), "no name stands for a private address");
  }
}

}  // namespace
}  // namespace quire::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) quire::server::run(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
