// The routes: from a parsed HTTP request to an answer. Knows no sockets and no engine, only Responder and Service.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/auth.h"
#include "server/metrics.h"
#include "server/model_context.h"
#include "server/responder.h"
#include "server/service.h"

namespace quire::server {

struct ApiOptions {
  KeyRing keys;
  JsonLimits json;
  std::chrono::milliseconds request_timeout{0};  // for one answer; 0: no limit
  bool split_reasoning = true;
  size_t max_sequences = 0;  // shown by /props
};

class Api {
 public:
  enum class State { kLoading, kReady, kDraining };

  // `registry` must outlive this.
  Api(ApiOptions options, Registry& registry);
  ~Api();  // forget()
  Api(const Api&) = delete;

  // The model is loaded: requests are served from now on. Any thread.
  void serve(std::shared_ptr<const ModelContext> model, std::shared_ptr<Service> service);
  // No further generations are accepted. Any thread.
  void drain();
  // Stops the service and lets go of the model: requests in progress are told so, new ones are refused.
  void forget();
  State state() const { return state_.load(); }

  // Answers a request, now or later. On the connection's executor.
  void handle(const HttpRequest& request, const std::shared_ptr<Responder>& responder);

  // The template of the route that a path belongs to, for labels of metrics and for logs; "other" if there is none.
  static std::string route_name(const std::string& path);

 private:
  struct Loaded {
    std::shared_ptr<const ModelContext> model;
    std::shared_ptr<Service> service;
  };
  struct Call {
    const HttpRequest& request;
    const std::shared_ptr<Responder>& responder;
    Loaded loaded;  // empty for routes that need no model
  };
  using Handler = ApiStatus (Api::*)(const Call& call);
  struct Route {
    const char* method;
    const char* path;  // one that ends in '/' stands for everything below it
    bool open;         // needs no key
    bool needs_model;
    bool generates;  // makes the engine work: refused while draining
    Handler handler;
  };
  static const Route kRoutes[];
  static const Route* find_route(const std::string& path);
  static std::string methods_of(const std::string& path);

  ApiResult<const Route*> admit(const HttpRequest& request, Responder& responder) const;
  ApiStatus call(const HttpRequest& request, const std::shared_ptr<Responder>& responder);
  Loaded loaded() const;
  // The body as JSON; 415 if it is declared as something else.
  ApiResult<Json> body(const HttpRequest& request) const;
  static void answer(const Call& call, const Json& value);

  ApiStatus health(const Call& call);
  ApiStatus metrics(const Call& call);
  ApiStatus version(const Call& call);
  ApiStatus models(const Call& call);
  ApiStatus model(const Call& call);
  ApiStatus props(const Call& call);
  ApiStatus tokenize(const Call& call);
  ApiStatus detokenize(const Call& call);
  ApiStatus chat(const Call& call);
  ApiStatus complete(const Call& call);
  ApiStatus embeddings(const Call& call);

  // Who shares computed prompts: requests with the same API key and the same cache_salt.
  std::string salt_of(const Call& call, const std::string& cache_salt) const;

  struct Prepared;  // jobs, and what is common to both kinds of generation
  void start(const Call& call, Prepared prepared);

  ApiOptions options_;
  Registry& registry_;
  std::atomic<State> state_{State::kLoading};
  mutable std::mutex mutex_;
  Loaded loaded_;
};

}  // namespace quire::server
