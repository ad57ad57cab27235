#include "server/generation.h"

#include <algorithm>

namespace quire::server {
namespace {

// Log-probabilities of prompts that are written before other connections have their turn: about a millisecond.
constexpr size_t kReportedAtOnce = 4096;

}  // namespace

Generation::Generation(GenerationPlan plan, std::shared_ptr<Responder> responder)
    : plan_(std::move(plan)), responder_(std::move(responder)) {}

void Generation::start(std::vector<Job> jobs) {
  answers_.resize(jobs.size());
  for (size_t i = 0; i < answers_.size(); ++i) {
    answers_[i].part.index = static_cast<int>(i);
    answers_[i].parser = AnswerParser(plan_.syntax);
  }
  running_ = jobs.size();
  if (plan_.ticket->cancelled()) return;
  const auto accepted = plan_.service->submit(
      std::move(jobs), [self = shared_from_this()](size_t i, const TokenEvent& e) { self->on_event(i, e); });
  try {
    responder_->post([self = shared_from_this(), accepted] { self->begin(accepted); });
  } catch (...) {
    if (accepted.ok()) plan_.service->cancel(*accepted);
    throw;
  }
}

// On the connection's executor. Events may have come before.
void Generation::begin(const ApiResult<std::vector<JobId>>& accepted) {
  responder_->record().prompt_tokens = plan_.prompt_tokens;
  if (!accepted.ok()) {
    over_ = true;
    return responder_->send(accepted.error());
  }
  jobs_ = *accepted;
  if (plan_.ticket->cancelled()) {
    over_ = true;
    return cancel_jobs();
  }
  begun_ = true;
  responder_->on_disconnect([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || self->over_) return;
    self->responder_->record().finish = "disconnected";
    self->over_ = true;
    self->cancel_jobs();
  });
  if (plan_.timeout.count() > 0)
    responder_->on_deadline(plan_.timeout, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->fail(deadline_exceeded());
    });
  if (plan_.stream) begin_stream();
  take_arrivals();
}

void Generation::begin_stream() {
  responder_->start_stream(plan_.writer->stream_kind());
  responder_->on_silence([weak = weak_from_this()] {
    const auto self = weak.lock();
    return self && !self->over_ ? self->plan_.writer->still_working() : std::string();
  });
  if (std::string bytes = plan_.writer->beginning(); !bytes.empty()) responder_->write(std::move(bytes));
}

void Generation::on_event(size_t index, const TokenEvent& event) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = arrivals_.empty();
    arrivals_.push_back({index, event});
  }
  // One visit to the executor takes all that has come by then.
  if (!first) return;
  try {
    responder_->post([self = shared_from_this()] { self->take_arrivals(); });
  } catch (...) {  // there is no memory: what tells of that comes next, and asks for the visit again
    const std::lock_guard lock(mutex_);
    arrivals_.clear();
    throw;
  }
}

void Generation::take_arrivals() {
  if (!begun_) return;  // begin() takes them
  std::vector<Arrival> arrived;
  {
    const std::lock_guard lock(mutex_);
    arrived.swap(arrivals_);
  }
  std::string events;
  for (const Arrival& a : arrived) {
    if (over_) return;
    const auto* const end = a.event.as<TokenEvent::Ended>();
    if (std::optional<ApiError> failure = end != nullptr ? failure_of(*end) : std::nullopt) {
      if (!events.empty()) responder_->write(std::move(events));  // what came before it
      return fail(std::move(*failure));
    }
    Answer& answer = answers_.at(a.index);
    take(answer, a.event);
    // With the last token the end is told, which comes next.
    const auto* const token = a.event.as<TokenEvent::Token>();
    if (plan_.stream && (token == nullptr || token->ends == FinishReason::kNone)) send_piece(answer, events);
  }
  if (!events.empty()) responder_->write(std::move(events));
  complete_if_over();
}

void Generation::take(Answer& answer, const TokenEvent& event) {
  if (const auto* const begun = event.as<TokenEvent::Begun>()) take_begun(answer, *begun);
  if (const auto* const token = event.as<TokenEvent::Token>()) take_token(answer, *token);
  if (const auto* const end = event.as<TokenEvent::Ended>()) take_end(answer, *end);
}

