// Any text as the body of each route: parsed within its limits, and what is accepted keeps the limits. Also as a trace,
// a URL and a length of bench-serve.
//   build/fuzz/fuzz_chat_request -max_total_time=600 -rss_limit_mb=2048 tests/fuzz/corpus/chat_request
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "lab/load/url.h"
#include "lab/load/workload.h"
#include "server/protocol/anthropic_request.h"
#include "server/protocol/chat_request.h"
#include "server/protocol/embedding_request.h"
#include "server/protocol/ollama_request.h"
#include "server/protocol/responses_request.h"

namespace quire::server {
namespace {

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

template <class T>
bool accepted(const ApiResult<T>& r) {
  if (r.ok()) return true;
  require(r.error().status == 400 || r.error().status == 413, "a bad body is the client's fault");
  require(!r.error().message.empty() && r.error().message.size() < 4096, "an error has a message of bounded size");
  require(Json::accept(r.error().body(ErrorShape::kOpenAi)), "an error's body is JSON");
  return false;
}

RequestLimits limits(bool images) {
  RequestLimits l;
  l.vocab = 1000;
  l.context = 256;
  l.template_tools = true;
  l.max_tools = 4;
  l.images = images;
  l.max_images = 3;
  static const MediaPolicy media = *MediaPolicy::create({"example.org"}, "/usr");
  if (images) l.media = media;
  return l;
}

void check_params(const GenerationParams& p, const RequestLimits& l) {
  require(p.n >= 1 && p.n <= l.max_n, "n is limited");
  require(!p.max_tokens || *p.max_tokens >= 0, "max_tokens is not negative");
  require(p.request.min_tokens >= 0 && p.request.min_tokens <= p.max_tokens.value_or(p.request.min_tokens),
          "min_tokens is in reach");
  require(p.request.sampling.validate(l.vocab).ok(), "what is sampled by is in range");
  require(p.request.sampling.logprobs >= -1 && p.request.sampling.logprobs <= l.max_logprobs, "logprobs are limited");
  require(p.prompt_logprobs >= -1 && p.prompt_logprobs <= l.max_logprobs, "the prompt's are, too");
  require(p.prompt_logprobs < 0 || !p.stream, "and told whole");
  require(p.request.stop.size() <= static_cast<size_t>(l.max_stops), "stops are limited");
}

void check_conversation(const Conversation& c) {
  require(c.messages->is_array() && !c.messages->empty(), "messages are there");
  for (const Json& m : *c.messages) {
    require(m.at("role").is_string(), "a role is a string");
    require(!m.contains("content") || m["content"].is_string() || m["content"].is_null(), "a content is a string");
  }
  require(c.pictures.files.size() <= 3 && c.pictures.word.empty() == c.pictures.files.empty(), "pictures are limited");
  for (const PicturePtr& p : c.pictures.files)
    require(p->bytes.empty() != p->url.empty(), "a picture is here or somewhere else");
  require(c.marks.size() <= kMaxCacheMarks, "marks are limited");
  for (const CacheMark& m : c.marks)
    require(m.offset <= c.messages->at(m.message).at("content").get_ref<const std::string&>().size(),
            "a mark is in its content");
}

void check_prompts(const std::vector<Prompt>& prompts, int most, const RequestLimits& l) {
  require(!prompts.empty() && prompts.size() <= static_cast<size_t>(most), "prompts are limited");
  for (const Prompt& p : prompts)
    if (const auto* tokens = std::get_if<1>(&p))
      for (const TokenId t : *tokens) require(t >= 0 && t < l.vocab, "tokens are in the vocabulary");
}

void check_ignored(const IgnoredFields& ignored) {
  require(ignored.names.size() <= IgnoredFields::kMostNames && ignored.names.size() <= ignored.count,
          "so many names are kept");
  require(ignored.left_out_kinds.size() <= 6, "what is left out is of few kinds");
  for (const auto& [header, count] :
       {std::pair(ignored.header(), ignored.count), std::pair(ignored.left_out_header(), ignored.left_out_count)}) {
    require(header.empty() == (count == 0), "a header says that fields were ignored");
    require(header.size() <= 8192, "a header is of bounded size");
    for (const char c : header) require(c >= 0x20 && c < 0x7f, "a header is plain text");
  }
}

void check_chat(const ChatRequest& r, const RequestLimits& l) {
  check_params(r.params, l);
  check_conversation(r.conversation);
  check_ignored(r.ignored);
  require(r.conversation.tools->is_null() == (r.tools == nullptr),
          "the template is told of the tools that are looked for");
  require(r.tools == nullptr || (!r.tools->empty() && r.tools->size() <= l.max_tools), "tools are limited");
}

// Other APIs have one answer to a request, and tell nothing of its prompt.
void check_one(const ChatRequest& r, const RequestLimits& l) {
  check_chat(r, l);
  require(r.params.n == 1 && r.params.prompt_logprobs < 0, "there is one answer");
}

// All but Ollama's and Responses tell no log-probabilities.
void check_only(const ChatRequest& r, const RequestLimits& l) {
  check_one(r, l);
  require(r.params.request.sampling.logprobs < 0, "there are no log-probabilities");
}

void read_other_apis(const Json& body, const RequestLimits& l) {
  for (const bool counts : {false, true})
    if (const auto r = parse_anthropic_request(body, l, counts); accepted(r)) check_only(*r, l);
  if (const auto r = parse_responses_request(body, l); accepted(r)) check_one(r->chat, l);
  if (const auto r = parse_ollama_chat(body, l); accepted(r))
    if (const auto* const chat = std::get_if<ChatRequest>(&*r)) check_one(*chat, l);
  if (const auto r = parse_ollama_generate(body, l); accepted(r))
    if (const auto* const chat = std::get_if<ChatRequest>(&*r)) check_one(*chat, l);
  accepted(parse_ollama_show(body, l));
  accepted(parse_ollama_pull(body, l));
  accepted(parse_ollama_embed(body, l));
  accepted(parse_ollama_embedding(body, l));
}

void read_bodies(const Json& body, bool images) {
  const RequestLimits l = limits(images);
  if (const auto r = parse_chat_request(body, l); accepted(r)) check_chat(*r, l);
  read_other_apis(body, l);
  if (const auto r = parse_completion_request(body, l); accepted(r)) {
    check_params(r->params, l);
    check_prompts(r->prompts, l.max_prompts, l);
    check_ignored(r->ignored);
    for (const int64_t at : r->cache_positions) require(at >= 1 && at <= l.context, "a position is in a prompt");
  }
  if (const auto r = parse_embedding_request(body, l); accepted(r)) {
    check_prompts(r->inputs, l.max_inputs, l);
    check_ignored(r->ignored);
    require(!r->dimensions || *r->dimensions > 0, "a vector has dimensions");
  }
  accepted(parse_tokenize_request(body, l));
  accepted(parse_detokenize_request(body, l));
}

}  // namespace
}  // namespace quire::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire::server;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const JsonLimits limits{.max_bytes = 65536, .max_depth = 16, .max_values = 10000};
  const auto body = parse_json_object(text, limits);
  if (accepted(body)) {
    require(Json::accept(text), "what is read is JSON");
    for (const bool images : {false, true}) read_bodies(**body, images);
    require(Json::parse(dump(**body)) == **body, "what is written reads back the same");
  }
  (void)quire::cli::load::Url::parse(text.substr(0, 300));
  (void)quire::cli::load::LengthSpec::parse(text.substr(0, 100));
  if (size < 2000) (void)quire::cli::load::parse_trace(text, {.prompt_tokens = {.a = 3}, .output_tokens = {.a = 3}});
  return 0;
}
