// quire serve: a model over HTTP, for clients of the OpenAI API.
#include "server/serve.h"

#include <charconv>

#include "cli/command.h"
#include "cli/serve_flags.h"
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

}  // namespace

void ServeFlags::add_model(CLI::App& app) {
  model.add(app);
  compute.add(app);
  app.add_option("--mtp", o.mtp, kMtpFileHelp)->type_name("FILE");
  EngineOptions& e = o.engine;
  app.add_option("-a,--served-model-name,--alias", o.names,
                 "What clients call the model; several names may be given (default: the file's name)")
      ->type_name("NAME");
  app.add_option("-c,--max-model-len,--ctx-size", e.context,
                 "Longest sequence, prompt and answer; 0: what the model was trained for, or less if memory is short")
      ->capture_default_str();
  rope.add(app);
  app.add_option("--max-num-seqs,--parallel", e.max_sequences,
                 "Answers computed at once; -np is the same; 0: 16, on a GPU up to 256, as memory allows")
      ->capture_default_str();
  app.add_option("-b,--max-num-batched-tokens,--batch-size", e.max_batch_tokens,
                 "Tokens per step; 0: 512, on a GPU 2048 where memory allows. No text depends on it")
      ->capture_default_str();
  app.add_option("--pooling", pooling, "Embeddings: of a text's last token (last), or of all of them together (mean)")
      ->capture_default_str();
  app.add_flag("!--no-repack", e.repack, "With one or two sequences: save memory, generate slower");
}

void ServeFlags::add_cache(CLI::App& app) {
  EngineOptions& e = o.engine;
  app.add_option("--kv-tokens", e.kv_tokens,
                 "Size of the KV cache in tokens; 0: on a GPU what is left of its memory, else the "
                 "larger of one context and 64k tokens")
      ->capture_default_str();
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", e.prefix_cache,
               "Prompts that begin as earlier ones did are not computed again (default). No text depends on it")
      ->capture_default_str();
  app.add_option("--swap-space", swap_space,
                 "GiB of host memory for KV blocks of answers that make room for older ones; 0: answers "
                 "pause instead")
      ->capture_default_str();
  app.add_option("--kv-offloading-size", host_cache,
                 "GiB of host memory for what the prefix cache has no room for on the device; 0: it is forgotten")
      ->capture_default_str();
  app.add_option("--first-token-first", e.first_token_threshold,
                 "When so many prompts wait for their first token, they go before answers' next tokens; 0: never. "
                 "No text depends on it")
      ->capture_default_str();
  app.add_option("--prefix-cache-file", o.prefix_cache_file,
                 "Keep the prefix cache in this file while the server is down; written at its end")
      ->type_name("FILE");
  app.add_option("--prefix-cache-file-size", prefix_file_size, "GiB that the file may have at most")
      ->capture_default_str();
}

void ServeFlags::add_answers(CLI::App& app) {
  app.add_option("--system-headers", o.limits.system_headers,
                 "Lines 'NAME: ...' at the beginning of a system prompt that the model does not see, such as "
                 "those that clients count with; none: every line is part of the prompt")
      ->type_name("NAME")
      ->delimiter(',')
      ->capture_default_str();
  app.add_flag("--special-tokens-in-content", o.special_in_content,
               "Control tokens such as <|im_end|> in messages are read as such, and not as text: whoever writes "
               "messages can then end a turn and begin another");
  app.add_option("--generation-config", o.generation_config,
                 "How requests are sampled that do not say: as the file recommends (model), as a "
                 "generation_config.json or a folder with one does, or as the API defines it (none)")
      ->type_name("model|none|FILE")
      ->capture_default_str();
  app.add_option("-n,--max-output-tokens,--predict,--n-predict", o.limits.max_output_tokens,
                 "Tokens of an answer whose request sets no limit; 0 or -1: as many as the context has room for")
      ->capture_default_str();
  app.add_flag("--default-model", o.limits.any_model,
               "Requests that name another model are answered by this one, for clients whose names are fixed: no 404");
  app.add_option("--reasoning-format", reasoning,
                 "auto: <think>...</think> goes into reasoning_content; none: it stays in the text")
      ->capture_default_str();
  app.add_flag("--additional-properties", o.limits.additional_properties,
               "Objects whose JSON schema has properties and says nothing of others may have any others, as the "
               "standard has it; without this flag they have none");
  app.add_option(
         "--tool-call-parser", o.tool_call_parser,
         "How the model writes calls of tools: auto (as its chat template says), qwen3_xml, hermes, llama3_json, "
         "mistral, harmony or json; vLLM's names for these are understood")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--chat-template,--chat-template-file", o.chat_template_file,
                 "Jinja file to use instead of the model's own chat template")
      ->type_name("FILE");
}

