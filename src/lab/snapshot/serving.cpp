#include "lab/snapshot/serving.h"

#include <algorithm>

#include "core/escape.h"
#include "core/progress.h"
#include "server/serve.h"

namespace quire::cli::snapshot {
namespace {

constexpr int32_t kPlaces = 16, kGpuPlaces = 64;
constexpr int64_t kMostContext = 4096;

class ServerHere final : public LocalServer {
 public:
  explicit ServerHere(const server::ServeOptions& options)
      : api_({.request_timeout = options.request_timeout, .page = false, .pool = options.pool}, registry_) {}
  ~ServerHere() override {
    api_.drain();
    api_.forget();
    if (http_) http_->stop();
  }

  Status begin(const server::ServeOptions& options, const std::shared_ptr<const LoadedModel>& model) {
    QUIRE_TRY(http_, server::HttpServer::create(options.http, api_, registry_, log_));
    QUIRE_CHECKED(server::serve_model(options, model, "", nullptr, api_, registry_, service_));
    http_->start();
    return {};
  }
  load::Url url() const override { return {.host = "127.0.0.1", .port = std::to_string(http_->port())}; }

 private:
  server::Registry registry_;
  server::AccessLog log_;
  server::Api api_;
  std::shared_ptr<server::EngineGroup> service_;
  std::unique_ptr<server::HttpServer> http_;
};

}  // namespace

Result<std::unique_ptr<LocalServer>> LocalServer::start(const std::shared_ptr<const LoadedModel>& model,
                                                        const std::string& name, const EngineOptions& engine) {
  server::ServeOptions o;
  const server::ServeOptions defaults;
  o.engine = engine;
  o.engine.prefix_cache = defaults.engine.prefix_cache;
  o.engine.volatile_tail = defaults.engine.volatile_tail;
  o.engine.max_sequences = engine.device == Device::kCuda ? kGpuPlaces : kPlaces;
  o.engine.context = std::min(model->model->config().context_length, kMostContext);
  o.model = name;
  o.names = {"model"};
  o.generation_config = "none";  // every server is asked for greedy answers in any case
  o.access_log = "off";
  o.page = false;
  o.http.listen.port = 0;
  auto here = std::make_unique<ServerHere>(o);
  QUIRE_CHECKED(here->begin(o, model));
  return std::unique_ptr<LocalServer>(std::move(here));
}

Sweep sweep(const std::string& name, const load::Url& url, const SweepOptions& o) {
  Sweep s{.answered = {.name = name + " answers", .what = "every request over HTTP is answered to its end"},
          .same_texts = {.name = name + " texts", .what = "a request has the same text at every load"}};
  const Result<std::string> model = load::first_model(url, "");
  if (!model.ok()) {
    s.answered.result = GateResult::kFailed;
    s.answered.detail = model.error().message;
    s.same_texts.detail = "no request was answered";
    return s;
  }
  const load::WorkloadOptions workload{.prompt_tokens = {.a = static_cast<double>(o.prompt_tokens)},
                                       .output_tokens = {.a = static_cast<double>(o.output_tokens)}};
  load::LoadOptions load{.url = url, .model = *model, .timeout = o.timeout};
  std::vector<std::string> first_texts;
  size_t requests = 0, errors = 0;
  std::string first_error;
  load::Agreement agreement;
  for (const int clients : o.clients) {
    load.clients = clients;
    const auto items = load::make_workload(workload, std::max(o.requests, 2 * static_cast<size_t>(clients)));
    const std::string label = fmt::format("{} client{}", clients, clients == 1 ? "" : "s");
    Progress progress(fmt::format("{}, {}", escaped(name, 40), label), static_cast<int64_t>(items.size()));
    const auto samples = load::run_load(load, items, [&] { progress.add(1); });
    if (!samples.ok()) {
      ++errors;
      first_error = samples.error().message;
      break;
    }
    s.loads.push_back({name, load::summarize(label, *samples)});
    const load::LoadSummary& summary = s.loads.back().summary;
    requests += summary.requests;
    errors += summary.errors;
    if (first_error.empty()) first_error = summary.first_error;
    std::vector<std::string> texts;
    for (const load::Sample& sample : *samples) texts.push_back(sample.text);
    if (first_texts.empty()) {
      first_texts = std::move(texts);
      continue;
    }
    const load::Agreement a = load::compare_texts(first_texts, texts);
    agreement.compared += a.compared;
    agreement.equal += a.equal;
    if (agreement.first_difference.empty()) agreement.first_difference = a.first_difference;
  }
  s.answered.result = errors == 0 && requests > 0 ? GateResult::kPassed : GateResult::kFailed;
  s.answered.detail = errors == 0
                          ? fmt::format("{} requests", requests)
                          : fmt::format("{} of {} requests failed; the first: {}", errors, requests, first_error);
  if (errors > 0 || agreement.compared == 0) {
    s.same_texts.detail = errors > 0 ? "some requests were not answered" : "there is one load only";
    return s;
  }
  s.same_texts.result = agreement.equal == agreement.compared ? GateResult::kPassed : GateResult::kFailed;
  s.same_texts.detail = fmt::format("{} of {} texts{}{}", agreement.equal, agreement.compared,
                                    agreement.first_difference.empty() ? "" : "; ", agreement.first_difference);
  return s;
}

Result<Peer> parse_peer(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == text.npos || equals == 0 || equals > 60)
    return request_error("--peer {}: write NAME=URL, as in vllm=http://127.0.0.1:8000", escaped(text, 80));
  Peer p{.name = text.substr(0, equals)};
  if (p.name == "quire") return request_error("--peer quire=...: that is this program's own name here; take another");
  QUIRE_TRY(p.url, load::Url::parse(text.substr(equals + 1)).context(fmt::format("--peer {}", escaped(p.name, 80))));
  return p;
}

}  // namespace quire::cli::snapshot
