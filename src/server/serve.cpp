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
#include "hub/stream.h"
#include "server/input_watch.h"
#include "server/memory_parts.h"
#include "server/notify.h"
#include "server/start_engines.h"
#include "tokenizer/chat_template.h"

namespace quire::server {
namespace {

constexpr std::chrono::milliseconds kLastMessages{1000};  // to be written at the end

double mib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

// The file of each engine's prefix cache: the second one's is FILE.1.
std::string prefix_file(const ServeOptions& o, size_t engine) {
  return engine == 0 ? o.prefix_cache_file : fmt::format("{}.{}", o.prefix_cache_file, engine);
}

// A file that will be written at the end can be, as far as that is known now. What was begun and never finished goes.
Status check_prefix_file(const std::string& path) {
  std::error_code failed;
  const std::filesystem::path folder = std::filesystem::absolute(path, failed).parent_path();
  if (failed || access(folder.c_str(), W_OK | X_OK) != 0)
    return request_error("--prefix-cache-file {}: files cannot be created in its folder", path);
  QUIRE_CHECKED(check_prefix_place(path).context("--prefix-cache-file"));
  if (remove_abandoned_files(path) > 0) tell(fmt::format("removed what a killed server left of writing {}", path));
  return {};
}

// What the file has is taken where it fits; where not, the cache begins empty, as it does the first time.
void load_prefixes(const std::string& path, Engine& engine) {
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown)) return;
  const Result<PrefixFileContent> kept = engine.load_prefixes(path);
  if (!kept.ok()) return log_warning("the prefix cache begins empty: " + kept.error().message);
  tell(fmt::format("the prefix cache begins with {} tokens and {} recurrent states of {} ({:.1f} MiB)",
                   kept->chunks * kChunkTokens, kept->states, path, mib(kept->bytes)));
}

void save_prefixes(const std::string& path, int64_t max_bytes, EngineService& service) {
  const Result<PrefixFileContent> kept = service.save_prefixes(path, max_bytes);
  if (!kept.ok()) return log_warning("the prefix cache is not kept: " + kept.error().message);
  if (kept->chunks > 0)
    tell(fmt::format("the prefix cache is kept: {} tokens and {} recurrent states in {} ({:.1f} MiB)",
                     kept->chunks * kChunkTokens, kept->states, path, mib(kept->bytes)));
}

