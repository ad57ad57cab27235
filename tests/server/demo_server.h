// A server with a demo model, in this process. One is shared by the tests that need nothing special.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "server/api.h"
#include "server/engine_service.h"
#include "server/http_server.h"
#include "server/serve.h"
#include "support/golden.h"

namespace quire::test {

// "moe" or "dense".
inline std::string demo_model_path(const std::string& which = "moe") {
  return fmt::format("{}/models/demo-{}-nvfp4.gguf", QUIRE_SOURCE_DIR, which);
}
inline ModelPtr demo_model(const std::string& which) {
  static std::map<std::string, ModelPtr> models;
  ModelPtr& m = models[which];
  if (m == nullptr) m = load_or_die(demo_model_path(which));
  return m;
}

class DemoServer {
 public:
  struct Options {
    server::ApiOptions api;
    server::HttpServerOptions http;
    server::RequestLimits limits;
    int32_t max_sequences = 8;
    int64_t context = 2048;
    size_t max_queue = 64;
    Pooling pooling = Pooling::kLast;
    std::string model = "moe";
    ModelPtr loaded;                                                      // not null: another model
    std::function<void(EngineOptions&)> engine;                           // may change what the engine gets
    std::function<void(server::ModelContext::Options&)> context_options;  // likewise
    bool load = true;                                                     // or stay in the state of loading
    BackendFactory backend = make_backend;
    int engines = 1;                           // side by side; those behind the first have backends of their own
    std::shared_ptr<server::Service> service;  // not null: answers in place of an engine
  };
  explicit DemoServer(Options options) : options_(std::move(options)) {
    options_.http.listen.port = 0;
    api_ = std::make_unique<server::Api>(options_.api, registry_);
    auto http = server::HttpServer::create(options_.http, *api_, registry_, log_);
    if (!http.ok()) {
      ADD_FAILURE() << http.error().message;
      std::abort();
    }
    http_ = std::move(http).value();
    http_->start();
    if (options_.load) load();
  }
  ~DemoServer() {
    api_->forget();
    http_->stop();
  }

  void load() {
    const ModelPtr model = options_.loaded != nullptr ? options_.loaded : demo_model(options_.model);
    if (options_.service != nullptr) return api_->serve(context_for(model, {}), options_.service);
    EngineOptions e;
    e.context = options_.context;
    e.max_sequences = options_.max_sequences;
    e.prefix_cache = true;
    e.pooling = options_.pooling;
    e.swap_bytes = int64_t{64} << 20;
    e.threads = 1;  // a team of threads waits for each other, which is slow on a busy machine
    e.top_priority = options_.limits.max_priority;
    if (options_.engine) options_.engine(e);
    server::ModelContext::Options m;
    m.engines = options_.engines;
    std::vector<std::unique_ptr<server::EngineService>> services;
    for (int i = 0; i < options_.engines; ++i) {
      auto engine = std::move(Engine::create(model, e, i == 0 ? options_.backend : make_backend)).value();
      m.sequences += engine->plan().max_sequences;
      m.kv_tokens += engine->plan().kv_tokens;
      m.fingerprint = engine->fingerprint();
      auto metrics = std::make_shared<server::EngineMetrics>(registry_, "demo", options_.context, engine->pools(), i);
      services.push_back(std::make_unique<server::EngineService>(
          std::move(engine), server::EngineService::Options{options_.max_queue, nullptr, i}, metrics));
    }
    api_->serve(context_for(model, std::move(m)), std::make_shared<server::EngineGroup>(std::move(services)));
  }

  uint16_t port() const { return http_->port(); }
  server::Api& api() { return *api_; }
  server::HttpServer& http() { return *http_; }
  server::Registry& registry() { return registry_; }
  // The value of a metric, by its whole line up to the value; -1 if it is not there.
  double metric(const std::string& series) const {
    const std::string text = "\n" + registry_.text();
    const size_t at = text.find("\n" + series + " ");
    return at == std::string::npos ? -1.0 : std::stod(text.substr(at + series.size() + 2));
  }

 private:
  // `m`: what an engine says of itself.
  std::shared_ptr<const server::ModelContext> context_for(const ModelPtr& model, server::ModelContext::Options m) {
    m.names = {"demo", "also-demo"};
    m.path = demo_model_path(options_.model);
    m.limits = options_.limits;
    m.context = options_.context;
    if (options_.context_options) options_.context_options(m);
    return std::move(server::ModelContext::create(model, std::move(m))).value();
  }

  Options options_;
  server::Registry registry_;
  server::AccessLog log_;
  std::unique_ptr<server::Api> api_;
  std::unique_ptr<server::HttpServer> http_;
};

// The shared one: no keys, no TLS, timeouts as by default.
inline DemoServer& demo_server() {
  static DemoServer server(DemoServer::Options{});
  return server;
}

}  // namespace quire::test
