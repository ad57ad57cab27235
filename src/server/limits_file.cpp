#include "server/limits_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "convert/json.h"
#include "core/escape.h"

namespace quire::server {
namespace {

constexpr double kGib = 1 << 30;
constexpr Limit kLimits[] = {
    {"header_timeout", "s", 0.001, 1e6, [](ServeOptions& o) -> LimitOption { return &o.http.session.header_timeout; },
     "for a request's headers to arrive"},
    {"body_timeout", "s", 0.001, 1e6, [](ServeOptions& o) -> LimitOption { return &o.http.session.body_timeout; },
     "for its body to arrive"},
    {"idle_timeout", "s", 0.001, 1e6, [](ServeOptions& o) -> LimitOption { return &o.http.session.idle_timeout; },
     "between requests of a connection"},
    {"write_timeout", "s", 0.001, 1e6, [](ServeOptions& o) -> LimitOption { return &o.http.session.write_timeout; },
     "for a client to read what was sent"},
    {"keep_alive_interval", "s", 0.001, 1e6, [](ServeOptions& o) -> LimitOption { return &o.http.session.keep_alive; },
     "between comments in a silent stream"},
    {"max_connections", "", 1, 1e6, [](ServeOptions& o) -> LimitOption { return &o.http.max_connections; },
     "connections, and fewer where the process may not have as many descriptors. Beyond them the one that has been "
     "without a request the longest is closed for a new one. Where none is idle, 8 further ones may ask for "
     "`/health`, `/ping`, `/metrics` and `/load`, once each within 2 s; beyond these they are closed at once"},
    {"max_header_bytes", "bytes", 1024, 1 << 20,
     [](ServeOptions& o) -> LimitOption { return &o.http.session.limits.max_header_bytes; },
     "of a request's headers; beyond it 431"},
    {"max_total_body_bytes", "bytes", 1024, 64 * kGib,
     [](ServeOptions& o) -> LimitOption { return &o.http.max_total_body_bytes; },
     "of all bodies that are being read, or wait to be parsed; at least `--max-body-bytes`; beyond it 503"},
    {"max_unread", "", 2, 1e6, [](ServeOptions& o) -> LimitOption { return &o.pool.max_waiting; },
     "requests that wait to be parsed and tokenized; beyond it 503. Of one client half as many; beyond it 429"},
    {"max_n", "", 1, 1024, [](ServeOptions& o) -> LimitOption { return &o.limits.max_n; }, "answers to one prompt"},
    {"max_prompts", "", 1, 1024, [](ServeOptions& o) -> LimitOption { return &o.limits.max_prompts; },
     "prompts of one request"},
    {"max_inputs", "", 1, 65536, [](ServeOptions& o) -> LimitOption { return &o.limits.max_inputs; },
     "inputs of one request for embeddings"},
    {"max_stops", "", 1, 1024, [](ServeOptions& o) -> LimitOption { return &o.limits.max_stops; },
     "stop texts of one request"},
    {"max_images", "", 1, 65536, [](ServeOptions& o) -> LimitOption { return &o.limits.max_images; },
     "pictures of one request"},
    {"max_image_bytes", "bytes", 1024, 1 << 30,
     [](ServeOptions& o) -> LimitOption { return &o.limits.image.max_bytes; }, "of one picture's file"},
    {"max_image_pixels", "", 1024, 1 << 28, [](ServeOptions& o) -> LimitOption { return &o.limits.image.max_pixels; },
     "of one picture as it is sent; 3 bytes each while it is decoded"},
    {"max_image_memory", "bytes", 1 << 20, 256 * kGib,
     [](ServeOptions& o) -> LimitOption { return &o.limits.max_image_memory; },
     "of all decoded pictures, those of requests that wait and a quarter of it for later turns; 3 bytes a pixel of "
     "what the model sees. Beyond it 503"},
    {"media_fetch_timeout", "s", 0.1, 3600, [](ServeOptions& o) -> LimitOption { return &o.media.timeout; },
     "to fetch all pictures that a request names by URL"},
    {"media_fetches", "", 1, 256, [](ServeOptions& o) -> LimitOption { return &o.media.threads; },
     "pictures that are fetched at once, each by a thread of its own; of one client half as many"},
    {"max_media_requests", "", 1, 65536, [](ServeOptions& o) -> LimitOption { return &o.media.max_waiting; },
     "requests whose pictures are being fetched; beyond it 503. Of one client half as many; beyond it 429"},
    {"max_media_bytes", "bytes", 1024, 64 * kGib,
     [](ServeOptions& o) -> LimitOption { return &o.media.max_request_bytes; },
     "of the pictures that one request names by URL, together"},
    {"max_total_media_bytes", "bytes", 1024, 64 * kGib,
     [](ServeOptions& o) -> LimitOption { return &o.media.max_total_bytes; },
     "of fetched pictures of all requests, until they are decoded; beyond it 503"},
    {"max_tools", "", 1, 65536, [](ServeOptions& o) -> LimitOption { return &o.limits.max_tools; },
     "tools of one request"},
    {"max_schema_bytes", "bytes", 1024, 1 << 24,
     [](ServeOptions& o) -> LimitOption { return &o.limits.max_schema_bytes; },
     "of a request's tools as JSON, and of a schema or grammar"},
    {"grammar_compile_time", "s", 0.01, 1e6, [](ServeOptions& o) -> LimitOption { return &o.grammars.limits.time; },
     "to compile a schema or grammar; beyond it 400"},
    {"grammar_cache_bytes", "bytes", 1 << 20, 64 * kGib,
     [](ServeOptions& o) -> LimitOption { return &o.grammars.cache_bytes; },
     "of compiled grammars that are kept for later requests; no more than an eighth of the memory there is"},
    {"max_call_bytes", "bytes", 1024, 1 << 24, [](ServeOptions& o) -> LimitOption { return &o.limits.max_call_bytes; },
     "of one call that a model writes; a longer one is text"},
    {"prefix_cache_states", "", -1, 65536, [](ServeOptions& o) -> LimitOption { return &o.engine.state_checkpoints; },
     "recurrent states that the prefix cache keeps, for models that have them, or places for whose windows there are "
     "blocks; -1: four for each answer"},
    {"prefix_cache_tail", "", 0, 1e6, [](ServeOptions& o) -> LimitOption { return &o.engine.volatile_tail; },
     "tokens at a prompt's end that differ from turn to turn: the state is saved before them"},
};

std::vector<std::string_view> names() {
  std::vector<std::string_view> all;
  for (const Limit& l : kLimits) all.push_back(l.name);
  return all;
}

}  // namespace

double Limit::get(const ServeOptions& o) const {
  const auto value = [](const auto* v) -> double {
    if constexpr (std::is_same_v<decltype(v), const std::chrono::milliseconds*>)
      return static_cast<double>(v->count()) / 1000;
    else
      return static_cast<double>(*v);
  };
  return std::visit(value, option(const_cast<ServeOptions&>(o)));  // which is only read
}

void Limit::set(ServeOptions& o, double v) const {
  const auto take = [&](auto* to) {
    if constexpr (std::is_same_v<decltype(to), std::chrono::milliseconds*>)
      *to = std::chrono::milliseconds(static_cast<int64_t>(v * 1000));
    else
      *to = static_cast<std::remove_pointer_t<decltype(to)>>(v);
  };
  std::visit(take, option(o));
}

std::span<const Limit> limits() {
  return kLimits;
}

Status read_limits(const std::string& path, ServeOptions& to) {
  QUIRE_TRY(const nlohmann::json file, convert::read_json_object(path));
  for (const auto& [key, value] : file.items()) {
    const auto limit =
        std::find_if(std::begin(kLimits), std::end(kLimits), [&](const Limit& l) { return l.name == key; });
    if (limit == std::end(kLimits))
      return request_error("--limits {}: there is no limit '{}'; there are {}", path, escaped(key, 60),
                           fmt::join(names(), ", "));
    const bool fractions = limit->unit == "s";
    const double v = value.is_number() ? value.get<double>() : NAN;
    if (!(v >= limit->least && v <= limit->most) || (!fractions && v != std::floor(v)))
      return request_error("--limits {}: '{}' must be a {}number from {} to {}{}, not {}", path, key,
                           fractions ? "" : "whole ", limit->least, limit->most,
                           limit->unit.empty() ? "" : fmt::format(" {}", fractions ? "seconds" : limit->unit),
                           escaped(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 60));
    limit->set(to, v);
  }
  return {};
}

}  // namespace quire::server
