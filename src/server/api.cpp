#include "server/api.h"

#include <algorithm>
#include <cctype>

#include "gguf/metadata.h"
#include "server/answer_constraint.h"
#include "server/media/media_fetcher.h"
#include "server/paths.h"

namespace quire::server {
namespace {

// What known clients send that nothing here reads: the label of a metric must not be whatever somebody writes.
constexpr std::string_view kOftenIgnored[] = {"chat_id",       "files",
                                              "functions",     "include_reasoning",
                                              "keep_alive",    "lora_path",
                                              "mirostat",      "mirostat_eta",
                                              "mirostat_tau",  "num_batch",
                                              "num_ctx",       "num_gpu",
                                              "num_keep",      "num_predict",
                                              "num_thread",    "options",
                                              "prediction",    "reasoning_effort",
                                              "repeat_last_n", "return_hidden_states",
                                              "rid",           "service_tier",
                                              "session_id",    "session_params",
                                              "store",         "stream_reasoning",
                                              "tfs_z",         "think",
                                              "tools",         "use_mlock",
                                              "use_mmap",      "guided_decoding_backend",
                                              "verbosity",     "web_search_options"};

}  // namespace

std::span<const Api::Route> Api::routes() {
  static const std::vector<Route> kAll = [] {
    std::vector<Route> all;
    for (const std::span<const Route> some : {info_routes(), router_routes(), text_routes(), embedding_routes(),
                                              score_routes(), responses_routes(), anthropic_routes(), ollama_routes()})
      for (const Route& r : some) all.push_back(r);
    return all;
  }();
  return kAll;
}

Api::Api(ApiOptions options, Registry& registry)
    : options_(std::move(options)),
      response_store_(options_.responses, registry),
      registry_(registry),
      pool_(options_.pool, registry),
      media_(std::make_unique<MediaFetcher>(options_.media, registry)) {}

Api::~Api() {
  forget();
}

void Api::serve(std::shared_ptr<const ModelContext> model, std::shared_ptr<Service> service) {
  {
    const std::lock_guard lock(mutex_);
    loaded_ = {std::move(model), std::move(service)};
  }
  State loading = State::kLoading;
  state_.compare_exchange_strong(loading, State::kReady);  // draining stays draining
}

void Api::drain() {
  state_ = State::kDraining;
}

void Api::forget() {
  drain();
  if (const Loaded now = loaded(); now.model) now.model->grammars().stop();  // tasks may wait for it
  media_->stop();
  pool_.stop();
  Loaded last;
  {
    const std::lock_guard lock(mutex_);
    std::swap(last, loaded_);
  }
  if (last.service) last.service->stop();
}

Api::Loaded Api::loaded() const {
  const std::lock_guard lock(mutex_);
  return loaded_;
}

const Api::Route* Api::find_route(const std::string& sent, std::string_view method) {
  const std::string path = canonical_path(sent);
  const Route* other = nullptr;
  for (const Route& r : routes()) {
    const std::string_view p = r.path;
    if (path != p && !(p.size() > 1 && p.ends_with('/') && path.size() > p.size() && path.starts_with(p))) continue;
    if (r.method == method || (method == "HEAD" && std::string_view(r.method) == "GET")) return &r;
    if (other == nullptr) other = &r;
  }
  return other;
}

std::string Api::route_name(const std::string& path) {
  const Route* r = find_route(path);
  return r == nullptr ? "other" : r->path;
}

namespace {

// How many parts two paths begin with alike.
size_t same_parts(std::string_view a, std::string_view b) {
  size_t parts = 0;
  for (size_t i = 1; i <= std::min(a.size(), b.size()); ++i) {
    const bool ends = (i == a.size() || a[i] == '/') && (i == b.size() || b[i] == '/');
    if (ends && a.substr(0, i) == b.substr(0, i)) ++parts;
  }
  return parts;
}

}  // namespace

// Of a path that there is none of: the API of the route that it begins like, or that a part of it begins like.
ErrorShape Api::error_shape(const std::string& path) {
  if (const Route* const route = find_route(path)) return route->api.errors;
  constexpr size_t kMostCompared = 128;
  const std::string p = canonical_path(path);
  ErrorShape shape = ErrorShape::kOpenAi;
  if (p.size() > kMostCompared) return shape;
  size_t most = 1;
  for (size_t slash = p.find('/'); slash != std::string::npos; slash = p.find('/', slash + 1)) {
    const std::string tail = canonical_path(p.substr(slash));
    const auto parts = [&](const Route& r) { return same_parts(tail, r.path); };
    const auto near = std::ranges::max_element(routes(), {}, parts);
    if (parts(*near) < most) continue;
    most = parts(*near);
    shape = near->api.errors;
  }
  return shape;
}

std::string Api::methods_of(const std::string& path) {
  const std::string_view found = find_route(path)->path;
  std::string all;
  for (const Route& r : routes()) {
    if (r.path != found) continue;
    all += (all.empty() ? "" : ", ") + std::string(std::string_view(r.method) == "GET" ? "GET, HEAD" : r.method);
  }
  return all;
}

// OpenAI's clients send Authorization, Anthropic's and some proxies X-Api-Key.
ApiResult<int> Api::check_key(const HttpRequest& head, const Route* route) const {
  const auto refused = [](std::string_view why) { return ApiError{401, std::string(why), "", "invalid_api_key"}; };
  if (options_.keys.empty()) return 0;
  if (route != nullptr && route->access == Route::kOpen) return 0;
  if (route != nullptr && route->access == Route::kMetrics && options_.metrics_without_key) return 0;
  const std::string_view authorization = head.header("authorization"), other = head.header("x-api-key");
  const std::string_view bearer = KeyRing::bearer(authorization);
  if (authorization.empty() && other.empty())
    return refused("no API key was given; send it as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'");
  if (!bearer.empty() && !other.empty() && !KeyRing::same(bearer, other))
    return refused("Authorization and X-Api-Key have different keys; send one of them");
  if (bearer.empty() && other.empty())
    return refused("the Authorization header has no API key; send it as 'Authorization: Bearer KEY'");
  if (const int key = options_.keys.find(bearer.empty() ? other : bearer); key != 0) return key;
  return refused("the API key is not valid");
}

ApiError Api::unknown_path(const std::string& path) {
  std::vector<std::string_view> candidates;
  for (const Route& r : routes())
    if (!std::string_view(r.path).ends_with('/')) candidates.emplace_back(r.path);
  const std::string near =
      nearest_path(path, candidates, [](const std::string& p) { return find_route(p) != nullptr; });
  return {404,
          fmt::format("there is no {}{}", gguf::printable(path),
                      near.empty() ? "" : "; did you mean " + gguf::printable(near) + "?"),
          "", "unknown_url"};
}

ApiStatus Api::check_state(const Route& route) const {
  const State state = state_;
  if (route.has(Route::kModel) && state == State::kLoading)
    return ApiError{.status = 503, .message = "the model is being loaded", .code = "loading", .retry_after = 2};
  if (route.has(Route::kGenerates) && state == State::kDraining)
    return ApiError{.status = 503, .message = "the server is shutting down", .code = "shutting_down", .retry_after = 5};
  return {};
}

namespace {

// What is read of a body is JSON, whatever type its sender names: programs name that of forms, of plain text, of any
// bytes, or none. Pages in browsers do so without asking first, but for JSON's own type; `guarded`: none is no type for
// them either, because the page may be a stranger's.
ApiStatus check_type(const HttpRequest& head, bool guarded) {
  const auto lower = [](std::string_view header) {
    std::string text(header);
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text;
  };
  const std::string encoding = lower(head.header("content-encoding"));
  if (!encoding.empty() && encoding != "identity")
    return ApiError{415, "bodies with a Content-Encoding are not read", "", ""};
  if (!comes_from_page(head)) return {};
  std::string type = lower(head.header("content-type"));
  type = type.substr(0, type.find(';'));
  while (type.ends_with(' ')) type.pop_back();
  if (type.empty() && guarded) return ApiError{415, "the Content-Type is missing; it must be application/json", "", ""};
  if (!type.empty() && type != "application/json")
    return ApiError{415, fmt::format("the Content-Type is {}; it must be application/json", gguf::printable(type)), "",
                    ""};
  return {};
}

}  // namespace

// The page and the key come first: whoever has no right to ask learns nothing else.
ApiResult<Api::Admission> Api::admit(const HttpRequest& head) const {
  const Route* const route = find_route(head.path, head.method);
  QUIRE_CHECKED(options_.origins.judge(head));
  QUIRE_TRY(const int key, check_key(head, route));
  if (route == nullptr) return unknown_path(head.path);
  const bool get = std::string_view(route->method) == "GET", reads_body = std::string_view(route->method) == "POST";
  if (head.method != route->method && !(get && head.method == "HEAD"))
    return ApiError{.status = 405,
                    .message = fmt::format("{} does not take {}", route->path, gguf::printable(head.method)),
                    .allow = methods_of(head.path)};
  if (reads_body) {
    if (!head.content_length && !head.chunked)
      return ApiError{411, "the body's length is missing; send Content-Length, or the body in chunks", "", ""};
    QUIRE_CHECKED(check_type(head, options_.origins.guards_types()));
  }
  QUIRE_CHECKED(check_state(*route));
  return Admission{.route = route, .key = key, .reads_body = reads_body};
}

void Api::handle(HttpRequest request, const Admission& admitted, const std::shared_ptr<Responder>& responder) {
  const Route& route = *admitted.route;
  Call call{std::move(request), responder, {}, nullptr, std::chrono::steady_clock::now(), 0, {}};
  const ApiStatus done = [&]() -> ApiStatus {
    QUIRE_CHECKED(check_state(route));  // it may have changed while the body came
    if (route.has(Route::kModel)) {
      call.loaded = loaded();
      if (call.loaded.model == nullptr) return ApiError{503, "the server is shutting down", "", "shutting_down"};
      responder->record().model = call.loaded.model->name();
    }
    if (!admitted.reads_body) return route.handler(*this, call);
    const size_t bytes = call.request.body.size();
    if (route.has(Route::kGenerates)) count_request(route.api.name);
    return enqueue(std::move(call), bytes, [this, &route](Call& c) { return route.handler(*this, c); });
  }();
  if (!done.ok()) responder->send(done.error());
}

void Api::handle_direct(size_t bytes, DirectHandler handler, const std::shared_ptr<Responder>& responder) {
  Call call{{}, responder, loaded(), nullptr, std::chrono::steady_clock::now(), 0, {}};
  if (state_ != State::kReady || call.loaded.model == nullptr)
    return responder->send(ApiError{503, "the model is being loaded, or given up", "", "unavailable"});
  responder->record().model = call.loaded.model->name();
  count_request("localai");
  const ApiStatus queued = enqueue(std::move(call), bytes, [this, handler = std::move(handler)](Call& c) {
    Direct direct(*this, c);
    return handler(direct);
  });
  if (!queued.ok()) responder->send(queued.error());
}

void Api::count_request(const char* api) {
  registry_
      .counter("quire:requests_total", "Requests for answers, embeddings and scores, by whose API they speak.",
               {{"api", api}})
      .add();
}

// The task alone holds the request: when it has run, or was dropped, the body's memory is free.
ApiStatus Api::enqueue(Call call, size_t bytes, CallHandler handler) {
  call.ticket = std::make_shared<RequestPool::Ticket>();
  call.bytes = bytes;
  give_up_where_nobody_waits(call);
  RequestPool::Task task{.client = pool_client_of(call), .bytes = bytes, .ticket = call.ticket};
  task.refuse = [responder = call.responder](const ApiError& error) { answer(responder, error); };
  task.run = [handler = std::move(handler), shared = std::make_shared<Call>(std::move(call))] {
    const ApiStatus done = handler(*shared);
    if (!done.ok()) refuse(*shared, done.error());
  };
  return pool_.submit(std::move(task));
}

void Api::refuse(const Call& call, const ApiError& error) {
  if (!call.tell || !call.tell(error)) answer(call.responder, error);
}

// Until whoever answers the request says what else is to be done then.
void Api::give_up_where_nobody_waits(const Call& call) {
  const auto over = [this, ticket = call.ticket,
                     weak = std::weak_ptr(call.responder)](const char* why) -> std::shared_ptr<Responder> {
    pool_.cancel(ticket);
    std::shared_ptr<Responder> responder = weak.lock();
    if (responder) responder->record().finish = why;
    return responder;
  };
  call.responder->on_disconnect([over] { over("disconnected"); });
  if (options_.request_timeout.count() <= 0) return;
  call.responder->on_deadline(options_.request_timeout, [over] {
    if (const auto responder = over("deadline_exceeded")) responder->send(deadline_exceeded());
  });
}

std::chrono::milliseconds Api::time_left(const Call& call) const {
  using std::chrono::milliseconds;
  if (options_.request_timeout.count() <= 0) return milliseconds(0);
  const auto gone = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - call.arrived);
  return std::max(options_.request_timeout - gone, milliseconds(1));
}