void save_prefixes(const ServeOptions& o, EngineGroup& engines) {
  if (o.prefix_cache_file.empty()) return;
  for (size_t i = 0; i < engines.size(); ++i)
    save_prefixes(prefix_file(o, i), o.prefix_cache_file_bytes / static_cast<int64_t>(engines.size()), engines[i]);
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

using Engines = std::vector<std::unique_ptr<Engine>>;

// "computing on GPU 0", "computing on GPU 0, GPU 1", "computing on the CPU (no NVIDIA GPU can be used: ...)".
std::string computing_on(const Engines& engines, const std::string& why_no_gpu) {
  const EnginePlan& plan = engines.front()->plan();
  std::string by;
  if (plan.device == Device::kCuda) {
    for (const auto& engine : engines) by += fmt::format("{}GPU {}", by.empty() ? "" : ", ", engine->plan().gpu);
    return "computing on " + by;
  }
  by = plan.device == Device::kReference ? "the CPU, by reference kernels" : "the CPU";
  if (engines.size() > 1) by += fmt::format(", {} engines", engines.size());
  return fmt::format("computing on {}{}", by, why_no_gpu.empty() ? "" : fmt::format(" ({})", why_no_gpu));
}

std::vector<const Engine*> pointers_to(const Engines& engines) {
  std::vector<const Engine*> all;
  for (const auto& engine : engines) all.push_back(engine.get());
  return all;
}
std::vector<const Engine*> pointers_to(const EngineGroup& engines) {
  std::vector<const Engine*> all;
  for (size_t i = 0; i < engines.size(); ++i) all.push_back(&engines[i].engine());
  return all;
}

// What they have, and what of the prefix cache was kept.
void tell_engines(const ServeOptions& o, const Engines& engines, const GrammarCacheOptions& grammars) {
  tell(computing_on(engines, o.why_no_gpu));
  for (size_t i = 0; i < engines.size(); ++i)
    tell(engines.size() == 1 ? engines[i]->capacity() : fmt::format("engine {}: {}", i, engines[i]->capacity()));
  const EncoderRoom& room = engines.front()->plan().encoder;
  tell(memory_line(pointers_to(engines), grammars, o.http, o.responses,
                   {.most = room.any() ? o.limits.max_image_memory : 0}));
  if (room.any())
    tell(fmt::format("images are taken: of up to {} patches, rows of {} tokens are kept", room.patches, room.tokens));
  if (o.prefix_cache_file.empty()) return;
  for (size_t i = 0; i < engines.size(); ++i) load_prefixes(prefix_file(o, i), *engines[i]);
}

// Null: nothing is published.
Result<std::shared_ptr<KvEventPublisher>> make_publisher(const ServeOptions& o, size_t engines, const std::string& name,
                                                         Registry& registry) {
  if (o.kv_events.endpoint.empty()) return std::shared_ptr<KvEventPublisher>();
  return KvEventPublisher::create(o.kv_events, static_cast<int>(engines), name, registry);
}

void tell_prefixes(const ServeOptions& o, const Engines& engines, const std::shared_ptr<KvEventPublisher>& publisher,
                   const Api& api) {
  if (!publisher) return;
  std::optional<std::vector<std::string>> open;
  if (o.kv_events.token_ids) open = api.open_salts();
  for (size_t i = 0; i < engines.size(); ++i)
    engines[i]->tell_prefixes(KvEventPublisher::sink(publisher, static_cast<int>(i)), open);
  tell(fmt::format("KV events, in blocks of {} tokens: {}", kChunkTokens, publisher->text()));
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

Result<MediaOptions> media_of(const ServeOptions& o) {
  MediaOptions media = o.media;
  if (!o.media_domains.empty()) {
    QUIRE_TRY(media.tls, hub::TlsContext::create(o.media_ca, "--media-ca"));
  }
  return media;
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

size_t engine_count(const ServeOptions& o) {
  return std::max<size_t>(1, o.gpus.size() / static_cast<size_t>(o.engine.pipeline_parallel));
}

Status serve_until_signal(const ServeOptions& o, Registry& registry, LineWriter& messages) {
  raise_descriptor_limit();
  for (size_t i = 0; i < engine_count(o) && !o.prefix_cache_file.empty(); ++i)
    QUIRE_CHECKED(check_prefix_file(prefix_file(o, i)));
  KeyRing keys;
  if (!o.key_file.empty()) {
    QUIRE_TRY(keys, KeyRing::load(o.key_file).context("--api-key-file"));
  }
  QUIRE_TRY(Logs logs, Logs::open(o, registry));
  QUIRE_TRY(std::string chat_template, read_template(o.chat_template_file, o.files_within));
  JsonLimits json;
  json.max_bytes = o.http.session.limits.max_body_bytes;
  QUIRE_TRY(MediaOptions media, media_of(o));
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
           .responses = o.responses,
           .media = std::move(media)},
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
  std::shared_ptr<EngineGroup> service;
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
    const EncoderRoom& room = (*service)[0].engine().plan().encoder;
    const PictureBytes pictures{api.held_picture_bytes(), room.any() ? o.limits.max_image_memory : 0};
    measure_memory(pointers_to(*service), grammars, *http, o.responses, pictures, registry);
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
                 Registry& registry, std::shared_ptr<EngineGroup>& service) {
  QUIRE_TRY(const std::shared_ptr<const LoadedModel> loaded,
            load_model(o.model,
                       {.mtp = o.mtp, .rope = o.rope, .mmproj = o.mmproj, .vision = o.vision, .pictures = o.pictures}));
  if (loaded->file.assembled())
    tell(fmt::format("{}: {:.1f} MiB of the weights are used where they are mapped, {:.1f} MiB were made in memory",
                     o.model, mib(static_cast<int64_t>(loaded->file.mapped_bytes()) - loaded->file.made_bytes()),
                     mib(loaded->file.made_bytes())));
  return serve_model(o, loaded, std::move(chat_template), std::move(trace), api, registry, service);
}

Status serve_model(const ServeOptions& o, const std::shared_ptr<const LoadedModel>& loaded, std::string chat_template,
                   std::shared_ptr<StepTrace> trace, Api& api, Registry& registry,
                   std::shared_ptr<EngineGroup>& service) {
  EngineOptions options = o.engine;
  options.max_waiting = INT32_MAX;  // the service says how many may wait
  options.top_priority = o.limits.max_priority;
  QUIRE_TRY(SamplingParams sampling, default_sampling(o, *loaded).context("--generation-config"));
  std::vector<int> gpus = o.gpus;
  for (int i = 0; o.gpus.empty() && i < options.pipeline_parallel; ++i) gpus.push_back(options.gpu_of_stage(i));
  const std::string name = o.names.empty() ? convert::file_name_of(o.model) : o.names.front();
  QUIRE_TRY(const std::shared_ptr<KvEventPublisher> publisher, make_publisher(o, engine_count(o), name, registry));
  QUIRE_TRY(Engines engines, create_engines(loaded, options, gpus));
  const GrammarCacheOptions grammars = within_memory(o.grammars);
  tell_engines(o, engines, grammars);
  tell_prefixes(o, engines, publisher, api);
  const Capacity capacity = capacity_of(engines);
  ModelContext::Options m{.names = o.names,
                          .path = o.model,
                          .chat_template = std::move(chat_template),
                          .limits = o.limits,
                          .context = capacity.context,
                          .engines = static_cast<int32_t>(engines.size()),
                          .sequences = capacity.sequences,
                          .kv_tokens = capacity.kv_tokens,
                          .fingerprint = engines.front()->fingerprint(),
                          .special_in_content = o.special_in_content,
                          .grammars = grammars,
                          .tool_format = find_tool_format(o.tool_call_parser)};
  m.limits.sampling = std::move(sampling);
  if (m.names.empty()) m.names.push_back(name);
  QUIRE_TRY(const std::shared_ptr<const ModelContext> context, ModelContext::create(loaded, std::move(m)));
  std::vector<std::unique_ptr<EngineService>> services;
  for (size_t i = 0; i < engines.size(); ++i) {
    auto metrics = std::make_shared<EngineMetrics>(registry, context->name(), engines[i]->context(),
                                                   engines[i]->pools(), static_cast<int>(i));
    services.push_back(std::make_unique<EngineService>(
        std::move(engines[i]), EngineService::Options{o.max_queue, trace, static_cast<int>(i)}, std::move(metrics)));
  }
  service = std::make_shared<EngineGroup>(std::move(services));
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
