#include "server/serve.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "cache/prefix_file.h"
#include "convert/open.h"
#include "core/atomic_file.h"
#include "core/cpu.h"
#include "core/descriptors.h"
#include "core/heap.h"
#include "core/input_file.h"
#include "core/log.h"
#include "core/output.h"
#include "core/signals.h"
#include "engine/sampling_defaults.h"
#include "server/input_watch.h"
#include "server/memory_parts.h"
#include "server/notify.h"
#include "tokenizer/chat_template.h"

namespace quire::server {
namespace {

constexpr std::chrono::milliseconds kLastMessages{1000};  // to be written at the end

double mib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

// A file that will be written at the end can be, as far as that is known now. What was begun and never finished goes.
Status check_prefix_file(const std::string& path) {
  if (path.empty()) return {};
  std::error_code failed;
  const std::filesystem::path folder = std::filesystem::absolute(path, failed).parent_path();
  if (failed || access(folder.c_str(), W_OK | X_OK) != 0)
    return request_error("--prefix-cache-file {}: files cannot be created in its folder", path);
  QUIRE_CHECKED(check_prefix_place(path).context("--prefix-cache-file"));
  if (remove_abandoned_files(path) > 0) tell(fmt::format("removed what a killed server left of writing {}", path));
  return {};
}

// What the file has is taken where it fits; where not, the cache begins empty, as it does the first time.
void load_prefixes(const ServeOptions& o, Engine& engine) {
  std::error_code unknown;
  if (o.prefix_cache_file.empty() || !std::filesystem::exists(o.prefix_cache_file, unknown)) return;
  const Result<PrefixFileContent> kept = engine.load_prefixes(o.prefix_cache_file);
  if (!kept.ok()) return log_warning("the prefix cache begins empty: " + kept.error().message);
  tell(fmt::format("the prefix cache begins with {} tokens and {} recurrent states of {} ({:.1f} MiB)",
                   kept->chunks * kChunkTokens, kept->states, o.prefix_cache_file, mib(kept->bytes)));
}

void save_prefixes(const ServeOptions& o, EngineService& service) {
  if (o.prefix_cache_file.empty()) return;
  const Result<PrefixFileContent> kept = service.save_prefixes(o.prefix_cache_file, o.prefix_cache_file_bytes);
  if (!kept.ok()) return log_warning("the prefix cache is not kept: " + kept.error().message);
  if (kept->chunks > 0)
    tell(fmt::format("the prefix cache is kept: {} tokens and {} recurrent states in {} ({:.1f} MiB)",
                     kept->chunks * kChunkTokens, kept->states, o.prefix_cache_file, mib(kept->bytes)));
}

// What requests get that do not say how to sample.
Result<SamplingParams> default_sampling(const ServeOptions& o, const LoadedModel& model) {
  SamplingParams sampling = o.limits.sampling;
  if (o.generation_config == "none" || o.generation_config == "vllm") return sampling;
  const bool by_model = o.generation_config == "model" || o.generation_config == "auto";
  QUIRE_TRY(const SamplingDefaults recommended,
            by_model ? recommended_sampling(model.file) : read_generation_config(o.generation_config));
  recommended.apply(sampling);
  const std::string& source = by_model ? o.model : o.generation_config;
  QUIRE_CHECKED(sampling.validate(model.model->config().vocab).context(source));
  if (const std::string text = recommended.text(); !text.empty())
    tell(fmt::format("requests that do not say otherwise are sampled as {} recommends: {}", source, text));
  return sampling;
}

// "computing on GPU 0", "computing on the CPU (no NVIDIA GPU can be used: ...)".
std::string computing_on(const Engine& engine, const std::string& why_no_gpu) {
  const EnginePlan& plan = engine.plan();
  if (plan.device == Device::kCuda) return fmt::format("computing on GPU {}", plan.gpu);
  const char* const by = plan.device == Device::kReference ? "the CPU, by reference kernels" : "the CPU";
  return fmt::format("computing on {}{}", by, why_no_gpu.empty() ? "" : fmt::format(" ({})", why_no_gpu));
}

void tell_systemd(const ServeOptions& o, std::string_view state) {
  if (const Status s = notify(o.notify_socket, state); !s.ok()) log_warning(s.error().message);
}

// Accepted requests are answered, new ones refused, until nothing is left or the time is up.
void drain(const ServeOptions& o, Api& api, HttpServer& http) {
  tell(fmt::format("finishing what was accepted (at most {:.0f} s)",
                   std::chrono::duration<double>(o.drain_timeout).count()));
  api.drain();
  http.drain();
  const auto end = std::chrono::steady_clock::now() + o.drain_timeout;
  while (!http.wait_until_idle(std::chrono::milliseconds(50)))
    if (std::chrono::steady_clock::now() >= end) break;
  api.forget();  // what is left is told that it ends here
  http.wait_until_idle(std::chrono::seconds(2));
}

// The files that lines go to, and standard error. Their lines wait in memory, so that nobody waits for who reads them.
struct Logs {
  AccessLog access;
  std::shared_ptr<StepTrace> steps;  // null: none