std::string Api::pool_client_of(const Call& call) const {
  const RequestRecord& r = call.responder->record();
  return options_.keys.size() > 1 ? fmt::format("key {}", r.key) : r.peer;
}

GrammarAsker Api::asker_of(const Call& call) const {
  return {.client = pool_client_of(call), .gone = [ticket = call.ticket] { return ticket->cancelled(); }};
}

ApiResult<JsonDocument> Api::body(Call& call) const {
  ApiResult<JsonDocument> document = parse_json_object(call.request.body, options_.json);
  call.request.drop_body();
  if (call.ticket->cancelled())  // while it was read: nobody hears this
    return ApiError{503, "nobody waits for the answer", "", ""};
  return document;
}

// After a request that may have had one compiled.
void Api::count_grammars(const ModelContext& model) {
  const std::lock_guard lock(grammars_mutex_);
  const GrammarCacheStats now = model.grammars().stats();
  GrammarCacheStats& before = counted_grammars_;
  const auto count = [&](const char* name, const char* help, double x) {
    if (x > 0) registry_.counter(name, help, {}).add(x);
  };
  count("quire:grammars_compiled_total", "Schemas and grammars that were compiled.",
        static_cast<double>(now.compiled - before.compiled));
  count("quire:grammars_refused_total", "Schemas and grammars that could not be compiled, or took too much.",
        static_cast<double>(now.refused - before.refused));
  count("quire:grammar_cache_hits_total", "Requests whose schema or grammar was compiled before.",
        static_cast<double>(now.hits - before.hits));
  count("quire:grammar_compile_seconds_total", "Time to compile schemas and grammars.",
        now.compile_seconds - before.compile_seconds);
  before = now;
  registry_.gauge("quire:grammar_cache_bytes", "Compiled grammars that are kept.", {})
      .set(static_cast<double>(now.bytes));
}

