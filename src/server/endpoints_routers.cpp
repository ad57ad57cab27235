// What routers and load balancers ask of the servers behind them: sglang-router, vllm-router and whoever asks as they
// do.
#include <cmath>

#include "server/api.h"
#include "server/engine_metrics.h"

namespace quire::server {

struct Api::RouterRoutes {
  static ApiStatus load(Api& api, Call& call);
  static ApiStatus loads(Api& api, Call& call);
  static ApiStatus server_info(Api& api, Call& call);
  static ApiStatus model_info(Api& api, Call& call);
};

std::span<const Api::Route> Api::router_routes() {
  using H = RouterRoutes;
  static constexpr Route kRows[] = {
      {"GET", "/load", Route::kKey, Route::kModel | Route::kProbe, kOpenAi, H::load},
      {"GET", "/get_load", Route::kKey, Route::kModel, kOpenAi, H::loads},
      {"GET", "/server_info", Route::kKey, Route::kModel, kOpenAi, H::server_info},
      {"GET", "/get_server_info", Route::kKey, Route::kModel, kOpenAi, H::server_info},
      {"GET", "/model_info", Route::kKey, Route::kModel, kOpenAi, H::model_info},
      {"GET", "/get_model_info", Route::kKey, Route::kModel, kOpenAi, H::model_info},
  };
  return kRows;
}

// vLLM's: how many answers are asked for and not done.
ApiStatus Api::RouterRoutes::load(Api& api, Call& call) {
  const ModelContext& m = *call.loaded.model;
  int64_t answers = 0;
  for (int engine = 0; engine < m.engines(); ++engine) {
    const EngineLoad l = read_load(api.registry_, m.name(), engine);
    answers += l.running + l.waiting;
  }
  answer(call, {{"server_load", answers}});
  return {};
}

// SGLang's: an entry for each engine.
ApiStatus Api::RouterRoutes::loads(Api& api, Call& call) {
  const ModelContext& m = *call.loaded.model;
  Json all = Json::array();
  for (int engine = 0; engine < m.engines(); ++engine) {
    const EngineLoad l = read_load(api.registry_, m.name(), engine);
    const double kv_tokens = static_cast<double>(m.kv_tokens()) / m.engines();
    all.push_back({{"dp_rank", engine},
                   {"num_reqs", l.running + l.waiting},
                   {"num_waiting_reqs", l.waiting},
                   {"num_tokens", std::llround(l.kv_usage * kv_tokens)}});
  }
  answer(call, std::move(all));
  return {};
}

ApiStatus Api::RouterRoutes::server_info(Api&, Call& call) {
  const ModelContext& m = *call.loaded.model;
  answer(call, {{"model_path", m.name()},  // the name: where the file is, is nobody's business
                {"served_model_name", m.name()},
                {"version", QUIRE_VERSION},
                {"tp_size", 1},
                {"dp_size", m.engines()},
                {"max_running_requests", m.sequences()},
                {"max_total_num_tokens", m.kv_tokens()},
                {"context_length", m.context()}});
  return {};
}

ApiStatus Api::RouterRoutes::model_info(Api&, Call& call) {
  const ModelContext& m = *call.loaded.model;
  const std::string& architecture = m.loaded().model->config().architecture;
  answer(call, {{"model_path", m.name()},
                {"tokenizer_path", m.name()},
                {"is_generation", true},
                {"model_type", architecture},
                {"architectures", Json::array({architecture})},
                {"max_model_len", m.context()}});
  return {};
}

}  // namespace quire::server