  static Result<Logs> open(const ServeOptions& o, Registry& registry) {
    Logs logs;
    QUIRE_TRY(logs.access, AccessLog::open(o.access_log, registry));
    if (!o.step_trace.empty()) {
      QUIRE_TRY(logs.steps,
                StepTrace::open(o.step_trace, log_options(registry, "steps", "--trace-steps " + o.step_trace))
                    .context("--trace-steps"));
    }
    return logs;
  }
  static bool has_files(const ServeOptions& o) {
    return (o.access_log != "-" && o.access_log != "off") || !o.step_trace.empty();
  }
  void reopen() {
    access.reopen();
    if (steps) steps->reopen();
  }
};

// Where the process may have few descriptors.
void tell_connections(int64_t asked, int64_t taken) {
  if (taken >= asked / 2) return;
  tell(
      fmt::format("this process may have {} files and sockets open, which leaves {} for connections instead of {}; "
                  "raise the hard limit (ulimit -Hn, LimitNOFILE of systemd) where more clients come",
                  descriptor_limit(), taken, asked));
}

OriginPolicy::Guard guard_of(const HttpServerOptions& http, bool has_keys) {
  if (has_keys) return OriginPolicy::Guard::kOther;
  if (!http.listen.unix_socket.empty()) return OriginPolicy::Guard::kUnixSocket;
  return is_loopback(http.listen.host) ? OriginPolicy::Guard::kLoopback : OriginPolicy::Guard::kOther;
}

// Sleeps until `done`, or a signal asks for the end. Others that come meanwhile are served.
template <class Done>
void wait_for_signal(const SignalNotes& signals, Logs& logs, const Done& done) {
  while (!done() && SignalNotes::count() == 0) {
    signals.wait();
    if (SignalNotes::take_requests() > 0) logs.reopen();
  }
}

Status serve_until_signal(const ServeOptions& o, Registry& registry, LineWriter& messages) {
  raise_descriptor_limit();
  QUIRE_CHECKED(check_prefix_file(o.prefix_cache_file));
  KeyRing keys;
  if (!o.key_file.empty()) {
    QUIRE_TRY(keys, KeyRing::load(o.key_file).context("--api-key-file"));
  }
  QUIRE_TRY(Logs logs, Logs::open(o, registry));
  QUIRE_TRY(std::string chat_template, read_template(o.chat_template_file, o.files_within));
  JsonLimits json;
  json.max_bytes = o.http.session.limits.max_body_bytes;
  QUIRE_TRY(OriginPolicy origins,
            OriginPolicy::create(o.allowed_origins, o.allowed_hosts, guard_of(o.http, !keys.empty())));
  Api api({.keys = std::move(keys),
           .metrics_without_key = o.metrics_without_key,
           .origins = std::move(origins),
           .json = json,
           .request_timeout = o.request_timeout,
           .split_reasoning = o.split_reasoning,
           .page = o.page,
           .pool = o.pool,
           .responses = o.responses},
          registry);
  QUIRE_TRY(const std::unique_ptr<HttpServer> http, HttpServer::create(o.http, api, registry, logs.access));
  tell_connections(o.http.max_connections, http->max_connections());
  SignalNotes signals({SIGTERM, SIGINT}, SignalNotes::Second::kEnds);
  if (Logs::has_files(o)) signals.count_requests(SIGHUP);
  std::unique_ptr<InputWatch> input;
  if (o.exit_with_input) {
    QUIRE_TRY(input, InputWatch::create(STDIN_FILENO, [&] { signals.wake(); }));
  }
  const auto left_alone = [&] { return input && input->ended(); };
  http->start();  // /health tells that the model is being loaded
  Status loaded;
  std::shared_ptr<EngineService> service;
  std::atomic<bool> is_loaded{false};
  std::thread loader([&] {
    loaded = load_into(o, std::move(chat_template), logs.steps, api, registry, service);
    is_loaded = true;
    signals.wake();
  });
  wait_for_signal(signals, logs, [&] { return is_loaded.load() || left_alone(); });
  if (!is_loaded) {
    tell("stopped while the model was being loaded");
    messages.drain(kLastMessages);
    std::_Exit(0);  // the loader cannot be interrupted, and nothing was accepted
  }
  loader.join();
  if (!loaded.ok()) return loaded;
  tell(fmt::format("serving {} at {}", o.model, fmt::join(http->urls(), ", ")));
  const HeapKeeper heap([&, grammars = within_memory(o.grammars)] {
    measure_memory(service->engine(), grammars, *http, o.responses, registry);
  });
  tell_systemd(o, "READY=1");
  wait_for_signal(signals, logs, left_alone);
  tell_systemd(o, "STOPPING=1");
  drain(o, api, *http);
  http->stop();
  save_prefixes(o, *service);
  return {};
}

}  // namespace

Result<std::string> read_template(const std::string& path, const std::string& within) {
  constexpr uint64_t kMost = uint64_t{1} << 20;  // jinja::Limits::max_source_bytes
  if (path.empty()) return std::string();
  QUIRE_TRY(std::string text, read_input_file(path, kMost, within).context("--chat-template"));
  QUIRE_CHECKED(ChatTemplate::parse(text).context(fmt::format("--chat-template {}", path)));
  return text;
}

Status load_into(const ServeOptions& o, std::string chat_template, std::shared_ptr<StepTrace> trace, Api& api,
                 Registry& registry, std::shared_ptr<EngineService>& service) {
  QUIRE_TRY(const std::shared_ptr<const LoadedModel> loaded, load_model(o.model, o.mtp, o.rope));
  if (loaded->file.assembled())
    tell(fmt::format("{}: {:.1f} MiB of the weights are used where they are mapped, {:.1f} MiB were made in memory",
                     o.model, mib(static_cast<int64_t>(loaded->file.mapped_bytes()) - loaded->file.made_bytes()),
                     mib(loaded->file.made_bytes())));
  return serve_model(o, loaded, std::move(chat_template), std::move(trace), api, registry, service);
}

Status serve_model(const ServeOptions& o, const std::shared_ptr<const LoadedModel>& loaded, std::string chat_template,
                   std::shared_ptr<StepTrace> trace, Api& api, Registry& registry,
                   std::shared_ptr<EngineService>& service) {
  EngineOptions options = o.engine;
  options.max_waiting = INT32_MAX;  // the service says how many may wait
  options.top_priority = o.limits.max_priority;
  QUIRE_TRY(SamplingParams sampling, default_sampling(o, *loaded).context("--generation-config"));
  QUIRE_TRY(std::unique_ptr<Engine> engine, Engine::create(loaded, std::move(options)));
  tell(computing_on(*engine, o.why_no_gpu));
  tell(engine->capacity());
  const GrammarCacheOptions grammars = within_memory(o.grammars);
  tell(memory_line(*engine, grammars, o.http, o.responses));
  load_prefixes(o, *engine);
  ModelContext::Options m{.names = o.names,
                          .path = o.model,
                          .chat_template = std::move(chat_template),
                          .limits = o.limits,
                          .context = engine->context(),
                          .sequences = engine->plan().max_sequences,
                          .kv_tokens = engine->plan().kv_tokens,
                          .fingerprint = engine->fingerprint(),
                          .special_in_content = o.special_in_content,
                          .grammars = grammars,
                          .tool_format = find_tool_format(o.tool_call_parser)};
  m.limits.sampling = std::move(sampling);
  if (m.names.empty()) m.names.push_back(convert::file_name_of(o.model));
  QUIRE_TRY(const std::shared_ptr<const ModelContext> context, ModelContext::create(loaded, std::move(m)));
  auto metrics = std::make_shared<EngineMetrics>(registry, context->name(), engine->context(), engine->pools());
  service = std::make_shared<EngineService>(std::move(engine), EngineService::Options{o.max_queue, std::move(trace)},
                                            std::move(metrics));
  api.serve(context, service);
  return {};
}

std::string routes_text() {
  std::string text;
  for (const std::string_view method : {"GET", "POST", "DELETE"}) {
    std::string paths;
    for (const Api::Route& r : Api::routes())
      if (r.method == method) paths += fmt::format("{} {}", paths.empty() ? "" : ",", r.path);
    text += fmt::format("{}{}{}", text.empty() ? "" : "; ", method, paths);
  }
  return text;
}

Status serve(const ServeOptions& o) {
  prepare_heap();
  std::signal(SIGPIPE, SIG_IGN);  // who reads standard error may leave
  Registry registry;
  LineWriter::Options options = log_options(registry, "messages", "standard error");
  options.tell = nullptr;  // there is nowhere else
  options.gap = [](int64_t lines) { return fmt::format("quire: {} lines are missing here", lines); };
  const std::unique_ptr<LineWriter> messages = LineWriter::to(STDERR_FILENO, std::move(options));
  const MessageRedirect redirect(*messages);
  return serve_until_signal(o, registry, *messages);
}

}  // namespace quire::server