void Generation::take_begun(Answer& answer, const TokenEvent::Begun& begun) {
  if (begun.prompt != nullptr) {
    report_of(answer)->begin(begun.prompt);
    if (!std::exchange(writing_, true)) responder_->post([self = shared_from_this()] { self->write_reports(); });
  }
  answer.cached = begun.cached_tokens;
  answer.miss = begun.prefix_miss;
  answer.diverged_at = begun.diverged_at;
  if (answer.part.index != 0 || begun.prefix_miss == PrefixMiss::kNone) return;
  responder_->record().prefix_miss = prefix_miss_name(begun.prefix_miss);
  responder_->record().diverged_at = begun.diverged_at;
}

void Generation::take_token(Answer& answer, const TokenEvent::Token& token) {
  double& first = responder_->record().first_token_seconds;
  if (first < 0) first = std::chrono::duration<double>(std::chrono::steady_clock::now() - plan_.arrived).count();
  ++answer.generated;
  answer.last = token.id;
  const bool text = answer.parser.in_text();
  const size_t told = answer.part.tokens.size();
  report_token(answer, token);
  append_text(answer, token);
  if (answer.part.tokens.size() > told) answer.part.tokens.back().of_text = text && answer.parser.in_text();
}

void Generation::take_end(Answer& answer, const TokenEvent::Ended& end) {
  end_text(answer, end.finish);
  answer.drafts = end.drafts;
  answer.drafts_accepted = end.drafts_accepted;
  const bool stopped = end.finish == FinishReason::kStop;
  answer.part.stop = stop_of(answer, end);
  const bool calls = stopped && answer.parser.complete_calls() > 0;
  answer.part.finish = calls ? "tool_calls" : finish_reason_name(end.finish);
  if (plan_.count_calls) plan_.count_calls(answer.parser.complete_calls(), answer.parser.cut_calls());
  if (answer.part.index == 0) responder_->record().finish = answer.part.finish;
  --running_;
}

// What of the request ended an answer, for answers to name.
Json Generation::stop_of(const Answer& answer, const TokenEvent::Ended& end) const {
  if (end.finish != FinishReason::kStop) return nullptr;
  if (end.stop >= 0) return plan_.stops.at(static_cast<size_t>(end.stop));
  const auto& tokens = plan_.stop_tokens;
  if (std::find(tokens.begin(), tokens.end(), answer.last) != tokens.end()) return answer.last;
  return nullptr;
}

void Generation::append_text(Answer& answer, const TokenEvent::Token& token) {
  answer.text_characters += characters(token.text);
  const bool reasoned = answer.parser.in_reasoning();
  answer.parser.push(token.text, answer.part.events);
  // The tokens that begin and end reasoning are part of it.
  if (reasoned || answer.parser.in_reasoning()) ++answer.reasoning;
  if (token.ends != FinishReason::kNone) end_text(answer, token.ends);
}

void Generation::end_text(Answer& answer, FinishReason finish) {
  if (std::exchange(answer.text_ended, true)) return;
  answer.parser.finish(finish == FinishReason::kStop, answer.part.events);
}

// Tokens that end a generation are no part of the text. Completions tell of them all the same, as vLLM does: clients
// that ask for `echo` take it that as many tokens follow the prompt's as usage counts.
void Generation::report_token(Answer& answer, const TokenEvent::Token& token) {
  if (plan_.token_ids) answer.part.token_ids.push_back(token.id);
  if (!plan_.logprobs) return;
  const bool ends =
      !plan_.report_ends && token.ends == FinishReason::kStop && plan_.model->tokenizer().is_eog(token.id);
  if (ends) return;
  if (answer.part.tokens.empty()) answer.part.text_offset = answer.text_characters;
  answer.part.tokens.push_back({token.id, token.logprob, token.top});
}

PromptReport* Generation::report_of(const Answer& answer) {
  if (plan_.prompts.empty()) return nullptr;
  return &plan_.prompts.at(static_cast<size_t>(answer.part.index) / plan_.answers_each);
}

bool Generation::waits_for_report(const Answer& answer) {
  const PromptReport* const report = report_of(answer);
  return report != nullptr && !report->done();
}

