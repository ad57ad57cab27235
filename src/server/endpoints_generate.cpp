// /v1/chat/completions and /v1/completions: from bodies to jobs.
#include <algorithm>

#include "server/api.h"
#include "server/generation.h"

namespace quire::server {

struct Api::Prepared {
  GenerationPlan plan;
  std::vector<Job> jobs;
};

namespace {

constexpr int64_t kDefaultMaxTokens = 16;             // of /v1/completions, as the API defines it
constexpr int64_t kMaxJobTokens = int64_t{16} << 20;  // each job holds its prompt

// The request of one answer; the further answers to a prompt continue with other seeds.
Job make_job(const GenerationParams& p, std::string salt, const EncodedPrompt& prompt, int64_t max_tokens,
             uint64_t seed) {
  Job job;
  job.priority = p.priority;
  Request& r = job.request;
  r.priority = p.priority;
  r.cache_salt = std::move(salt);
  r.prompt = prompt.tokens;
  r.cache_positions = prompt.cache_positions;
  r.max_tokens = max_tokens;
  r.sampling = p.sampling;
  r.sampling.seed = seed;
  r.stop = p.stop;
  r.stop_tokens = p.stop_tokens;
  r.ignore_eos = p.ignore_eos;
  r.render_special = !p.skip_special_tokens;
  return job;
}

GenerationPlan make_plan(const GenerationParams& p, const std::shared_ptr<const ModelContext>& model,
                         const std::shared_ptr<Service>& service) {
  GenerationPlan plan;
  plan.model = model;
  plan.service = service;
  plan.model_name = p.model.empty() ? model->name() : p.model;
  plan.stream = p.stream;
  plan.include_usage = p.include_usage;
  plan.continuous_usage = p.continuous_usage;
  plan.logprobs = p.sampling.logprobs >= 0;
  plan.answers_each = static_cast<size_t>(p.n);
  plan.cache_info = p.return_cache_info;
  return plan;
}

}  // namespace

std::string Api::salt_of(const Call& call, const std::string& cache_salt) const {
  return fmt::format("{}:{}", options_.keys.salt(call.responder->record().key), cache_salt);
}

void Api::start(const Call& call, Prepared prepared) {
  prepared.plan.timeout = options_.request_timeout;
  std::make_shared<Generation>(std::move(prepared.plan), call.responder)->start(std::move(prepared.jobs));
}

ApiStatus Api::chat(const Call& call) {
  const auto& [model, service] = call.loaded;
  QUIRE_TRY(const Json document, body(call.request));
  QUIRE_TRY(const ChatRequest r, parse_chat_request(document, model->limits()));
  QUIRE_CHECKED(model->check_name(r.params.model));
  QUIRE_TRY(const EncodedPrompt prompt, model->encode(r.conversation));
  QUIRE_TRY(const int64_t max_tokens, model->room_for(prompt.tokens.size(), r.params.max_tokens));

  Prepared p{.plan = make_plan(r.params, model, service), .jobs = {}};
  p.plan.format = chat_format(model->tokenizer(), p.plan.logprobs);
  p.plan.split_reasoning = options_.split_reasoning;
  p.plan.inside_reasoning = prompt.inside_reasoning;
  p.plan.prompt_tokens = static_cast<int64_t>(prompt.tokens.size());
  p.plan.cache_positions = {prompt.cache_positions};
  const uint64_t seed = r.params.seed.value_or(random_seed());
  const std::string salt = salt_of(call, r.params.cache_salt);
  for (int i = 0; i < r.params.n; ++i)
    p.jobs.push_back(make_job(r.params, salt, prompt, max_tokens, seed + static_cast<uint64_t>(i)));
  start(call, std::move(p));
  return {};
}

ApiStatus Api::complete(const Call& call) {
  const auto& [model, service] = call.loaded;
  QUIRE_TRY(const Json document, body(call.request));
  QUIRE_TRY(CompletionRequest r, parse_completion_request(document, model->limits()));
  QUIRE_CHECKED(model->check_name(r.params.model));

  Prepared p{.plan = make_plan(r.params, model, service), .jobs = {}};
  const uint64_t seed = r.params.seed.value_or(random_seed());
  const std::string salt = salt_of(call, r.params.cache_salt);
  std::vector<std::string> echoes;
  for (const Prompt& prompt : r.prompts) {
    QUIRE_TRY(EncodedPrompt encoded, model->encode(prompt, r.add_special));
    encoded.cache_positions = r.cache_positions;
    p.plan.cache_positions.push_back(r.cache_positions);
    QUIRE_TRY(int64_t max_tokens, model->room_for(encoded.tokens.size(), r.params.max_tokens));
    if (!r.params.max_tokens) max_tokens = std::min(max_tokens, kDefaultMaxTokens);
    p.plan.prompt_tokens += static_cast<int64_t>(encoded.tokens.size());
    if (p.plan.prompt_tokens * r.params.n > kMaxJobTokens)
      return bad_field("prompt", "invalid_value",
                       "the prompts have more than {} tokens together, each counted 'n' times",
                       kMaxJobTokens);
    if (r.echo && encoded.text.empty()) encoded.text = model->tokenizer().decode(encoded.tokens, true);
    for (int i = 0; i < r.params.n; ++i) {
      p.jobs.push_back(make_job(r.params, salt, encoded, max_tokens, seed + static_cast<uint64_t>(i)));
      if (r.echo) echoes.push_back(encoded.text);
    }
  }
  p.plan.format = completion_format(model->tokenizer(), p.plan.logprobs, std::move(echoes));
  start(call, std::move(p));
  return {};
}

}  // namespace quire::server
