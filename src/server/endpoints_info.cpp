// The routes that generate nothing: state, metrics, models, tokens.
#include <sys/resource.h>

#include <iterator>
#include <span>

#include "core/descriptors.h"
#include "core/heap.h"
#include "server/api.h"
#include "server/page/chat_page.h"
#include "server/paths.h"
#include "tokenizer/unicode.h"

namespace quire::server {

struct Api::InfoRoutes {
  static ApiStatus root(Api& api, Call& call);
  static ApiStatus health(Api& api, Call& call);
  static ApiStatus metrics(Api& api, Call& call);
  static ApiStatus version(Api& api, Call& call);
  static ApiStatus models(Api& api, Call& call);
  static ApiStatus model(Api& api, Call& call);
  static ApiStatus props(Api& api, Call& call);
  static ApiStatus tokenize(Api& api, Call& call);
  static ApiStatus detokenize(Api& api, Call& call);
};

std::span<const Api::Route> Api::info_routes() {
  using H = InfoRoutes;
  static constexpr Route kRows[] = {
      {"GET", "/", Route::kOpen, 0, kOpenAi, H::root},
      {"GET", "/health", Route::kOpen, Route::kProbe, kOpenAi, H::health},
      {"GET", "/ping", Route::kOpen, Route::kProbe, kOpenAi, H::health},
      {"GET", "/metrics", Route::kMetrics, Route::kProbe, kOpenAi, H::metrics},
      {"GET", "/version", Route::kKey, 0, kOpenAi, H::version},
      {"GET", "/props", Route::kKey, Route::kModel, kOpenAi, H::props},
      {"GET", "/v1/models", Route::kKey, Route::kModel, kOpenAi, H::models},
      {"GET", "/v1/models/", Route::kKey, Route::kModel, kOpenAi, H::model},
      {"POST", "/tokenize", Route::kKey, Route::kModel, kOpenAi, H::tokenize},
      {"POST", "/detokenize", Route::kKey, Route::kModel, kOpenAi, H::detokenize},
  };
  return kRows;
}

// Clients of Ollama look for this text where browsers find the page.
ApiStatus Api::InfoRoutes::root(Api& api, Call& call) {
  if (api.options_.page && wants_page(call.request)) {
    answer(call, chat_page());
  } else {
    answer(call, HttpResponse{.body = "Ollama is running",
                              .content_type = "text/plain; charset=utf-8",
                              .headers = {{"Vary", "Accept"}}});  // no cache may give it to a browser
  }
  return {};
}

ApiStatus Api::InfoRoutes::health(Api& api, Call& call) {
  switch (api.state()) {
    case State::kLoading:
      return ApiError{.status = 503, .message = "the model is being loaded", .code = "loading", .retry_after = 2};
    case State::kDraining:
      return ApiError{.status = 503, .message = "the server is shutting down", .code = "shutting_down"};
    case State::kReady:
      break;
  }
  const std::shared_ptr<Service> service = api.loaded().service;
  if (service) QUIRE_CHECKED(service->health());
  const std::vector<int> lost = service ? service->lost_engines() : std::vector<int>();
  if (lost.empty())
    answer(call, {{"status", "ok"}});
  else
    answer(call, {{"status", "degraded"}, {"lost_engines", lost}});
  return {};
}

namespace {

// What Prometheus's own client libraries tell of a process, under their names.
void measure_process(Registry& r) {
  r.gauge("process_resident_memory_bytes", "Resident memory, the mapped model included.")
      .set(static_cast<double>(resident_memory()));
  r.gauge("process_open_fds", "Files and sockets that are open.").set(static_cast<double>(open_descriptors()));
  r.gauge("process_max_fds", "How many may be.").set(static_cast<double>(descriptor_limit()));
  struct rusage usage {};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  Counter& cpu = r.counter("process_cpu_seconds_total", "CPU time of user and system.");
  const double now = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  if (now > cpu.value()) cpu.add(now - cpu.value());
}

}  // namespace

ApiStatus Api::InfoRoutes::metrics(Api& api, Call& call) {
  measure_process(api.registry_);
  if (const auto model = api.loaded().model) api.count_grammars(*model);
  answer(call, HttpResponse{.body = api.registry_.text(), .content_type = "text/plain; version=0.0.4; charset=utf-8"});
  return {};
}

ApiStatus Api::InfoRoutes::version(Api&, Call& call) {
  answer(call, {{"version", QUIRE_VERSION}});
  return {};
}

namespace {

Json openai_model(const ModelContext& m, const std::string& name) {
  Json input = Json::array({"text"});
  if (m.limits().images) input.push_back("image");
  return {{"id", name},
          {"object", "model"},
          {"created", m.created()},
          {"owned_by", "quire"},
          {"root", m.name()},
          {"max_model_len", m.context()},
          {"architecture", {{"input_modalities", std::move(input)}, {"output_modalities", Json::array({"text"})}}}};
}

}  // namespace

ApiStatus Api::InfoRoutes::models(Api&, Call& call) {
  Json data = Json::array();
  for (const std::string& name : call.loaded.model->names()) data.push_back(openai_model(*call.loaded.model, name));
  answer(call, {{"object", "list"}, {"data", std::move(data)}});
  return {};
}

ApiStatus Api::InfoRoutes::model(Api&, Call& call) {
  const std::string name = percent_decoded(canonical_path(call.request.path).substr(sizeof "/v1/models/" - 1));
  QUIRE_CHECKED(call.loaded.model->check_name(name));
  answer(call, openai_model(*call.loaded.model, name));
  return {};
}

namespace {

// How requests are sampled that do not say.
Json sampling_json(const SamplingParams& s) {
  Json all = Json::object();
  each_sampling_field(s, [&](const SamplingField& field, auto value) {
    all[std::string(field.llama_name())] = Json::parse(fmt::format("{}", value));  // 0.7, not 0.699999988
  });
  return all;
}

}  // namespace

ApiStatus Api::InfoRoutes::props(Api&, Call& call) {
  const ModelContext& m = *call.loaded.model;
  const Tokenizer& t = m.tokenizer();
  const auto text_of = [&](const std::optional<TokenId>& id) {
    return id ? Json(unicode::replace_invalid(t.token_text(*id))) : Json();
  };
  const RequestLimits& l = m.limits();
  const ModelConfig& c = m.loaded().model->config();
  answer(call, {{"model_alias", m.name()},
                {"model_path", m.name()},  // the name: where the file is, is nobody's business
                {"architecture", c.architecture},
                {"total_slots", m.sequences()},
                {"n_ctx", m.context()},
                {"default_generation_settings", {{"n_ctx", m.context()}, {"params", sampling_json(l.sampling)}}},
                {"n_ctx_train", c.context_length},
                {"n_vocab", l.vocab},
                {"chat_template", m.chat_template()},
                {"bos_token", text_of(t.bos())},
                {"eos_token", text_of(t.eos())},
                {"modalities", {{"vision", l.images}, {"audio", false}}},
                {"limits",
                 {{"n", l.max_n},
                  {"prompts", l.max_prompts},
                  {"inputs", l.max_inputs},
                  {"images", l.max_images},
                  {"stop", l.max_stops},
                  {"logprobs", l.max_logprobs},
                  {"logit_bias", l.max_logit_bias},
                  {"stop_bytes", l.max_stop_bytes},
                  {"priority", l.max_priority},
                  {"tools", l.max_tools},
                  {"schema_bytes", l.max_schema_bytes},
                  {"call_bytes", l.max_call_bytes}}},
                {"tools", l.template_tools},
                {"tool_call_parser", m.tool_format().name},
                {"system_fingerprint", m.fingerprint()},
                {"build_info", "quire " QUIRE_VERSION}});
  return {};
}

namespace {

// As text and not as a tree of values, which would take 16 bytes for each number and 64 for each text.
std::string tokens_body(std::span<const TokenId> tokens, const ModelContext& m, bool texts) {
  std::string out = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[)", tokens.size(), m.context());
  fmt::format_to(std::back_inserter(out), "{}]", fmt::join(tokens, ","));
  if (texts) {
    out += R"(,"token_strs":[)";
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) out += ',';
      out += dump(unicode::replace_invalid(m.tokenizer().token_bytes(tokens[i], true)));
    }
    out += ']';
  }
  return out + '}';
}

}  // namespace