void ServeFlags::add_http(CLI::App& app) {
  server::HttpServerOptions& h = o.http;
  app.add_option("--host", h.listen.host, "Numeric address to listen at; localhost, or 0.0.0.0 or :: for all")
      ->capture_default_str();
  app.add_option("--port", h.listen.port, "0: any free one")->capture_default_str();
  app.add_option("--uds", h.listen.unix_socket, "Listen at a unix domain socket, and at no address")->type_name("PATH");
  app.add_option("--uds-mode", uds_mode, "Who may connect to it, as chmod has it")
      ->type_name("OCTAL")
      ->capture_default_str();
  app.add_option("--http-threads,--threads-http", h.threads, "Threads that read requests and write answers")
      ->capture_default_str();
  app.add_option("--tokenizer-threads", o.pool.threads,
                 "Threads for JSON, chat templates and tokenizing; 0: half as many as cores, from 2 to 4")
      ->capture_default_str();
  app.add_option("--api-key-file", o.key_file,
                 "File or pipe with one key a line, # for comments; every route but /health needs one")
      ->type_name("FILE");
  app.add_flag("--metrics-without-key", o.metrics_without_key, "With keys: /metrics needs none");
  app.add_flag("!--no-ui,!--no-webui", o.page, "No chat at / for browsers");
  app.add_option("--allowed-origins,--cors-origins", o.allowed_origins,
                 "Whose pages may use the server from a browser (CORS), such as https://example.org; * for all")
      ->type_name("LIST");
  app.add_option("--allowed-hosts", o.allowed_hosts,
                 "Without keys at a loopback address: names besides localhost that requests may have as Host; "
                 "* for all")
      ->type_name("LIST");
  app.add_option("--ssl-certfile,--ssl-cert-file", h.certificate_file, "PEM file: serve HTTPS")->type_name("FILE");
  app.add_option("--ssl-keyfile,--ssl-key-file", h.key_file, "PEM file of the certificate's key")->type_name("FILE");
  app.add_option("--access-log", o.access_log,
                 "One JSON line a request into this file, opened anew on SIGHUP; - for standard error")
      ->type_name("FILE")
      ->capture_default_str();
  app.add_option("--trace-steps", o.step_trace, "One JSON line a step of the engine into this file")->type_name("FILE");
  app.add_flag("--no-access-log,--disable-uvicorn-access-log", no_access_log, "Write no access log");
  app.add_option("--notify-socket", o.notify_socket, "Tell systemd when requests can be served (NOTIFY_SOCKET)")
      ->type_name("PATH");
}

void ServeFlags::add_limits(CLI::App& app) {
  server::HttpServerOptions& h = o.http;
  server::RequestLimits& l = o.limits;
  app.add_option("--max-queue", o.max_queue, "Answers that may wait; beyond it 429")->capture_default_str();
  app.add_option("--max-body-bytes", h.session.limits.max_body_bytes, "Of a request; beyond it 413")
      ->capture_default_str();
  app.add_option("--max-priority", l.max_priority,
                 "The lowest number that requests may have as 'priority': lower ones start first")
      ->capture_default_str();
  app.add_option("--max-logprobs", l.max_logprobs, "Alternatives of one token")->capture_default_str();
  app.add_flag("--strict-parameters", l.strict_parameters,
               "Refuse requests with fields that this server does not know, instead of ignoring these");
  app.add_option("--limits", limits_file,
                 "JSON file with limits that few servers change: of connections, of one request, timeouts, "
                 "states of the "
                 "prefix cache. docs/server.md lists them")
      ->type_name("FILE");
  app.add_option("--responses-store-bytes", o.responses.max_bytes,
                 "Of responses that clients may go on from or fetch, in memory; 0: none is kept")
      ->capture_default_str();
  app.add_option("--responses-store-time", responses_time, "Seconds that a response is kept since its last use")
      ->capture_default_str();
  app.add_option("--request-timeout", request_timeout, "Seconds one answer may take; 0: any")->capture_default_str();
  app.add_option("--drain-timeout", drain_timeout, "Seconds to finish what was accepted after SIGTERM")
      ->capture_default_str();
}

void ServeFlags::add(CLI::App& app) {
  const auto group = [&](const char* name) {  // of all options since the last one
    for (CLI::Option* const option : app.get_options())
      if (option->get_group() == "Options" && option != app.get_help_ptr()) option->group(name);
  };
  add_model(app);
  group("Model and steps");
  add_cache(app);
  group("Memory and what is remembered");
  add_answers(app);
  group("Prompts and answers");
  add_http(app);
  group("HTTP");
  add_limits(app);
  group("Limits");
  app.footer(
      "Four APIs and a page to chat at (/): OpenAI's /v1/chat/completions, /v1/completions, /v1/embeddings and "
      "/v1/models, its /v1/responses, Anthropic's /v1/messages, and Ollama's /api/...; and /health, /metrics, "
      "/version, "
      "/props and others. See docs/server.md.");
}

