#include "server/protocol/generation_params.h"

#include <charconv>
#include <limits>

#include "tokenizer/stop_matcher.h"

namespace quire::server {
namespace {

constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();

void read_number(Fields& f, std::string_view name, const SamplingField& field, float& value) {
  f.number(name, value, static_cast<float>(field.low), static_cast<float>(field.high));
}

void read_number(Fields& f, std::string_view name, const SamplingField& field, int& value) {
  const auto low = static_cast<int>(field.low);
  f.integer(name, value, field.minus_one_is_zero ? -1 : low, static_cast<int>(field.high));
  value = std::max(value, low);
}

void read_sampling(Fields& f, const RequestLimits& limits, GenerationParams& p) {
  SamplingParams& s = p.request.sampling;
  s = limits.sampling;
  each_sampling_field(s, [&](const SamplingField& field, auto& value) {
    if (!field.also.empty()) read_number(f, field.also, field, value);
    read_number(f, field.name, field, value);
  });
  f.bits("seed", p.seed);

  const Json* bias = f.take_object("logit_bias");
  if (bias == nullptr) return;
  if (bias->size() > static_cast<size_t>(limits.max_logit_bias))
    return f.fail(bad_field("logit_bias", "invalid_value", "'logit_bias' has {} entries; at most {} are allowed",
                            bias->size(), limits.max_logit_bias));
  for (const auto& [key, value] : bias->items()) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc{} || end != key.data() + key.size() || token < 0 || token >= limits.vocab)
      return f.fail(bad_field("logit_bias", "invalid_value",
                              "a key of 'logit_bias' is no token id: they are \"0\" to \"{}\"", limits.vocab - 1));
    const double x = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(x >= -kMostBias && x <= kMostBias))
      return f.fail(bad_field("logit_bias", "invalid_value",
                              "'logit_bias' of token {} must be a number between {} and {}", token, -kMostBias,
                              kMostBias));
    s.logit_bias[token] = static_cast<float>(x);
  }
}

void read_stream(Fields& f, GenerationParams& p) {
  f.boolean("stream", p.stream);
  Json* options = f.take_object("stream_options");
  if (options == nullptr) return;
  if (!p.stream)
    return f.fail(bad_field("stream_options", "invalid_value", "'stream_options' needs 'stream' to be true"));
  Fields inner(*options, f.ignored(), "stream_options.");
  inner.boolean("include_usage", p.include_usage);
  inner.boolean("continuous_usage_stats", p.continuous_usage);
  inner.unserved("include_obfuscation", "chunks are not padded", {false});
  if (ApiStatus s = inner.finish(); !s.ok()) f.fail(s.take_error());
}

// One form of log-probabilities goes with no other.
void read_answer_logprobs(Fields& f, const RequestLimits& limits, GenerationParams& p) {
  int& top = p.request.sampling.logprobs;
  f.integer("answer_logprobs", top, 0, limits.max_logprobs);
  p.answer_logprobs = top >= 0;
  const Json* const other = f.take("logprobs");
  if (p.answer_logprobs && other != nullptr && *other != false)
    f.fail(bad_field("answer_logprobs", "invalid_value", "'answer_logprobs' does not go with 'logprobs'"));
}

// Known from OpenAI, vLLM, SGLang and llama.cpp, and not served here. A field that would change the text is refused: an
// answer without its effect would be taken for one with it.
void refuse_the_rest(Fields& f) {
  constexpr std::string_view kSampler = "this sampler does not exist here";
  f.refuse("best_of", "only as many answers as 'n' are computed", {1});
  f.refuse("use_beam_search", "there is no beam search", {false});
  f.refuse("length_penalty", "there is no beam search", {1, 1.0});
  f.refuse("spaces_between_special_tokens", "special tokens are written as they are", {true});
  f.refuse("return_tokens_as_token_ids", "tokens are written as their text", {false});
  for (const char* name : {"dry_multiplier", "xtc_probability", "dynatemp_range"}) f.refuse(name, kSampler, {0, 0.0});
  f.unserved("mirostat", kSampler, {0, 0.0});
  f.unserved("return_hidden_states", "hidden states are not returned", {false});
  f.unserved("service_tier", "there is one tier", {"auto", "default"});
  f.unserved("store", "nothing is stored", {false});
  for (const char* name : {"user", "metadata", "safety_identifier", "prompt_cache_key"})  // of OpenAI
    f.ignore(name);
  f.ignore("cache_prompt");  // llama.cpp: no text depends on it
}

}  // namespace

void read_generation_params(Fields& f, const RequestLimits& limits, GenerationParams& p) {
  f.text("model", p.model, 256);
  read_stream(f, p);
  f.integer("n", p.n, 1, limits.max_n);
  for (const char* name : {"max_tokens", "max_completion_tokens"}) f.integer(name, p.max_tokens, -1, kMax64);
  if (p.max_tokens && *p.max_tokens < 0) {
    p.max_tokens.reset();
    p.whole_room = true;
  }
  f.integer("min_tokens", p.request.min_tokens, int64_t{0}, kMax64);
  if (p.max_tokens && p.request.min_tokens > *p.max_tokens)
    f.fail(bad_field("min_tokens", "invalid_value", "'min_tokens' is {}, but 'max_tokens' allows {}",
                     p.request.min_tokens, *p.max_tokens));
  read_sampling(f, limits, p);
  f.texts("stop", p.request.stop, static_cast<size_t>(limits.max_stops), static_cast<size_t>(limits.max_stop_bytes));
  if (const Status stops = StopMatcher::check(p.request.stop); !stops.ok())
    f.fail(bad_field("stop", "invalid_value", "{}", stops.error().message));
  f.tokens("stop_token_ids", p.request.stop_tokens, static_cast<size_t>(limits.max_stops), limits.vocab);
  for (const char* name : {"include_stop_str_in_output", "no_stop_trim"}) f.boolean(name, p.request.include_stop);
  f.boolean("stop_in_reasoning", p.stop_in_reasoning);
  f.boolean("ignore_eos", p.request.ignore_eos);
  p.form = read_form(f, limits.max_schema_bytes);
  f.tokens("allowed_token_ids", p.allowed_tokens, static_cast<size_t>(std::max<int64_t>(limits.vocab, 1)),
           limits.vocab);
  f.texts("bad_words", p.bad_words, static_cast<size_t>(limits.max_logit_bias),
          static_cast<size_t>(limits.max_stop_bytes));
  f.boolean("speculative", p.request.speculative);
  f.integer("prompt_logprobs", p.prompt_logprobs, 0, limits.max_logprobs);
  if (p.stream && p.prompt_logprobs >= 0)
    f.fail(bad_field("prompt_logprobs", "invalid_value",
                     "'prompt_logprobs' are told in whole answers, not in a stream; 'echo' with 'logprobs' is"));
  read_answer_logprobs(f, limits, p);
  f.boolean("skip_special_tokens", p.skip_special_tokens);
  f.integer("truncate_prompt_tokens", p.truncate_prompt, -1, kMax64);
  if (p.truncate_prompt && *p.truncate_prompt == 0)
    f.fail(bad_field("truncate_prompt_tokens", "invalid_value",
                     "'truncate_prompt_tokens' is 0: must be the number of tokens to keep, or -1"));
  f.text("cache_salt", p.cache_salt, kMaxCacheSalt);
  f.boolean("return_cache_info", p.return_cache_info);
  f.boolean("return_token_ids", p.return_token_ids);
  f.integer("priority", p.request.priority, limits.max_priority, kLastPriority);
  refuse_the_rest(f);
}

}  // namespace quire::server
