#include "server/api.h"

#include "gguf/metadata.h"

namespace quire::server {

// A path has one row per method.
const Api::Route Api::kRoutes[] = {
    // method, path, open, needs_model, generates
    {"GET", "/health", true, false, false, &Api::health},
    {"GET", "/metrics", false, false, false, &Api::metrics},
    {"GET", "/version", false, false, false, &Api::version},
    {"GET", "/props", false, true, false, &Api::props},
    {"GET", "/v1/models", false, true, false, &Api::models},
    {"GET", "/v1/models/", false, true, false, &Api::model},
    {"POST", "/tokenize", false, true, false, &Api::tokenize},
    {"POST", "/detokenize", false, true, false, &Api::detokenize},
    {"POST", "/v1/chat/completions", false, true, true, &Api::chat},
    {"POST", "/v1/completions", false, true, true, &Api::complete},
    {"POST", "/v1/embeddings", false, true, true, &Api::embeddings},
};

Api::Api(ApiOptions options, Registry& registry) : options_(std::move(options)), registry_(registry) {}

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

const Api::Route* Api::find_route(const std::string& path) {
  for (const Route& r : kRoutes) {
    const std::string_view p = r.path;
    if (path == p || (p.ends_with('/') && path.size() > p.size() && path.starts_with(p))) return &r;
  }
  return nullptr;
}

std::string Api::route_name(const std::string& path) {
  const Route* r = find_route(path);
  return r == nullptr ? "other" : r->path;
}

std::string Api::methods_of(const std::string& path) {
  const Route* r = find_route(path);
  return std::string_view(r->method) == "GET" ? "GET, HEAD" : r->method;
}

ApiResult<const Api::Route*> Api::admit(const HttpRequest& request, Responder& responder) const {
  const Route* route = find_route(request.path);
  if ((route == nullptr || !route->open) && !options_.keys.empty()) {
    const std::string_view given = request.header("authorization");
    const int key = options_.keys.find(given);
    if (key == 0)
      return ApiError{401,
                      given.empty() ? "no API key was given; send it as 'Authorization: Bearer KEY'"
                                    : "the API key is not valid",
                      "", "invalid_api_key"};
    responder.record().key = key;
  }
  if (route == nullptr)
    return ApiError{404, fmt::format("there is no {}", gguf::printable(request.path)), "", "unknown_url"};
  const bool head = request.method == "HEAD" && std::string_view(route->method) == "GET";
  if (request.method != route->method && !head)
    return ApiError{
        .status = 405,
        .message = fmt::format("{} does not take {}", route->path, gguf::printable(request.method)),
        .allow = methods_of(request.path)};
  return route;
}

ApiStatus Api::call(const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
  QUIRE_TRY(const Route* const route, admit(request, *responder));
  const State state = state_;
  if (route->needs_model && state == State::kLoading)
    return ApiError{
        .status = 503, .message = "the model is being loaded", .code = "loading", .retry_after = 2};
  if (route->generates && state == State::kDraining)
    return ApiError{
        .status = 503, .message = "the server is shutting down", .code = "shutting_down", .retry_after = 5};
  Call c{request, responder, {}};
  if (route->needs_model) {
    c.loaded = loaded();
    if (c.loaded.model == nullptr) return ApiError{503, "the server is shutting down", "", "shutting_down"};
    responder->record().model = c.loaded.model->name();
  }
  return (this->*route->handler)(c);
}

void Api::handle(const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
  if (ApiStatus s = call(request, responder); !s.ok()) responder->send(s.error());
}

ApiResult<Json> Api::body(const HttpRequest& request) const {
  std::string type(request.header("content-type"));
  type = type.substr(0, type.find(';'));
  while (type.ends_with(' ')) type.pop_back();
  for (char& c : type) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (!type.empty() && type != "application/json")
    return ApiError{415,
                    fmt::format("the Content-Type is {}; it must be application/json", gguf::printable(type)),
                    "", ""};
  return parse_json_object(request.body, options_.json);
}

void Api::answer(const Call& call, const Json& value) {
  call.responder->send(HttpResponse{.body = dump(value)});
}

}  // namespace quire::server