// A slice of what there is to write, then whatever else the executor has to do.
void Generation::write_reports() {
  if (over_) return;
  const auto at = std::find_if(plan_.prompts.begin(), plan_.prompts.end(),
                               [](const PromptReport& r) { return r.begun() && !r.done(); });
  if (at == plan_.prompts.end()) {
    writing_ = false;
    return;
  }
  at->write(kReportedAtOnce);
  if (at->done()) send_report(static_cast<size_t>(at - plan_.prompts.begin()));
  responder_->post([self = shared_from_this()] { self->write_reports(); });
}

// What the answers to a prompt have had to hold back until now.
void Generation::send_report(size_t prompt) {
  if (plan_.stream) {
    std::string events;
    for (size_t i = 0; i < plan_.answers_each; ++i) send_piece(answers_.at(prompt * plan_.answers_each + i), events);
    responder_->write(std::move(events));
  }
  complete_if_over();
}

void Generation::send_piece(Answer& answer, std::string& events) {
  if (waits_for_report(answer)) return;
  if (!std::exchange(answer.opened, true)) {
    events += plan_.writer->opening(answer.part.index, report_of(answer), usage_now());
  }
  AnswerPart& part = answer.part;
  AnswerPart end{.index = part.index, .finish = std::exchange(part.finish, {}), .stop = part.stop};
  if (!part.events.empty() || !part.tokens.empty() || !part.token_ids.empty())
    events += plan_.writer->piece(part, usage_now());
  part = std::move(end);
  if (!part.finish.empty()) events += plan_.writer->piece(part, usage_now());
}

Usage Generation::usage() const {
  using Seconds = std::chrono::duration<double>;
  Usage u{.prompt_tokens = plan_.prompt_tokens};
  if (plan_.counts_reasoning) u.reasoning_tokens = 0;
  for (const Answer& a : answers_) {
    u.generated_tokens += a.generated;
    if (u.reasoning_tokens) *u.reasoning_tokens += a.reasoning;
    u.drafts += a.drafts;
    u.drafts_accepted += a.drafts_accepted;
  }
  // A prompt counts once, as its first answer found it: the others find what that one computed.
  for (size_t i = 0; i < answers_.size(); i += plan_.answers_each) u.cached_tokens += answers_[i].cached;
  if (plan_.cache_info) u.cache = cache_info();
  u.total_seconds = Seconds(std::chrono::steady_clock::now() - plan_.arrived).count();
  u.first_token_seconds = responder_->record().first_token_seconds;
  return u;
}

// Of each prompt, as its first answer found it.
Json Generation::cache_info() const {
  Json all = Json::array();
  for (size_t i = 0; i < answers_.size(); i += plan_.answers_each) {
    const Answer& a = answers_[i];
    const bool missed = a.miss != PrefixMiss::kNone;
    all.push_back({{"cached_tokens", a.cached},
                   {"miss", missed ? Json(std::string(prefix_miss_name(a.miss))) : Json()},
                   {"diverged_at", a.diverged_at >= 0 ? Json(a.diverged_at) : Json()},
                   {"positions", plan_.cache_positions.at(i / plan_.answers_each)}});
  }
  return all;
}

void Generation::fill_record() {
  RequestRecord& r = responder_->record();
  const Usage u = usage();
  r.cached_tokens = u.cached_tokens;
  r.generated_tokens = u.generated_tokens;
}

void Generation::complete_if_over() {
  if (running_ > 0 || over_) return;
  for (const PromptReport& r : plan_.prompts)
    if (!r.done()) return;
  complete();
}

void Generation::complete() {
  over_ = true;
  fill_record();
  if (plan_.stream) {
    responder_->write(plan_.writer->end(usage_now()));
    return responder_->finish_stream();
  }
  std::vector<WholeAnswer> answers;
  for (const Answer& a : answers_) answers.push_back({&a.part, report_of(a)});
  responder_->send(HttpResponse{.body = plan_.writer->whole(answers, usage())});
}

void Generation::fail(ApiError error) {
  if (over_) return;
  over_ = true;
  fill_record();
  responder_->record().finish = error.code.empty() ? "error" : error.code;
  cancel_jobs();
  if (!plan_.stream) return responder_->send(error);
  responder_->write(plan_.writer->failure(error));
  responder_->finish_stream();
}

void Generation::cancel_jobs() {
  fill_record();
  plan_.service->cancel(jobs_);
}

}  // namespace quire::server
