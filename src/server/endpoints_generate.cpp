// /v1/chat/completions and /v1/completions: from bodies to jobs.
#include <fmt/ranges.h>

#include <algorithm>

#include "server/answer_constraint.h"
#include "server/api.h"
#include "server/generation.h"
#include "server/infill_prompt.h"
#include "server/random_id.h"
#include "server/recent_turns.h"
#include "server/writers/infill_writer.h"
#include "server/writers/openai_writer.h"

namespace quire::server {

struct Api::TextRoutes {
  static ApiStatus chat(Api& api, Call& call);
  static ApiStatus complete(Api& api, Call& call);
  static ApiStatus infill(Api& api, Call& call);
  static ApiStatus render_chat(Api& api, Call& call);
  static ApiStatus render_texts(Api& api, Call& call);
};

std::span<const Api::Route> Api::text_routes() {
  using H = TextRoutes;
  static constexpr Route kRows[] = {
      {"POST", "/v1/chat/completions", Route::kKey, Route::kGenerates, kOpenAi, H::chat},
      {"POST", "/v1/chat/completions/render", Route::kKey, Route::kModel, kOpenAi, H::render_chat},
      {"POST", "/v1/completions", Route::kKey, Route::kGenerates, kOpenAi, H::complete},
      {"POST", "/v1/completions/render", Route::kKey, Route::kModel, kOpenAi, H::render_texts},
      {"POST", "/infill", Route::kKey, Route::kGenerates, kOpenAi, H::infill},
  };
  return kRows;
}

struct Api::Prepared {
  GenerationPlan plan;
  std::vector<Job> jobs;
};

namespace {

constexpr int64_t kDefaultMaxTokens = 16;             // of /v1/completions, as the API defines it
constexpr int64_t kMaxJobTokens = int64_t{16} << 20;  // each job holds its prompt
// Log-probabilities of prompts, alternatives among them, that one answer tells: some 25 bytes each. A stream's come at
// once, and wait in memory for the client to read them.
constexpr int64_t kMostReported = int64_t{1} << 20, kMostStreamed = int64_t{1} << 17;

// The request of one answer; the further answers to a prompt continue with other seeds.
Job make_job(const GenerationParams& p, std::string salt, const SharedTokens& tokens,
             const std::vector<int64_t>& cache_positions, int64_t max_tokens, uint64_t seed) {
  Job job{.request = p.request};
  Request& r = job.request;
  r.prompt = tokens;
  r.max_tokens = max_tokens;
  r.sampling.seed = seed;
  r.render_special = !p.skip_special_tokens;
  r.cache_salt = std::move(salt);
  r.cache_positions = cache_positions;
  return job;
}

ApiStatus check_min_tokens(const GenerationParams& p, int64_t max_tokens) {
  if (p.request.min_tokens <= max_tokens) return {};
  return bad_field("min_tokens", "invalid_value", "'min_tokens' is {}, but at most {} tokens are generated",
                   p.request.min_tokens, max_tokens);
}

GenerationPlan make_plan(const GenerationParams& p, const std::shared_ptr<const ModelContext>& model,
                         const std::shared_ptr<Service>& service) {
  GenerationPlan plan;
  plan.model = model;
  plan.service = service;
  plan.model_name = model->told_name(p.model);
  plan.token_ids = p.return_token_ids;
  plan.stops = p.request.stop;
  plan.stop_tokens = p.request.stop_tokens;
  plan.stream = p.stream;
  plan.logprobs = p.request.sampling.logprobs >= 0;
  plan.report_ends = p.answer_logprobs;
  plan.answers_each = static_cast<size_t>(p.n);
  plan.cache_info = p.return_cache_info;
  return plan;
}

// Keeps a prompt's last tokens, as many as the request wants, and no part of a picture. Places in it move with them.
void truncate(const GenerationParams& p, int64_t context, EncodedPrompt& prompt) {
  if (!p.truncate_prompt) return;
  const int64_t room = std::max<int64_t>(context - p.max_tokens.value_or(1), 1);
  const int64_t keep = *p.truncate_prompt < 0 ? room : *p.truncate_prompt;
  int64_t gone = static_cast<int64_t>(prompt.tokens.size()) - keep;
  if (gone <= 0) return;
  for (const PlacedPicture& picture : prompt.pictures)
    if (picture.position < gone) gone = std::max(gone, picture.position + picture.plan.tokens);
  std::erase_if(prompt.pictures, [&](const PlacedPicture& picture) { return picture.position < gone; });
  for (PlacedPicture& picture : prompt.pictures) picture.position -= gone;
  prompt.tokens.erase(prompt.tokens.begin(), prompt.tokens.begin() + gone);
  prompt.text.clear();
  for (int64_t& at : prompt.cache_positions) at -= gone;
  std::erase_if(prompt.cache_positions, [](int64_t at) { return at <= 0; });
}

OpenAiEnvelope envelope_of(const GenerationPlan& plan, const GenerationParams& p) {
  return {.model = plan.model_name,
          .fingerprint = plan.model->fingerprint(),
          .include_usage = p.include_usage,
          .continuous_usage = p.continuous_usage,
          .token_ids = p.return_token_ids,
          .answer_logprobs = p.answer_logprobs,
          .prompt_ids = plan.prompt_ids,
          .answers_each = plan.answers_each};
}

// The tokens of a prompt, and how an answer to it would be made, in vLLM's words. The tokens are written as text and
// not as a tree of values, which would take 16 bytes for each.
std::string rendered(const ModelContext& model, const GenerationParams& p, const std::vector<TokenId>& tokens,
                     int64_t max_tokens) {
  const SamplingParams& s = p.request.sampling;
  const auto number = [](float x) { return Json::parse(fmt::format("{}", x)); };  // 0.7, not 0.699999988
  std::string text = dump({{"request_id", "render-" + random_hex()},
                           {"model", model.told_name(p.model)},
                           {"features", nullptr},
                           {"sampling_params",
                            {{"max_tokens", max_tokens},
                             {"temperature", number(s.temperature)},
                             {"top_p", number(s.top_p)},
                             {"top_k", s.top_k},
                             {"min_p", number(s.min_p)},
                             {"seed", p.seed ? Json(*p.seed) : Json()}}}});
  text.pop_back();
  return text + fmt::format(R"(,"token_ids":[{}]}})", fmt::join(tokens, ","));
}

// Tokens of prompts, counted as often as they are told.
ApiStatus check_told_ids(const GenerationParams& p, int64_t tokens) {
  if (!p.return_token_ids || tokens <= kMostReported) return {};
  return bad_field("return_token_ids", "invalid_value",
                   "the answer would tell {} tokens of prompts; at most {} are told", tokens, kMostReported);
}

// What answers tell of their prompts.
PromptReport::Wanted wanted_of(const GenerationParams& p, bool echo) {
  return {.lists = echo && !p.answer_logprobs ? p.request.sampling.logprobs : -1, .prompt_logprobs = p.prompt_logprobs};
}

ApiStatus check_reported(const GenerationParams& p, const PromptReport::Wanted& wanted, int64_t prompt_tokens) {
  const int64_t all = prompt_tokens * p.n * wanted.of_each(), most = p.stream ? kMostStreamed : kMostReported;
  if (all <= most) return {};
  return bad_field(wanted.lists >= 0 ? "logprobs" : "prompt_logprobs", "invalid_value",
                   "the answer would tell {} log-probabilities of the prompts; at most {} are told{}", all, most,
                   p.stream ? " in a stream" : "");
}

std::string salt_of_key(const KeyRing& keys, int key, const std::string& cache_salt) {
  return fmt::format("{}:{}", keys.salt(key), cache_salt);
}

}  // namespace

std::string Api::salt_of(const Call& call, const std::string& cache_salt) const {
  return salt_of_key(options_.keys, call.responder->record().key, cache_salt);
}

std::vector<std::string> Api::open_salts() const {
  std::vector<std::string> all;
  if (options_.keys.empty()) all.push_back(salt_of_key(options_.keys, 0, ""));
  for (size_t key = 1; key <= options_.keys.size(); ++key)
    all.push_back(salt_of_key(options_.keys, static_cast<int>(key), ""));
  return all;
}

uint64_t Api::client_of(const Call& call) const {
  return options_.keys.size() > 1 ? static_cast<uint64_t>(call.responder->record().key) : 0;
}

void Api::start(const Call& call, Prepared prepared) {
  prepared.plan.timeout = time_left(call);
  prepared.plan.arrived = call.arrived;
  prepared.plan.ticket = call.ticket;
  for (Job& job : prepared.jobs) job.request.client = client_of(call);
  std::make_shared<Generation>(std::move(prepared.plan), call.responder)->start(std::move(prepared.jobs));
}

namespace {

// How the answers to a conversation are read. A format whose channels are no text is read whether there are tools or
// not.
AnswerSyntax syntax_of(const ChatRequest& r, const ModelContext& model, bool split_reasoning) {
  AnswerSyntax s{.split_reasoning = split_reasoning && r.separate_reasoning,
                 .tools = r.tools,
                 .limits = {.max_call_bytes = model.limits().max_call_bytes},
                 .call_prefix = r.call_prefix,
                 .parallel = r.parallel_calls};
  if (r.tools != nullptr || (model.tool_format().harmony && s.split_reasoning)) s.format = &model.tool_format();
  if (s.tools == nullptr) s.tools = std::make_shared<ToolSet>();
  return s;
}

// Between which marks stop texts are not looked for. Reasoning that stands in the text is text.
std::optional<ReasoningMarks> marks_of(const AnswerSyntax& s, const GenerationParams& params) {
  if (params.stop_in_reasoning || !s.split_reasoning) return std::nullopt;
  if (s.format != nullptr && s.format->harmony)
    return ReasoningMarks{.open = "<|channel|>analysis", .close = "<|end|>", .inside = false, .anywhere = true};
  // Where there are calls, a model may think again behind one.
  return ReasoningMarks{.open = std::string(kReasoningOpen),
                        .close = std::string(kReasoningClose),
                        .inside = s.inside_reasoning,
                        .anywhere = s.format != nullptr};
}

}  // namespace

ApiStatus Api::TextRoutes::chat(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  QUIRE_TRY(ChatRequest r, parse_chat_request(std::move(document), call.loaded.model->limits()));
  return api.converse(call, std::move(r), [](const GenerationPlan& plan, const GenerationParams& p) {
    return chat_writer(envelope_of(plan, p), plan.model->tokenizer(), plan.logprobs);
  });
}

ApiResult<EncodedPrompt> Api::encode_conversation(const Call& call, ChatRequest& r) {
  const ModelContext& model = *call.loaded.model;
  if (!r.drop_oldest) return model.encode(std::move(r.conversation));
  QUIRE_TRY(RecentTurns recent, encode_recent(model, std::move(r.conversation), r.params));
  if (recent.dropped == 0) return std::move(recent.prompt);
  call.responder->post([responder = call.responder, n = recent.dropped] { responder->record().dropped_messages = n; });
  registry_.counter("quire:dropped_messages_total", "Messages that were left out of conversations too long.", {})
      .add(static_cast<double>(recent.dropped));
  return std::move(recent.prompt);
}

ApiStatus Api::converse(Call& call, ChatRequest r, MakeWriter make_writer) {
  report(call, r.ignored);
  QUIRE_CHECKED(call.loaded.model->check_name(r.params.model));
  const auto request = std::make_shared<ChatRequest>(std::move(r));
  return with_pictures(call, request->conversation.pictures,
                       [this, request, make_writer = std::move(make_writer)](Call& c) {
                         return answer_conversation(c, *request, make_writer);
                       });
}

ApiStatus Api::answer_conversation(Call& call, ChatRequest& r, const MakeWriter& make_writer) {
  const auto& [model, service] = call.loaded;
  QUIRE_TRY(EncodedPrompt prompt, encode_conversation(call, r));
  truncate(r.params, model->context(), prompt);
  QUIRE_TRY(const int64_t max_tokens, model->room_for(prompt, r.params));
  QUIRE_CHECKED(check_min_tokens(r.params, max_tokens));

  Prepared p{.plan = make_plan(r.params, model, service), .jobs = {}};
  p.plan.syntax = syntax_of(r, *model, options_.split_reasoning);
  p.plan.syntax.inside_reasoning = prompt.inside_reasoning;
  p.plan.counts_reasoning = true;
  if (r.tools != nullptr) p.plan.count_calls = [this](size_t complete, size_t cut) { count_calls(complete, cut); };
  if (p.plan.syntax.format != nullptr && p.plan.syntax.format->control_tokens) r.params.skip_special_tokens = false;
  ApiResult<AnswerConstraint> constrained = constrain_answer(*model, r, prompt.inside_reasoning, asker_of(call));
  if (r.params.form || r.tools != nullptr) count_grammars(*model);
  QUIRE_TRY(const AnswerConstraint must, std::move(constrained));
  report_constraint(call, must);
  p.plan.prompt_tokens = static_cast<int64_t>(prompt.tokens.size());
  p.plan.cache_positions = {prompt.cache_positions};
  const uint64_t seed = r.params.seed.value_or(random_seed());
  const std::string salt = salt_of(call, r.params.cache_salt);
  QUIRE_CHECKED(check_told_ids(r.params, p.plan.prompt_tokens));
  QUIRE_TRY(const std::shared_ptr<const PromptImages> images, decode_pictures(call, prompt.pictures));
  const SharedTokens tokens(std::move(prompt.tokens));
  if (r.params.return_token_ids) p.plan.prompt_ids.push_back(tokens);
  p.plan.writer = make_writer(p.plan, r.params);
  for (int i = 0; i < r.params.n; ++i)
    p.jobs.push_back(
        make_job(r.params, salt, tokens, prompt.cache_positions, max_tokens, seed + static_cast<uint64_t>(i)));
  for (Job& job : p.jobs) {
    job.request.constraint = must.constraint;
    job.request.reasoning = marks_of(p.plan.syntax, r.params);
    job.request.images = images;
  }
  if (const PromptReport::Wanted wanted = wanted_of(r.params, false); wanted.any()) {
    QUIRE_CHECKED(check_reported(r.params, wanted, p.plan.prompt_tokens));
    p.jobs.front().request.prompt_logprobs = wanted.most();
    p.plan.prompts.emplace_back(model->tokenizer(), p.jobs.front().request.prompt, "", wanted);
  }
  start(call, std::move(p));
  return {};
}

// Of an answer to a request with tools.
void Api::count_calls(size_t complete, size_t cut) {
  const auto count = [&](const char* outcome, size_t n) {
    registry_
        .counter("quire:tool_calls_total", "Calls of tools in answers, by whether they were completed.",
                 {{"outcome", outcome}})
        .add(static_cast<double>(n));
  };
  count("complete", complete);
  count("cut", cut);
}

namespace {

ApiResult<EncodedPrompt> encode_text_prompt(const ModelContext& model, Prompt prompt, const CompletionRequest& r) {
  if (r.infill) return encode_infill(model, std::move(prompt), *r.infill, r.params);
  QUIRE_TRY(EncodedPrompt encoded, model.encode(std::move(prompt), r.add_special));
  truncate(r.params, model.context(), encoded);
  return encoded;
}

}  // namespace

ApiStatus Api::TextRoutes::complete(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  QUIRE_TRY(CompletionRequest r, parse_completion_request(std::move(document), call.loaded.model->limits()));
  return api.go_on(
      call, std::move(r), [](const GenerationPlan& plan, const GenerationParams& p, std::vector<std::string> echoes) {
        return completion_writer(envelope_of(plan, p), plan.model->tokenizer(), plan.logprobs, std::move(echoes));
      });
}

ApiStatus Api::TextRoutes::infill(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  QUIRE_TRY(CompletionRequest r, parse_infill_request(std::move(document), call.loaded.model->limits()));
  return api.go_on(call, std::move(r),
                   [](const GenerationPlan& plan, const GenerationParams&, const std::vector<std::string>&) {
                     return infill_writer(plan.model_name);
                   });
}

// What would be computed from a conversation, without computing it: routers look up prefixes by it.
ApiStatus Api::TextRoutes::render_chat(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  const ModelContext& model = *call.loaded.model;
  QUIRE_TRY(ChatRequest r, parse_chat_request(std::move(document), model.limits()));
  api.report(call, r.ignored);
  QUIRE_CHECKED(model.check_name(r.params.model));
  const auto request = std::make_shared<ChatRequest>(std::move(r));
  return api.with_pictures(call, request->conversation.pictures, [request](Call& c) -> ApiStatus {
    const ModelContext& m = *c.loaded.model;
    QUIRE_TRY(EncodedPrompt prompt, m.encode(std::move(request->conversation)));
    truncate(request->params, m.context(), prompt);
    QUIRE_TRY(const int64_t max_tokens, m.room_for(prompt, request->params));
    answer(c, HttpResponse{.body = rendered(m, request->params, prompt.tokens, max_tokens)});
    return {};
  });
}

// Likewise a list, of each prompt.
ApiStatus Api::TextRoutes::render_texts(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  const ModelContext& model = *call.loaded.model;
  QUIRE_TRY(CompletionRequest r, parse_completion_request(std::move(document), model.limits()));
  api.report(call, r.ignored);
  QUIRE_CHECKED(model.check_name(r.params.model));
  std::string all;
  for (Prompt& prompt : r.prompts) {
    QUIRE_TRY(const EncodedPrompt encoded, encode_text_prompt(model, std::move(prompt), r));
    QUIRE_TRY(const int64_t room, model.room_for(encoded, r.params));
    const bool few = !r.params.max_tokens && r.short_by_default && !r.params.whole_room;
    all += (all.empty() ? "[" : ",") +
           rendered(model, r.params, encoded.tokens, few ? std::min(room, kDefaultMaxTokens) : room);
  }
  answer(call, HttpResponse{.body = all + "]"});
  return {};
}

ApiStatus Api::go_on(Call& call, CompletionRequest r, const MakeTextWriter& make_writer) {
  const auto& [model, service] = call.loaded;
  report(call, r.ignored);
  QUIRE_CHECKED(model->check_name(r.params.model));

  ApiResult<AnswerConstraint> constrained = constrain_text(*model, r.params, asker_of(call));
  if (r.params.form) count_grammars(*model);
  QUIRE_TRY(const AnswerConstraint must, std::move(constrained));
  report_constraint(call, must);
  Prepared p{.plan = make_plan(r.params, model, service), .jobs = {}};
  p.plan.report_ends = true;
  const uint64_t seed = r.params.seed.value_or(random_seed());
  const std::string salt = salt_of(call, r.params.cache_salt);
  const PromptReport::Wanted wanted = wanted_of(r.params, r.echo);
  std::vector<std::string> echoes;
  for (Prompt& prompt : r.prompts) {
    QUIRE_TRY(EncodedPrompt encoded, encode_text_prompt(*model, std::move(prompt), r));
    p.plan.cache_positions.push_back(r.cache_positions);
    QUIRE_TRY(int64_t max_tokens, model->room_for(encoded, r.params));
    if (!r.params.max_tokens && r.short_by_default && !r.params.whole_room)
      max_tokens = std::min(max_tokens, kDefaultMaxTokens);
    QUIRE_CHECKED(check_min_tokens(r.params, max_tokens));
    p.plan.prompt_tokens += static_cast<int64_t>(encoded.tokens.size());
    if (p.plan.prompt_tokens * r.params.n > kMaxJobTokens)
      return bad_field("prompt", "invalid_value",
                       "the prompts have more than {} tokens together, each counted 'n' times", kMaxJobTokens);
    if (r.echo && encoded.text.empty()) encoded.text = model->tokenizer().decode(encoded.tokens, true);
    QUIRE_CHECKED(check_told_ids(r.params, p.plan.prompt_tokens * r.params.n));
    const SharedTokens tokens(std::move(encoded.tokens));
    if (r.params.return_token_ids) p.plan.prompt_ids.push_back(tokens);
    for (int i = 0; i < r.params.n; ++i) {
      p.jobs.push_back(
          make_job(r.params, salt, tokens, r.cache_positions, max_tokens, seed + static_cast<uint64_t>(i)));
      if (r.echo) echoes.push_back(encoded.text);
    }
    if (!wanted.any()) continue;
    QUIRE_CHECKED(check_reported(r.params, wanted, p.plan.prompt_tokens));
    Request& first = (p.jobs.end() - r.params.n)->request;
    first.prompt_logprobs = wanted.most();
    p.plan.prompts.emplace_back(model->tokenizer(), first.prompt, encoded.text, wanted);
  }
  for (Job& job : p.jobs) job.request.constraint = must.constraint;
  p.plan.writer = make_writer(p.plan, r.params, std::move(echoes));
  start(call, std::move(p));
  return {};
}

}  // namespace quire::server
