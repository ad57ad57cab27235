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
#include "server/origin_policy.h"
#include "server/responder.h"
#include "server/service.h"

namespace quire::server {

struct ApiOptions {
  KeyRing keys;
  bool metrics_without_key = false;
  OriginPolicy origins;
  JsonLimits json;
  std::chrono::milliseconds request_timeout{0};  // for one answer; 0: no limit
  bool split_reasoning = true;
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

  struct Route;
  // What admit() found out.
  struct Admission {
    const Route* route = nullptr;
    int key = 0;             // number of the API key; 0: none was needed
    bool probe = false;      // asks how the server is
    bool reads_body = true;  // GET and HEAD have none: what a client sends as one is not read
  };
  const OriginPolicy& origins() const { return options_.origins; }
  // Judges a request by its headers, before its body is read: 401, 403, 404, 405, 411, 415, or 503 where its route is
  // not served now. `head` is a request without its body. Any thread.
  ApiResult<Admission> admit(const HttpRequest& head) const;
  // Answers a request that was admitted, now or later. On the connection's executor.
  void handle(HttpRequest request, const Admission& admitted, const std::shared_ptr<Responder>& responder);

  // The template of the route that a path belongs to, for labels of metrics and for logs; "other" if there is none.
  static std::string route_name(const std::string& path);

 private:
  struct Loaded {
    std::shared_ptr<const ModelContext> model;
    std::shared_ptr<Service> service;
  };
  struct Call {
    HttpRequest request;
    std::shared_ptr<Responder> responder;
    Loaded loaded;  // empty for routes that need no model
  };
  using Handler = ApiStatus (Api::*)(const Call& call);
  static const Route kRoutes[];
  static const Route* find_route(const std::string& sent);
  static ApiError unknown_path(const std::string& path);
  static std::string methods_of(const std::string& path);

  ApiResult<int> check_key(const HttpRequest& head, const Route* route) const;
  ApiStatus check_state(const Route& route) const;
  ApiStatus call(const Route& route, Call call);
  Loaded loaded() const;
  ApiResult<Json> body(const HttpRequest& request) const;
  static void answer(const Call& call, const Json& value);
  // Tells the client, in a header of the answer, and the metrics which fields of a request had no effect.
  void report(const Call& call, const IgnoredFields& ignored);

  ApiStatus health(const Call& call);
  ApiStatus metrics(const Call& call);
  ApiStatus version(const Call& call);
  ApiStatus models(const Call& call);
  ApiStatus model(const Call& call);
  ApiStatus props(const Call& call);
  ApiStatus load(const Call& call);
  ApiStatus loads(const Call& call);
  ApiStatus server_info(const Call& call);
  ApiStatus model_info(const Call& call);
  ApiStatus tokenize(const Call& call);
  ApiStatus detokenize(const Call& call);
  ApiStatus chat(const Call& call);
  ApiStatus complete(const Call& call);
  ApiStatus embeddings(const Call& call);

  // Who shares computed prompts: requests with the same API key and the same cache_salt.
  std::string salt_of(const Call& call, const std::string& cache_salt) const;
  // Who shares places and the queue with others (Job): with several API keys, each one.
  uint64_t client_of(const Call& call) const;

  struct Prepared;  // jobs, and what is common to both kinds of generation
  void start(const Call& call, Prepared prepared);

  ApiOptions options_;
  Registry& registry_;
  std::atomic<State> state_{State::kLoading};
  mutable std::mutex mutex_;
  Loaded loaded_;
};

}  // namespace quire::server