size_t Api::held_picture_bytes() const {
  const Loaded now = loaded();
  return now.model != nullptr && now.model->pictures() != nullptr ? now.model->pictures()->held_bytes() : 0;
}

ApiResult<std::shared_ptr<const PromptImages>> Api::decode_pictures(const Call& call,
                                                                    std::span<const PlacedPicture> pictures) {
  if (pictures.empty()) return std::shared_ptr<const PromptImages>();
  size_t found = 0;
  auto decoded = call.loaded.model->pictures()->decode(
      pictures, [&] { return call.ticket->cancelled(); }, &found);
  registry_.counter("vllm:mm_cache_queries_total", "Pictures of requests.", {})
      .add(static_cast<double>(pictures.size()));
  registry_.counter("vllm:mm_cache_hits_total", "Pictures of requests that were decoded before.", {})
      .add(static_cast<double>(found));
  return decoded;
}

// Notes hold names that clients chose: in a header they are printable ASCII, and not many bytes.
void Api::report_constraint(const Call& call, const AnswerConstraint& constraint) {
  if (constraint.constraint != nullptr)
    registry_
        .counter("quire:constrained_requests_total", "Requests whose answers are constrained, by what they must be.",
                 {{"constraint", constraint.kind}})
        .add();
  const std::vector<std::string>& notes = constraint.unenforced;
  if (notes.empty()) return;
  constexpr size_t kMostBytes = 1024;
  std::string header;
  for (const std::string& note : notes) {
    if (!header.empty()) header += "; ";
    for (const char c : note) header += c >= 0x20 && c < 0x7f ? c : '?';
    if (header.size() > kMostBytes) break;
  }
  if (header.size() > kMostBytes) header = header.substr(0, kMostBytes) + "...";
  call.responder->post([responder = call.responder, header = std::move(header)]() mutable {
    responder->record().unenforced = std::move(header);
  });
  registry_.counter("quire:unenforced_schemas_total", "Requests with a schema of which a part was not enforced.", {})
      .add(1);
}

