// quire health: whether a server answers, for what watches it (an image's health check, scripts that wait for it).
#include "cli/commands.h"
#include "core/output.h"
#include "hub/http.h"

namespace quire::cli {
namespace {

struct Options {
  std::string url = "http://127.0.0.1:8000", ca_file, uds;
  int timeout = 5;  // seconds
};

Status health(const Options& o) {
  QUIRE_TRY(hub::Url url, hub::Url::parse(o.url.find("://") == o.url.npos ? "http://" + o.url : o.url));
  while (url.target.ends_with('/')) url.target.pop_back();
  url.target += "/health";
  const std::chrono::milliseconds wait(o.timeout * 1000);
  hub::HttpOptions options{
      .hub = url, .unix_socket = o.uds, .patience = {.connect = wait, .head = wait, .attempts = 1}};
  QUIRE_TRY(options.tls, hub::TlsContext::create(o.ca_file));
  hub::HttpClient client(options);
  QUIRE_TRY(const hub::Response answer, client.fetch({.url = url}));
  if (answer.status() != 200)
    return request_error("{} answers with status {}", o.uds.empty() ? url.text() : o.uds, answer.status());
  write_out("ok\n");
  return {};
}

}  // namespace

Action add_health(Flags& flags) {
  auto o = std::make_shared<Options>();
  flags.add("-u,--url,URL URL", &o->url, "Of the server");
  flags.add("--uds PATH", &o->uds, "Of a server that listens at this unix domain socket");
  flags.add("--ca-file FILE", &o->ca_file, "Certificates of authorities to trust, in PEM, beside the system's");
  flags.add("--timeout SECONDS", &o->timeout, between(1, 3600, "s"), "How long to wait for its answer");
  flags.footer("Ends with 0 where the server is ready to answer, else with 2 and a line that says why not.");
  return [o] { return health(*o); };
}

}  // namespace quire::cli