ApiStatus Api::InfoRoutes::tokenize(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  const ModelContext& m = *call.loaded.model;
  QUIRE_TRY(TokenizeRequest r, parse_tokenize_request(std::move(document), m.limits()));
  api.report(call, r.ignored);
  QUIRE_CHECKED(m.check_name(r.model));
  if (auto* const text = std::get_if<std::string>(&r.input)) {
    QUIRE_TRY(const EncodedPrompt p, m.encode(Prompt(std::move(*text)), r.add_special));
    answer(call, HttpResponse{.body = tokens_body(p.tokens, m, r.token_texts)});
    return {};
  }
  const auto kept = std::make_shared<TokenizeRequest>(std::move(r));
  auto& conversation = std::get<Conversation>(kept->input);
  return api.with_pictures(call, conversation.pictures, [kept, &conversation](Call& c) -> ApiStatus {
    QUIRE_TRY(const EncodedPrompt p, c.loaded.model->encode(std::move(conversation), kept->add_special));
    answer(c, HttpResponse{.body = tokens_body(p.tokens, *c.loaded.model, kept->token_texts)});
    return {};
  });
}

ApiStatus Api::InfoRoutes::detokenize(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  QUIRE_TRY(const DetokenizeRequest r, parse_detokenize_request(std::move(document), call.loaded.model->limits()));
  api.report(call, r.ignored);
  QUIRE_CHECKED(call.loaded.model->check_name(r.model));
  const std::string text = call.loaded.model->tokenizer().decode(r.tokens, true);
  answer(call, {{"prompt", text}, {"content", text}});  // vLLM's name and llama.cpp's
  return {};
}

}  // namespace quire::server
