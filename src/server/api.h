// The routes: from a parsed HTTP request to an answer. Knows no sockets and no engine, only Responder and Service.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "server/auth.h"
#include "server/embedding_answer.h"
#include "server/media/media_options.h"
#include "server/metrics.h"
#include "server/model_context.h"
#include "server/origin_policy.h"
#include "server/request_pool.h"
#include "server/responder.h"
#include "server/response_store.h"
#include "server/service.h"

namespace quire::server {

class AnswerWriter;
class MediaFetcher;
struct AnswerConstraint;
struct GenerationPlan;
struct EmbeddingRequest;

struct ApiOptions {
  KeyRing keys;
  bool metrics_without_key = false;
  OriginPolicy origins;
  JsonLimits json;
  std::chrono::milliseconds request_timeout{0};  // for one answer; 0: no limit
  bool split_reasoning = true;
  bool page = true;  // a chat at "/", for browsers
  RequestPoolOptions pool;
  ResponseStoreOptions responses;  // of /v1/responses
  MediaOptions media;              // how pictures are fetched; from where, the limits of the model say
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
  // Stops the service and lets go of the model: requests in progress are told so, new ones are refused. Waits for what
  // the pool's threads are at.
  void forget();
  State state() const { return state_.load(); }
  // Of decoded pictures, of the model that is served. Any thread.
  size_t held_picture_bytes() const;

  struct Route;
  // Of all files.
  static std::span<const Route> routes();

  // What admit() found out.
  struct Admission {
    const Route* route = nullptr;
    int key = 0;             // number of the API key; 0: none was needed
    bool reads_body = true;  // others than POST have none: what a client sends as one is not read
  };
  const OriginPolicy& origins() const { return options_.origins; }
  // Judges a request by its headers, before its body is read: 401, 403, 404, 405, 411, 415, or 503 where its route is
  // not served now. `head` is a request without its body. Any thread.
  ApiResult<Admission> admit(const HttpRequest& head) const;
  // Answers a request that was admitted, later: one with a body is read, and what it asks for prepared, on a thread of
  // the pool. On the connection's executor, which this never holds up.
  void handle(HttpRequest request, const Admission& admitted, const std::shared_ptr<Responder>& responder);

  // What makes the writer of answers, when the jobs are known. For texts that are gone on with it also gets what stands
  // before each answer, or nothing.
  using MakeWriter =
      std::function<std::unique_ptr<AnswerWriter>(const GenerationPlan& plan, const GenerationParams& params)>;
  using MakeTextWriter = std::function<std::unique_ptr<AnswerWriter>(
      const GenerationPlan& plan, const GenerationParams& params, std::vector<std::string> echoes)>;

  class Direct;
  using DirectHandler = std::function<ApiStatus(Direct& call)>;
  // A request that came another way than over HTTP: it takes its turn at the pool, where `handler` runs, and ends by
  // the same deadline. `bytes`: what it holds while it waits. On the responder's executor.
  void handle_direct(size_t bytes, DirectHandler handler, const std::shared_ptr<Responder>& responder);

  // What tells the prompts of requests without a cache_salt apart (Request::cache_salt): one text, or one of each key.
  std::vector<std::string> open_salts() const;

  // Where requests are read.
  RequestPool& pool() { return pool_; }

  // The template of the route that a path belongs to, for labels of metrics and for logs; "other" if there is none.
  static std::string route_name(const std::string& path);
  // How the API that a path belongs to tells errors.
  static ErrorShape error_shape(const std::string& path);

 private:
  struct Loaded {
    std::shared_ptr<const ModelContext> model;
    std::shared_ptr<Service> service;
  };
  struct Call {
    HttpRequest request;
    std::shared_ptr<Responder> responder;
    Loaded loaded;                  // empty for routes that need no model
    RequestPool::TicketPtr ticket;  // null for routes without a body
    std::chrono::steady_clock::time_point arrived;
    size_t bytes = 0;  // of the body
    // Tells an error in another way than by its status; false: it is not one for that. May be empty.
    std::function<bool(const ApiError& error)> tell;
  };
  // On a thread of the pool, or for routes without a body on the connection's executor. Says what it has to say with
  // answer(), or with what an object posts to the responder; an error is answered by who called it.
  using Handler = ApiStatus (*)(Api& api, Call& call);
  // The handlers of each file and their rows (endpoints_*.cpp).
  struct InfoRoutes;
  struct RouterRoutes;
  struct TextRoutes;
  struct EmbeddingRoutes;
  struct ScoreRoutes;
  struct ResponsesRoutes;
  struct AnthropicRoutes;
  struct OllamaRoutes;
  static std::span<const Route> info_routes(), router_routes(), text_routes(), embedding_routes(), score_routes(),
      responses_routes(), anthropic_routes(), ollama_routes();
  // The one of this method, or else another one of this path; null: there is no such path.
  static const Route* find_route(const std::string& sent, std::string_view method = "GET");
  static ApiError unknown_path(const std::string& path);
  static std::string methods_of(const std::string& path);

