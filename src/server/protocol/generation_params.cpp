#include "server/protocol/generation_params.h"

#include <charconv>
#include <limits>

namespace quire::server {
namespace {

constexpr int64_t kMin64 = std::numeric_limits<int64_t>::min(), kMax64 = std::numeric_limits<int64_t>::max();
constexpr int kMax32 = std::numeric_limits<int32_t>::max();

void read_sampling(Fields& f, const RequestLimits& limits, GenerationParams& p) {
  SamplingParams& s = p.sampling;
  s.temperature = 1.0f;  // the API's default; 0 is greedy
  f.number("temperature", s.temperature, 0, 100);
  f.number("top_p", s.top_p, 0, 1);
  f.number("min_p", s.min_p, 0, 1);
  f.number("typical_p", s.typical_p, 0, 1);
  f.integer("top_k", s.top_k, -1, kMax32);
  if (s.top_k < 0) s.top_k = 0;  // vLLM's -1: off
  f.number("repetition_penalty", s.repetition_penalty, 0.01f, 100);
  f.number("presence_penalty", s.presence_penalty, -2, 2);
  f.number("frequency_penalty", s.frequency_penalty, -2, 2);
  std::optional<int64_t> seed;
  f.integer("seed", seed, kMin64, kMax64);
  if (seed) p.seed = static_cast<uint64_t>(*seed);

  const Json* bias = f.take_object("logit_bias");
  if (bias == nullptr) return;
  if (bias->size() > static_cast<size_t>(limits.max_logit_bias))
    return f.fail(bad_field("logit_bias", "invalid_value",
                            "'logit_bias' has {} entries; at most {} are allowed", bias->size(),
                            limits.max_logit_bias));
  for (const auto& [key, value] : bias->items()) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc{} || end != key.data() + key.size() || token < 0 || token >= limits.vocab)
      return f.fail(bad_field("logit_bias", "invalid_value",
                              "a key of 'logit_bias' is no token id: they are \"0\" to \"{}\"",
                              limits.vocab - 1));
    const double x = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(x >= -100 && x <= 100))
      return f.fail(bad_field("logit_bias", "invalid_value",
                              "'logit_bias' of token {} must be a number between -100 and 100", token));
    s.logit_bias[token] = static_cast<float>(x);
  }
}

void read_stream(Fields& f, GenerationParams& p) {
  f.boolean("stream", p.stream);
  const Json* options = f.take_object("stream_options");
  if (options == nullptr) return;
  if (!p.stream)
    return f.fail(bad_field("stream_options", "invalid_value", "'stream_options' needs 'stream' to be true"));
  Fields inner(*options, "stream_options.");
  inner.boolean("include_usage", p.include_usage);
  inner.boolean("continuous_usage_stats", p.continuous_usage);
  inner.refuse("include_obfuscation", "chunks are not padded", {false});
  if (ApiStatus s = inner.finish(); !s.ok()) f.fail(s.take_error());
}

// Known from OpenAI, vLLM and llama.cpp, and not served here.
void refuse_the_rest(Fields& f) {
  constexpr std::string_view kGuided = "structured output is not supported by this server yet";
  f.refuse("best_of", "only as many answers as 'n' are computed", {1});
  f.refuse("use_beam_search", "there is no beam search", {false});
  f.refuse("length_penalty", "there is no beam search", {1, 1.0});
  f.refuse("min_tokens", "no minimum can be asked for; 'ignore_eos' with 'max_tokens' gives a fixed length",
           {0});
  f.refuse("include_stop_str_in_output", "stop texts are never part of the output", {false});
  f.refuse("prompt_logprobs", "log-probabilities of the prompt are not computed");
  f.refuse("truncate_prompt_tokens", "prompts are never cut");
  f.refuse("allowed_token_ids", "use 'logit_bias'");
  f.refuse("bad_words", "use 'logit_bias'", {Json::array()});
  f.refuse("spaces_between_special_tokens", "special tokens are written as they are", {true});
  f.refuse("return_token_ids", "use /tokenize", {false});
  f.refuse("return_tokens_as_token_ids", "tokens are written as their text", {false});
  for (const char* name : {"guided_json", "guided_regex", "guided_choice", "guided_grammar",
                           "structured_outputs", "grammar", "json_schema"})
    f.refuse(name, kGuided);
  f.refuse("response_format", kGuided, {Json{{"type", "text"}}});
  for (const char* name : {"mirostat", "dry_multiplier", "xtc_probability", "dynatemp_range"})
    f.refuse(name, "this sampler does not exist here", {0, 0.0});
  f.ignore("user");          // OpenAI: who the end user is
  f.ignore("cache_prompt");  // llama.cpp: no text depends on it
}

}  // namespace

void read_generation_params(Fields& f, const RequestLimits& limits, GenerationParams& p) {
  f.text("model", p.model, 256);
  read_stream(f, p);
  f.integer("n", p.n, 1, limits.max_n);
  f.integer("max_tokens", p.max_tokens, 1, kMax64);
  std::optional<int64_t> newer;
  f.integer("max_completion_tokens", newer, 1, kMax64);
  if (newer) p.max_tokens = newer;
  read_sampling(f, limits, p);
  f.texts("stop", p.stop, static_cast<size_t>(limits.max_stops), static_cast<size_t>(limits.max_stop_bytes));
  f.tokens("stop_token_ids", p.stop_tokens, static_cast<size_t>(limits.max_stops), limits.vocab);
  f.boolean("ignore_eos", p.ignore_eos);
  f.boolean("skip_special_tokens", p.skip_special_tokens);
  f.text("cache_salt", p.cache_salt, kMaxCacheSalt);
  f.boolean("return_cache_info", p.return_cache_info);
  f.integer("priority", p.priority, -1'000'000, 1'000'000);
  refuse_the_rest(f);
}

}  // namespace quire::server
