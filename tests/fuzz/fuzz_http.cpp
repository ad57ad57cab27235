// Any bytes as what a client sends over one connection: requests one after the other, cut into pieces as the first byte
// says. However they are cut, the same requests come out, and each one's body is read as its route does.
//   build/fuzz/fuzz_http -max_total_time=600 -rss_limit_mb=2048 tests/fuzz/corpus/http
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "server/protocol/chat_request.h"
#include "server/protocol/embedding_request.h"
#include "server/protocol/event_reader.h"
#include "server/protocol/http.h"
#include "server/protocol/reasoning.h"

namespace quire::server {
namespace {

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

template <class T>
std::string outcome(const ApiResult<T>& r) {
  if (r.ok()) return "accepted\n";
  require(r.error().status == 400 || r.error().status == 413, "a bad body is the client's fault");
  require(Json::accept(r.error().body(ErrorShape::kOpenAi)), "an error's body is JSON");
  return r.error().message + "\n";
}

// What the route makes of the body.
std::string read_body(const HttpRequest& q) {
  if (q.method != "POST") return "";
  RequestLimits l;
  l.vocab = 1000;
  l.context = 256;
  const auto body = parse_json_object(q.body, {.max_bytes = 4096, .max_depth = 16, .max_values = 1000});
  if (!body.ok()) return outcome(body);
  if (q.path == "/v1/chat/completions") return outcome(parse_chat_request(**body, l));
  if (q.path == "/v1/completions") return outcome(parse_completion_request(**body, l));
  if (q.path == "/v1/embeddings") return outcome(parse_embedding_request(**body, l));
  if (q.path == "/tokenize") return outcome(parse_tokenize_request(**body, l));
  if (q.path == "/detokenize") return outcome(parse_detokenize_request(**body, l));
  return "";
}

// All whole requests, up to the first that is wrong.
std::string read_all(std::string_view bytes, size_t step) {
  const HttpLimits limits{.max_header_bytes = 2048, .max_body_bytes = 4096};
  HttpParser parser(limits);
  std::string input, seen;
  for (size_t at = 0; at < bytes.size(); at += step) {
    input += bytes.substr(at, step);
    for (size_t used = 1; used > 0 && !input.empty();) {
      ApiResult<size_t> r = parser.feed(input);
      if (!r.ok()) {
        require(r.error().status >= 400 && r.error().status < 500, "what a client sends is its fault");
        require(!r.error().message.empty(), "an error has a message");
        // How much of a wrong request is needed to see that it is wrong may depend on the pieces.
        return seen;
      }
      used = *r;
      require(used <= input.size(), "no more is used than there is");
      input.erase(0, used);
      if (!parser.done()) continue;
      const HttpRequest q = parser.take();
      require(q.body.size() <= limits.max_body_bytes, "bodies are limited");
      seen += q.method + " " + q.path + "?" + q.query + "\n";
      for (const auto& [name, value] : q.headers) seen += name + ":" + value + "\n";
      seen += q.body + "\n";
      seen += read_body(q);
      percent_decoded(q.path);
      parser = HttpParser(limits);
      used = 1;
    }
  }
  return seen;
}

// Text and events are the same however they are cut.
void read_streams(std::string_view bytes, size_t step) {
  ReasoningSplitter whole, cut;
  const auto a = whole.push(bytes), a_end = whole.flush();
  std::string reasoning, content;
  EventReader all, pieces;
  std::vector<std::string> events;
  for (size_t at = 0; at < bytes.size(); at += step) {
    const auto out = cut.push(bytes.substr(at, step));
    reasoning += out.reasoning;
    content += out.content;
    for (std::string& e : pieces.feed(bytes.substr(at, step))) events.push_back(std::move(e));
  }
  const auto end = cut.flush();
  require(reasoning + end.reasoning == a.reasoning + a_end.reasoning, "reasoning is the same in pieces");
  require(content + end.content == a.content + a_end.content, "content is the same in pieces");
  require(events == all.feed(bytes), "events are the same in pieces");
}

}  // namespace
}  // namespace quire::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t step = 1 + data[0] % 64;
  quire::server::require(quire::server::read_all(bytes, bytes.size() + 1) == quire::server::read_all(bytes, step),
                         "requests are the same in pieces");
  quire::server::read_streams(bytes, step);
  return 0;
}