Result<server::ServeOptions> ServeFlags::parsed() const {
  server::ServeOptions s = o;
  s.model = model.model;
  QUIRE_TRY(s.engine.device, model.parsed_device());
  s.engine.gpu = model.gpu;
  QUIRE_CHECKED(compute.apply(s.engine));
  QUIRE_TRY(s.rope, rope.parsed());
  QUIRE_TRY(s.engine.kernels, model.parsed_kernels());
  s.engine.threads = model.threads;
  s.grammars.program = "/proc/self/exe";
  constexpr double kGib = 1 << 30;
  for (const auto& [name, gib, bytes] : {std::tuple{"--swap-space", swap_space, &s.engine.swap_bytes},
                                         {"--kv-offloading-size", host_cache, &s.engine.prefix_host_bytes}}) {
    if (!(gib >= 0 && gib <= 65536)) return request_error("{} {}: must be between 0 and 65536 GiB", name, gib);
    *bytes = static_cast<int64_t>(gib * kGib);
  }
  if (!(prefix_file_size > 0 && prefix_file_size <= 65536))
    return request_error("--prefix-cache-file-size {}: must be above 0 and at most 65536 GiB", prefix_file_size);
  s.prefix_cache_file_bytes = static_cast<int64_t>(prefix_file_size * kGib);
  if (!s.prefix_cache_file.empty() && !s.engine.prefix_cache)
    return request_error("--prefix-cache-file keeps the prefix cache, which is switched off");
  QUIRE_CHECKED(read_headers(s.limits.system_headers));
  unsigned& mode = s.http.listen.unix_socket_mode;
  const auto [end, failed] = std::from_chars(uds_mode.data(), uds_mode.data() + uds_mode.size(), mode, 8);
  if (failed != std::errc() || end != uds_mode.data() + uds_mode.size() || mode > 0777)
    return request_error("--uds-mode {}: must be an octal number such as 0600 or 0660", uds_mode);
  if (no_access_log) s.access_log = "off";
  if (s.metrics_without_key && s.key_file.empty())
    return request_error("--metrics-without-key: there are no keys; --api-key-file gives the server some");
  if (s.limits.max_output_tokens < -1)
    return request_error("--max-output-tokens {}: must be a number of tokens, or 0 or -1 for any",
                         s.limits.max_output_tokens);
  if (reasoning != "auto" && reasoning != "none")
    return request_error("--reasoning-format {}: must be auto or none", reasoning);
  s.split_reasoning = reasoning == "auto";
  if (s.tool_call_parser != "auto" && server::find_tool_format(s.tool_call_parser) == nullptr)
    return request_error(
        "--tool-call-parser {}: must be auto, qwen3_xml, hermes, llama3_json, mistral, harmony or json",
        s.tool_call_parser);
  if (pooling != "last" && pooling != "mean") return request_error("--pooling {}: must be last or mean", pooling);
  s.engine.pooling = pooling == "mean" ? Pooling::kMean : Pooling::kLast;
  for (const auto& [name, seconds, to] : {std::tuple{"--request-timeout", request_timeout, &s.request_timeout},
                                          {"--responses-store-time", responses_time, &s.responses.keep},
                                          {"--drain-timeout", drain_timeout, &s.drain_timeout}}) {
    if (!(seconds >= 0 && seconds <= 1e6))
      return request_error("{} {}: must be a number of seconds, at most a million", name, seconds);
    *to = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  }
  if (!limits_file.empty()) QUIRE_CHECKED(server::read_limits(limits_file, s));
  const server::HttpLimits& limits = s.http.session.limits;
  if (limits.max_body_bytes < 1024 || limits.max_body_bytes > (size_t{1} << 30))
    return request_error("--max-body-bytes {}: must be between 1024 and {}", limits.max_body_bytes, 1 << 30);
  if (s.http.max_total_body_bytes < limits.max_body_bytes)
    return request_error("max_total_body_bytes of the limits is {}: must be at least --max-body-bytes ({})",
                         s.http.max_total_body_bytes, limits.max_body_bytes);
  if (s.http.threads < 1 || s.http.threads > 256)
    return request_error("--http-threads {}: must be between 1 and 256", s.http.threads);
  if (s.pool.threads < 0 || s.pool.threads > server::RequestPoolOptions::kMostThreads)
    return request_error("--tokenizer-threads {}: must be between 0 and {}", s.pool.threads,
                         server::RequestPoolOptions::kMostThreads);
  s.pool.max_waiting_bytes = s.http.max_total_body_bytes;
  s.pool.max_running_bytes = limits.max_body_bytes;
  if (s.limits.max_priority < -server::kLastPriority || s.limits.max_priority > server::kLastPriority)
    return request_error("--max-priority {}: must be between {} and {}", s.limits.max_priority, -server::kLastPriority,
                         server::kLastPriority);
  if (s.limits.max_logprobs < 0 || s.limits.max_logprobs > 1000)
    return request_error("--max-logprobs {}: must be between 0 and 1000", s.limits.max_logprobs);
  s.engine.max_prompt_logprobs = s.limits.max_logprobs;
  return s;
}

Action add_serve(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  flags->add(app);
  return [flags]() -> Status {
    QUIRE_TRY(const server::ServeOptions o, flags->parsed());
    return server::serve(o);
  };
}

}  // namespace quire::cli
