// `quire serve` without its command line: loads a model, answers HTTP, ends on a signal.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "constraint/grammar_cache.h"
#include "engine/engine.h"
#include "server/engine_group.h"
#include "server/http_server.h"
#include "server/kv_event_publisher.h"
#include "server/media/media_options.h"
#include "server/protocol/generation_params.h"
#include "server/request_pool.h"
#include "server/response_store.h"

namespace quire::server {

struct ServeOptions {
  ServeOptions() {
    engine.prefix_cache = true;
    engine.volatile_tail = 8;  // templates end a prompt with a header that the next turn may not repeat
  }
  std::string model;  // GGUF file
  std::string mtp;    // another with the block for multi-token prediction; empty: the model's own
  // The vision tower: a file; where that is empty, what the model has beside it or in its folder, unless `vision` is
  // false.
  std::string mmproj;
  bool vision = true;
  PictureOptions pictures;
  RopeOverride rope;               // of positions, in place of the file's
  std::vector<std::string> names;  // what clients call it; empty: the file's name
  std::string chat_template_file;  // instead of the model's own
  // Where not empty: the folder that the chat template's file must lie in, or below. Who names it is not who runs the
  // server.
  std::string files_within;
  // Whose recommendation fills in what requests leave open: "model", "none" (the API's defaults), or the path of a
  // generation_config.json or of a folder that has one. vLLM's "auto" and "vllm" are the first two.
  std::string generation_config = "model";
  std::string tool_call_parser = "auto";  // how the model writes calls of tools: a format's name, or by its template
  bool special_in_content = false;        // control tokens in messages are such, and not text
  std::string key_file;                   // API keys
  bool metrics_without_key = false;
  std::string allowed_origins, allowed_hosts;  // lists (origin_policy.h)
  std::string access_log = "-";
  std::string step_trace;        // a file for a record of every step; empty: none
  std::string notify_socket;     // of systemd
  bool exit_with_input = false;  // the end of standard input asks for the end, as SIGTERM does
  EngineOptions engine;
  // The GPUs of all engines that serve, EngineOptions::pipeline_parallel of them for each. Empty: one engine, on those
  // of `engine`.
  std::vector<int> gpus;
  std::string why_no_gpu;  // where one would have been taken; empty: nobody asked, or there is one
  RequestLimits limits;
  GrammarCacheOptions grammars;
  HttpServerOptions http;
  RequestPoolOptions pool;
  ResponseStoreOptions responses;
  MediaOptions media;  // how pictures are fetched. From where: `media_domains` and `media_folder` (media_policy.h)
  std::vector<std::string> media_domains;
  std::string media_folder;
  std::string media_ca;  // certificates (PEM) that are trusted beside the system's
  size_t max_queue = 256;
  std::string prefix_cache_file;        // keeps the prefix cache while the server is down; empty: none does
  int64_t prefix_cache_file_bytes = 0;  // that it has at most
  KvEventOptions kv_events;
  bool split_reasoning = true;
  bool page = true;  // a chat at "/", for browsers
  std::chrono::milliseconds request_timeout{600'000};
  std::chrono::milliseconds drain_timeout{30'000};
};

// A file's text as a chat template; none if the path is empty. `within`: ServeOptions::files_within.
Result<std::string> read_template(const std::string& path, const std::string& within);
// Everything that follows from a model file: its engine, its service, and requests that `api` serves from now on.
// `chat_template`: instead of the model's own, if not empty. `trace` may be null.
Status load_into(const ServeOptions& options, std::string chat_template, std::shared_ptr<StepTrace> trace, Api& api,
                 Registry& registry, std::shared_ptr<EngineGroup>& service);
// The same of a model that is loaded already.
Status serve_model(const ServeOptions& options, const std::shared_ptr<const LoadedModel>& model,
                   std::string chat_template, std::shared_ptr<StepTrace> trace, Api& api, Registry& registry,
                   std::shared_ptr<EngineGroup>& service);

// Runs until SIGTERM, SIGINT or (exit_with_input) the end of standard input, then finishes what was accepted within
// drain_timeout; a second signal ends the process at once. SIGHUP opens logs anew. Errors: what keeps it from starting.
Status serve(const ServeOptions& options);

// Every route once: "GET /health, /metrics; POST /v1/chat/completions, ...".
std::string routes_text();

}  // namespace quire::server
