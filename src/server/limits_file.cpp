#include "server/limits_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "convert/json.h"
#include "core/escape.h"

namespace quire::server {
namespace {

// The ways from a row of the table to its option.
template <auto Option>
constexpr Limit seconds(std::string_view name, double least, std::string_view help) {
  return {
      name,
      "s",
      least,
      1e6,
      help,
      [](const ServeOptions& o) { return static_cast<double>(Option(const_cast<ServeOptions&>(o)).count()) / 1000; },
      [](ServeOptions& o, double v) { Option(o) = std::chrono::milliseconds(static_cast<int64_t>(v * 1000)); }};
}
template <auto Option>
constexpr Limit whole(std::string_view name, std::string_view unit, double least, double most, std::string_view help) {
  return {name,
          unit,
          least,
          most,
          help,
          [](const ServeOptions& o) { return static_cast<double>(Option(const_cast<ServeOptions&>(o))); },
          [](ServeOptions& o, double v) {
            auto& option = Option(o);
            option = static_cast<std::remove_reference_t<decltype(option)>>(v);
          }};
}

constexpr double kGib = 1 << 30;
const Limit kLimits[] = {seconds < [](ServeOptions & o) -> auto& {return o.http.session.header_timeout;
}  // namespace
> ("header_timeout", 0.001, "for a request's headers to arrive"), seconds < [](ServeOptions& o) -> auto& {
  return o.http.session.body_timeout;
}
> ("body_timeout", 0.001, "for its body to arrive"), seconds < [](ServeOptions& o) -> auto& {
  return o.http.session.idle_timeout;
}
> ("idle_timeout", 0.001, "between requests of a connection"), seconds < [](ServeOptions& o) -> auto& {
  return o.http.session.write_timeout;
}
> ("write_timeout", 0.001, "for a client to read what was sent"), seconds < [](ServeOptions& o) -> auto& {
  return o.http.session.keep_alive;
}
> ("keep_alive_interval", 0.001, "between comments in a silent stream"), whole < [](ServeOptions& o) -> auto& {
  return o.http.max_connections;
}
> ("max_connections", "", 1, 1e6,
   "connections, and fewer where the process may not have as many descriptors. Beyond them the one that has been "
   "without a request the longest is closed for a new one. Where none is idle, 8 further ones may ask for `/health`, "
   "`/ping`, `/metrics` and `/load`, once each within 2 s; beyond these they are closed at once"),
    whole < [](ServeOptions& o) -> auto& {
  return o.http.session.limits.max_header_bytes;
}
> ("max_header_bytes", "bytes", 1024, 1 << 20, "of a request's headers; beyond it 431"), whole < [
](ServeOptions& o) -> auto& {
  return o.http.max_total_body_bytes;
}
> ("max_total_body_bytes", "bytes", 1024, 64 * kGib,
   "of all bodies that are being read, or wait to be parsed; at least `--max-body-bytes`; beyond it 503"),
    whole < [](ServeOptions& o) -> auto& {
  return o.pool.max_waiting;
}
> ("max_unread", "", 2, 1e6,
   "requests that wait to be parsed and tokenized; beyond it 503. Of one client half as many; beyond it 429"),
    whole < [](ServeOptions& o) -> auto& {
  return o.limits.max_n;
}
> ("max_n", "", 1, 1024, "answers to one prompt"), whole < [](ServeOptions& o) -> auto& {
  return o.limits.max_prompts;
}
> ("max_prompts", "", 1, 1024, "prompts of one request"), whole < [](ServeOptions& o) -> auto& {
  return o.limits.max_inputs;
}
> ("max_inputs", "", 1, 65536, "inputs of one request for embeddings"), whole < [](ServeOptions& o) -> auto& {
  return o.limits.max_stops;
}
> ("max_stops", "", 1, 1024, "stop texts of one request"), whole < [](ServeOptions& o) -> auto& {
  return o.limits.max_tools;
}
> ("max_tools", "", 1, 65536, "tools of one request"), whole < [](ServeOptions& o) -> auto& {
  return o.limits.max_schema_bytes;
}
> ("max_schema_bytes", "bytes", 1024, 1 << 24, "of a request's tools as JSON, and of a schema or grammar"), seconds < [
](ServeOptions& o) -> auto& {
  return o.grammars.limits.time;
}
> ("grammar_compile_time", 0.01, "to compile a schema or grammar; beyond it 400"), whole < [
](ServeOptions& o) -> auto& {
  return o.grammars.cache_bytes;
}
> ("grammar_cache_bytes", "bytes", 1 << 20, 64 * kGib,
   "of compiled grammars that are kept for later requests; no more than an eighth of the memory there is"),
    whole < [](ServeOptions& o) -> auto& {
  return o.limits.max_call_bytes;
}
> ("max_call_bytes", "bytes", 1024, 1 << 24, "of one call that a model writes; a longer one is text"), whole < [
](ServeOptions& o) -> auto& {
  return o.engine.state_checkpoints;
}
> ("prefix_cache_states", "", -1, 65536,
   "recurrent states that the prefix cache keeps, for models that have them, or places for whose windows there are "
   "blocks; -1: four for each answer"),
    whole < [](ServeOptions& o) -> auto& {
  return o.engine.volatile_tail;
}
> ("prefix_cache_tail", "", 0, 1e6,
   "tokens at a prompt's end that differ from turn to turn: the state is saved before them"),
};  // namespace quire::server

std::vector<std::string_view> names() {
  std::vector<std::string_view> all;
  for (const Limit& l : kLimits) all.push_back(l.name);
  return all;
}

}  // namespace

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