void Api::report_left_out(const Call& call, const IgnoredFields& ignored) {
  if (ignored.left_out_count == 0) return;
  call.responder->post([responder = call.responder, header = ignored.left_out_header()]() mutable {
    responder->record().left_out = std::move(header);
  });
  for (const auto& [kind, count] : ignored.left_out_kinds)
    registry_
        .counter("quire:left_out_total", "Parts of messages in whose place words stand, because they are no text.",
                 {{"kind", kind}})
        .add(static_cast<double>(count));
}

void Api::report(const Call& call, const IgnoredFields& ignored) {
  report_left_out(call, ignored);
  if (ignored.count == 0) return;
  call.responder->post([responder = call.responder, header = ignored.header()]() mutable {
    responder->record().ignored = std::move(header);
  });
  const auto count = [&](std::string_view parameter, size_t times) {
    registry_
        .counter("quire:ignored_parameters_total",
                 "Fields of requests that had no effect, by name where they are common.",
                 {{"parameter", std::string(parameter)}})
        .add(static_cast<double>(times));
  };
  size_t others = ignored.count;
  for (const std::string& name : ignored.names) {
    if (std::find(std::begin(kOftenIgnored), std::end(kOftenIgnored), name) == std::end(kOftenIgnored)) continue;
    count(name, 1);
    --others;
  }
  if (others > 0) count("other", others);
}

void Api::answer(const std::shared_ptr<Responder>& to, HttpResponse response) {
  to->post([to, response = std::move(response)]() mutable { to->send(std::move(response)); });
}

void Api::answer(const std::shared_ptr<Responder>& to, const ApiError& error) {
  to->post([to, error] { to->send(error); });
}

void Api::answer(const Call& call, HttpResponse response) {
  if (call.ticket == nullptr) return call.responder->send(std::move(response));  // on its executor
  answer(call.responder, std::move(response));
}

}  // namespace quire::server