  ApiResult<int> check_key(const HttpRequest& head, const Route* route) const;
  ApiStatus check_state(const Route& route) const;
  void count_request(const char* api);
  using CallHandler = std::function<ApiStatus(Call& call)>;
  ApiStatus enqueue(Call call, size_t bytes, CallHandler handler);
  // What a handler that found an error has done with it: its client is told.
  static void refuse(const Call& call, const ApiError& error);
  // Goes on with `then` when the pictures are here that the conversation names by URL: at once where there are none,
  // and else as a further task of the pool, while no thread of it waits. `pictures` must live as long as `then` does.
  // The call is moved away; with an error it is back.
  ApiStatus with_pictures(Call& call, Pictures& pictures, CallHandler then);
  void go_on_later(const std::shared_ptr<Call>& call, ApiStatus fetched, CallHandler then);
  void give_up_where_nobody_waits(const Call& call);
  Loaded loaded() const;
  // The document that a body is; the body is freed.
  ApiResult<JsonDocument> body(Call& call) const;
  // Has the connection's executor send it. Any thread.
  static void answer(const std::shared_ptr<Responder>& to, HttpResponse response);
  static void answer(const std::shared_ptr<Responder>& to, const ApiError& error);
  // For handlers.
  static void answer(const Call& call, HttpResponse response);
  static void answer(const Call& call, const Json& value) { answer(call, HttpResponse{.body = dump(value)}); }
  // Tells the client, in a header of the answer, and the metrics which fields of a request had no effect.
  void report(const Call& call, const IgnoredFields& ignored);
  void report_left_out(const Call& call, const IgnoredFields& ignored);
  void count_grammars(const ModelContext& model);
  ApiResult<std::shared_ptr<const PromptImages>> decode_pictures(const Call& call,
                                                                 std::span<const PlacedPicture> pictures);
  void report_constraint(const Call& call, const AnswerConstraint& constraint);

  // Who shares computed prompts: requests with the same API key and the same cache_salt.
  std::string salt_of(const Call& call, const std::string& cache_salt) const;
  // Who shares places and the queue with others (Job): with several API keys, each one.
  uint64_t client_of(const Call& call) const;
  // Who takes turns with others at the pool: with several API keys, each one, otherwise each address.
  GrammarAsker asker_of(const Call& call) const;
  std::string pool_client_of(const Call& call) const;
  // What is left of the time that one answer may take; 0: any.
  std::chrono::milliseconds time_left(const Call& call) const;

  // Of the request the conversation is moved away.
  ApiResult<EncodedPrompt> encode_conversation(const Call& call, ChatRequest& request);
  // Answers a conversation in the form of the API that the writer speaks.
  ApiStatus converse(Call& call, ChatRequest request, MakeWriter make_writer);
  ApiStatus answer_conversation(Call& call, ChatRequest& request, const MakeWriter& make_writer);
  // Likewise texts that are gone on with.
  ApiStatus go_on(Call& call, CompletionRequest request, const MakeTextWriter& make_writer);
  ApiStatus embed(Call& call, EmbeddingRequest request, WriteVectors write);
  void count_calls(size_t complete, size_t cut);

  struct Prepared;  // jobs, and what is common to both kinds of generation
  void start(const Call& call, Prepared prepared);

  // Of a request that goes on from a response: the items before its own, an array.
  ApiResult<JsonDocument> earlier_items(const Call& call, const std::string& id);

  ApiOptions options_;
  ResponseStore response_store_;
  std::mutex grammars_mutex_;
  GrammarCacheStats counted_grammars_;  // as far as the metrics have them
  Registry& registry_;
  std::atomic<State> state_{State::kLoading};
  mutable std::mutex mutex_;
  Loaded loaded_;
  RequestPool pool_;
  std::unique_ptr<MediaFetcher> media_;  // the last members: their threads use the others
};

// An API that clients speak.
struct SpokenApi {
  const char* name;  // for labels of metrics
  ErrorShape errors;
};
inline constexpr SpokenApi kOpenAi{"openai", ErrorShape::kOpenAi}, kResponses{"responses", ErrorShape::kOpenAi},
    kAnthropic{"anthropic", ErrorShape::kAnthropic}, kOllama{"ollama", ErrorShape::kOllama};

// All that is known of a route, beside its handler. A path has a row for each method.
struct Api::Route {
  enum Access { kOpen, kKey, kMetrics };  // to everybody; with a key, if the server has keys; as the operator says
  // Bits of `traits`: needs the model; that, and makes the engine work, which is refused while draining; is asked to
  // know how the server is, also when it has no time for anything else.
  enum : unsigned { kModel = 1, kGenerates = 2 | kModel, kProbe = 4 };

  const char* method;
  const char* path;  // one that ends in '/' stands for everything below it
  Access access;
  unsigned traits;
  const SpokenApi& api;
  Handler handler;

  bool has(unsigned trait) const { return (traits & trait) == trait; }
};

// What the handler of a request has that did not come over HTTP, on a thread of the pool. Each of the functions but
// model() is the last thing that it does.
class Api::Direct {
 public:
  const ModelContext& model() const { return *call_.loaded.model; }
  // As the routes for these answer, in the words of the writer.
  ApiStatus chat(ChatRequest request, const MakeWriter& make_writer) {
    return api_.converse(call_, std::move(request), make_writer);
  }
  ApiStatus complete(CompletionRequest request, const MakeTextWriter& make_writer) {
    return api_.go_on(call_, std::move(request), make_writer);
  }
  ApiStatus embed(EmbeddingRequest request, WriteVectors write);
  // What is known at once: the body of the answer.
  void answer(std::string body) { Api::answer(call_, HttpResponse{.body = std::move(body)}); }

 private:
  friend class Api;
  Direct(Api& api, Call& call) : api_(api), call_(call) {}
  Api& api_;
  Call& call_;
};

}  // namespace quire::server
