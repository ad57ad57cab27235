#include "command/serve_flags.h"

#include <fmt/format.h>

#include <charconv>

#include "server/limits_file.h"
#include "server/tools/tool_format.h"

namespace quire::cli {
namespace {

constexpr char kHeaderLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";

// "none" alone stands for no header at all.
Status read_headers(std::vector<std::string>& names) {
  if (names.size() == 1 && names[0] == "none") names.clear();
  for (const std::string& n : names)
    if (n.empty() || n.size() > 64 || n.find_first_not_of(kHeaderLetters) != std::string::npos)
      return request_error("--system-headers '{}': a name has 1 to 64 letters, digits, '-' and '_'", n);
  return {};
}

constexpr int kMostEngines = 64;
constexpr double kMostGib = 65536, kMostSeconds = 1e6;

constexpr Named<Pooling> kPoolings[] = {{"last", Pooling::kLast}, {"mean", Pooling::kMean}};
constexpr Named<server::KvEventFormat> kKvEventFormats[] = {{"arrays", server::KvEventFormat::kArrays},
                                                            {"tagged", server::KvEventFormat::kTagged},
                                                            {"maps", server::KvEventFormat::kMaps}};
constexpr Named<bool> kReasoningFormats[] = {{"auto", true}, {"none", false}};

constexpr std::string_view kAuto = "auto";

std::vector<ChosenMember::Name> tool_call_parsers() {
  std::vector<ChosenMember::Name> names = {{kAuto}};
  for (const server::ToolFormat& f : server::tool_formats()) names.push_back({f.name, f.also});
  return names;
}

}  // namespace

void ServeFlags::add_model(Flags& flags) {
  model.add(flags);
  compute.add(flags);
  flags.add("--data-parallel-size,--dp-size", &data_parallel, between(1, kMostEngines),
            "Engines that serve the model side by side: on as many GPUs from --gpu on, or with a part of a CPU's "
            "threads each. A request goes where most of its prompt is in the prefix cache. No text depends on it");
  flags.add("--gpus LIST", &gpus,
            "An engine on each of these GPUs: 0,2,3; with --pipeline-parallel-size N, on each N of them");
  flags.add("--mtp FILE", &o.mtp, kMtpFileHelp);
  vision.add(flags);
  EngineOptions& e = o.engine;
  flags
      .add("-a,--served-model-name,--alias NAME", &o.names,
           "What clients call the model; several names may be given (default: the file's name)")
      .lists();
  flags.add("-c,--max-model-len,--ctx-size", &e.context,
            "Longest sequence, prompt and answer; 0: what the model was trained for, or less if memory is short");
  rope.add(flags);
  flags.add("-np,--max-num-seqs,--parallel", &e.max_sequences,
            "Answers computed at once; 0: 16, on a GPU up to 256, as memory allows");
  flags.add("-b,--max-num-batched-tokens,--batch-size", &e.max_batch_tokens,
            "Tokens per step; 0: 512, on a GPU 2048 where memory allows. No text depends on it");
  flags.add("--pooling", chosen(&o.engine.pooling, kPoolings),
            "Embeddings: of a text's last token (last), or of all of them together (mean)");
  flags.add("!--no-repack", &e.repack, "With one or two sequences: save memory, generate slower");
}

void ServeFlags::add_cache(Flags& flags) {
  EngineOptions& e = o.engine;
  flags.add("--kv-tokens", &e.kv_tokens,
            "Size of the KV cache in tokens; 0: on a GPU what is left of its memory, else the "
            "larger of one context and 64k tokens");
  flags.add("--enable-prefix-caching,!--no-enable-prefix-caching", &e.prefix_cache,
            "Prompts that begin as earlier ones did are not computed again (default). No text depends on it");
  flags.add("--swap-space", &swap_space, between(0, kMostGib, "GiB"),
            "GiB of host memory for KV blocks of answers that make room for older ones; 0: answers "
            "pause instead");
  flags.add("--kv-offloading-size", &host_cache, between(0, kMostGib, "GiB"),
            "GiB of host memory for what the prefix cache has no room for on the device; 0: it is forgotten");
  flags.add("--first-token-first", &e.first_token_threshold,
            "When so many prompts wait for their first token, they go before answers' next tokens; 0: never. "
            "No text depends on it");
  flags.add("--prefix-cache-file FILE", &o.prefix_cache_file,
            "Keep the prefix cache in this file while the server is down; written at its end");
  flags.add("--prefix-cache-file-size", &prefix_file_size, above(0, kMostGib, "GiB"),
            "GiB that the file may have at most");
}

void ServeFlags::add_kv_events(Flags& flags) {
  server::KvEventOptions& k = o.kv_events;
  flags.add(
      "--kv-events-endpoint ENDPOINT", &k.endpoint,
      "Publish over ZeroMQ what the prefix cache holds, as vLLM does: listen at tcp://*:5557, @tcp://ADDRESS:5557 "
      "or ipc://PATH, or connect to tcp://HOST:5557");
  flags.add("--kv-events-replay-endpoint ENDPOINT", &k.replay_endpoint,
            "Listen there for subscribers that ask for what they have missed, such as tcp://*:5558");
  flags.add("--kv-events-topic TEXT", &k.topic, "Of all messages (default: kv@HOST@MODEL)");
  flags.add("--kv-events-buffer-steps", &k.buffer_steps, between(1, 1 << 20), "Batches that can be asked for again");
  flags.add(
      "--kv-events-format", chosen(&k.format, kKvEventFormats),
      "How they are written: batches as arrays, and events as maps with a type (tagged); or both as arrays, or maps");
  flags.add("--kv-events-token-ids", &k.token_ids,
            "Publish the tokens of prompts, which routers may need; without it hashes alone");
}

void ServeFlags::add_answers(Flags& flags) {
  flags
      .add("--system-headers NAME", &o.limits.system_headers,
           "Lines 'NAME: ...' at the beginning of a system prompt that the model does not see, such as "
           "those that clients count with; none: every line is part of the prompt")
      .separated();
  flags.add("--special-tokens-in-content", &o.special_in_content,
            "Control tokens such as <|im_end|> in messages are read as such, and not as text: whoever writes "
            "messages can then end a turn and begin another");
  flags.add("--generation-config model|none|FILE", &o.generation_config,
            "How requests are sampled that do not say: as the file recommends (model), as a "
            "generation_config.json or a folder with one does, or as the API defines it (none)");
  flags.add("-n,--max-output-tokens,--predict,--n-predict", &o.limits.max_output_tokens, at_least(0).or_else(-1, "any"),
            "Tokens of an answer whose request sets no limit; 0 or -1: as many as the context has room for");
  flags.add("--default-model", &o.limits.any_model,
            "Requests that name another model are answered by this one, for clients whose names are fixed: no 404");
  flags.add("--reasoning-format", chosen(&o.split_reasoning, kReasoningFormats),
            "auto: <think>...</think> goes into reasoning_content; none: it stays in the text");
  flags.add("--additional-properties", &o.limits.additional_properties,
            "Objects whose JSON schema has properties and says nothing of others may have any others, as the "
            "standard has it; without this flag they have none");
  const std::vector<ChosenMember::Name> parsers = tool_call_parsers();
  std::vector<std::string_view> formats;
  for (const ChosenMember::Name& p : parsers)
    if (p.name != kAuto) formats.push_back(p.name);
  flags.add("--tool-call-parser NAME", chosen_text(&o.tool_call_parser, parsers),
            fmt::format("How the model writes calls of tools: auto (as its chat template says), {}; vLLM's names for "
                        "these are understood",
                        joined_with_or(formats)));
  flags.add("--chat-template,--chat-template-file FILE", &o.chat_template_file,
            "Jinja file to use instead of the model's own chat template");
  flags
      .add("--allowed-media-domains HOST", &o.media_domains,
           "Hosts that pictures are fetched from which requests name by URL: images.example.org, 192.0.2.7:8080, "
           "localhost:9000. Without a port the usual ones; none by default")
      .separated()
      .lists();
  flags.add("--allowed-local-media-path FOLDER", &o.media_folder,
            "Pictures in this folder or below it may be named by file: URLs");
  flags.add("--media-ca FILE", &o.media_ca,
            "Certificates (PEM) to trust for hosts of --allowed-media-domains, beside the system's");
}

void ServeFlags::add_http(Flags& flags) {
  server::HttpServerOptions& h = o.http;
  flags.add("--host", &h.listen.host,
            "Numeric address to listen at; localhost, or 0.0.0.0 or :: for all; a name that ends in .sock is --uds");
  flags.add("--port", &h.listen.port, "0: any free one");
  flags.add("--uds PATH", &h.listen.unix_socket, "Listen at a unix domain socket, and at no address");
  flags.add("--uds-mode OCTAL", &uds_mode, "Who may connect to it, as chmod has it");
  flags.add("--http-threads,--threads-http", &h.threads, between(1, 256),
            "Threads that read requests and write answers");
  flags.add("--tokenizer-threads", &o.pool.threads, between(0, server::RequestPoolOptions::kMostThreads),
            "Threads for JSON, chat templates and tokenizing; 0: half as many as cores, from 2 to 4");
  flags.add(
      "--api-key-file FILE", &o.key_file,
      "File or pipe with one key a line, # for comments; every route but /, /health, /ping and /api/version needs one");
  flags.add("--metrics-without-key", &o.metrics_without_key, "With keys: /metrics needs none");
  flags.add("!--no-ui,!--no-webui", &o.page, "No chat at / for browsers");
  flags.add("--allowed-origins,--cors-origins LIST", &o.allowed_origins,
            "Whose pages may use the server from a browser (CORS), such as https://example.org; * for all");
  flags.add("--allowed-hosts LIST", &o.allowed_hosts,
            "Without keys at a loopback address: names besides localhost that requests may have as Host; "
            "* for all");
  flags.add("--ssl-certfile,--ssl-cert-file FILE", &h.certificate_file, "PEM file: serve HTTPS");
  flags.add("--ssl-keyfile,--ssl-key-file FILE", &h.key_file, "PEM file of the certificate's key");
  flags.add("--access-log FILE", &o.access_log,
            "One JSON line a request into this file, opened anew on SIGHUP; - for standard error");
  flags.add("--trace-steps FILE", &o.step_trace, "One JSON line a step of the engine into this file");
  flags.add("--no-access-log,--disable-uvicorn-access-log", &no_access_log, "Write no access log");
  flags.add("--exit-with-stdin", &o.exit_with_input,
            "End when standard input does, as on SIGTERM: what started the server holds a pipe to it");
  flags.add("--notify-socket PATH", &o.notify_socket, "Tell systemd when requests can be served (NOTIFY_SOCKET)");
}

void ServeFlags::add_limits(Flags& flags) {
  server::HttpServerOptions& h = o.http;
  server::RequestLimits& l = o.limits;
  flags.add("--max-queue", &o.max_queue, "Answers that may wait; beyond it 429");
  flags.add("--max-body-bytes", &h.session.limits.max_body_bytes, between(1024, 1 << 30),
            "Of a request; beyond it 413");
  flags.add("--max-priority", &l.max_priority, between(-server::kLastPriority, server::kLastPriority),
            "The lowest number that requests may have as 'priority': lower ones start first");
  flags.add("--max-logprobs", &l.max_logprobs, between(0, 1000), "Alternatives of one token");
  flags.add("--strict-parameters", &l.strict_parameters,
            "Refuse requests with fields that this server does not know, instead of ignoring these");
  flags.add("--limits FILE", &limits_file,
            "JSON file with limits that few servers change: of connections, of one request, timeouts, "
            "states of the prefix cache. docs/server-limits.md lists them");
  flags.add("--responses-store-bytes", &o.responses.max_bytes,
            "Of responses that clients may go on from or fetch, in memory; 0: none is kept");
  flags.add("--responses-store-time", &responses_time, between(0, kMostSeconds, "seconds"),
            "Seconds that a response is kept since its last use");
  flags.add("--request-timeout", &request_timeout, between(0, kMostSeconds, "seconds"),
            "Seconds one answer may take; 0: any");
  flags.add("--drain-timeout", &drain_timeout, between(0, kMostSeconds, "seconds"),
            "Seconds to finish what was accepted after SIGTERM");
}

void ServeFlags::add(Flags& flags) {
  flags.group("Model and steps");
  add_model(flags);
  flags.group("Memory and what is remembered");
  add_cache(flags);
  flags.group("Prompts and answers");
  add_answers(flags);
  flags.group(kHttpGroup);
  add_http(flags);
  flags.group(kRoutersGroup);
  add_kv_events(flags);
  flags.group("Limits");
  add_limits(flags);
  flags.footer(fmt::format(
      "Four APIs, of OpenAI (its Responses too), Anthropic and Ollama, and a page to chat at (/). All routes: "
      "{}. See docs/server.md and docs/server-api.md.",
      server::routes_text()));
}

// The GPUs of each engine, one engine's behind the other's.
Result<std::vector<int>> ServeFlags::engines_on() const {
  std::vector<int> all;
  if (gpus.empty()) {
    for (int i = 0; i < data_parallel * compute.layers.stages; ++i) all.push_back(model.gpu + i);
    return all;
  }
  const char *at = gpus.data(), *const end = at + gpus.size();
  while (at != nullptr) {
    int number = -1;
    const auto [next, failed] = std::from_chars(at, end, number);
    if (failed != std::errc() || number < 0 || (next != end && *next != ','))
      return request_error("--gpus {}: must be numbers of GPUs, as in 0,2,3", gpus);
    all.push_back(number);
    at = next == end ? nullptr : next + 1;
  }
  const auto count = static_cast<int>(all.size()), each = compute.layers.stages;
  if (count % each != 0)
    return request_error("--gpus {}: {} GPUs, and each engine has {} (--pipeline-parallel-size)", gpus, count, each);
  if (data_parallel > 1 && data_parallel * each != count)
    return request_error("--gpus {}: {} GPUs, and --data-parallel-size asks for {} engines", gpus, count,
                         data_parallel);
  if (count / each > kMostEngines) return request_error("--gpus: at most {} engines", kMostEngines);
  return all;
}

Result<server::ServeOptions> ServeFlags::parsed() const {
  server::ServeOptions s = o;
  s.model = model.model;
  QUIRE_TRY(const Place place, model.place());
  model.apply(place, s.engine);
  s.why_no_gpu = place.why_no_gpu;
  QUIRE_TRY(s.gpus, engines_on());
  QUIRE_CHECKED(compute.apply(s.engine));
  QUIRE_TRY(s.rope, rope.parsed());
  s.mmproj = vision.mmproj;
  s.vision = vision.vision;
  s.pictures = vision.pictures;
  s.grammars.program = "/proc/self/exe";
  const auto bytes = [](double gib) { return static_cast<int64_t>(gib * (1 << 30)); };
  s.engine.swap_bytes = bytes(swap_space);
  s.engine.prefix_host_bytes = bytes(host_cache);
  s.prefix_cache_file_bytes = bytes(prefix_file_size);
  if (!s.prefix_cache_file.empty() && !s.engine.prefix_cache)
    return request_error("--prefix-cache-file keeps the prefix cache, which is switched off");
  QUIRE_CHECKED(server::check_kv_events(s.kv_events));
  if (!s.kv_events.endpoint.empty() && !s.engine.prefix_cache)
    return request_error("--kv-events-endpoint publishes what the prefix cache holds, which is switched off");
  QUIRE_CHECKED(read_headers(s.limits.system_headers));
  QUIRE_TRY(s.limits.media, server::MediaPolicy::create(s.media_domains, s.media_folder));
  if (!s.media_ca.empty() && s.media_domains.empty())
    return request_error("--media-ca: nothing is fetched; --allowed-media-domains lists hosts");
  unsigned& mode = s.http.listen.unix_socket_mode;
  const auto [end, failed] = std::from_chars(uds_mode.data(), uds_mode.data() + uds_mode.size(), mode, 8);
  if (failed != std::errc() || end != uds_mode.data() + uds_mode.size() || mode > 0777)
    return request_error("--uds-mode {}: must be an octal number such as 0600 or 0660", uds_mode);
  if (s.http.listen.unix_socket.empty() && s.http.listen.host.ends_with(".sock"))
    s.http.listen.unix_socket = std::exchange(s.http.listen.host, {});
  if (no_access_log) s.access_log = "off";
  if (s.metrics_without_key && s.key_file.empty())
    return request_error("--metrics-without-key: there are no keys; --api-key-file gives the server some");
  const auto time = [](double seconds) { return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)); };
  s.request_timeout = time(request_timeout);
  s.responses.keep = time(responses_time);
  s.drain_timeout = time(drain_timeout);
  if (!limits_file.empty()) QUIRE_CHECKED(server::read_limits(limits_file, s));
  const server::HttpLimits& limits = s.http.session.limits;
  if (s.http.max_total_body_bytes < limits.max_body_bytes)
    return request_error("max_total_body_bytes of the limits is {}: must be at least --max-body-bytes ({})",
                         s.http.max_total_body_bytes, limits.max_body_bytes);
  s.pool.max_waiting_bytes = s.http.max_total_body_bytes;
  s.pool.max_running_bytes = limits.max_body_bytes;
  s.media.max_waiting_bytes = s.http.max_total_body_bytes;
  s.engine.max_prompt_logprobs = s.limits.max_logprobs;
  return s;
}

}  // namespace quire::cli
