#include "server/model_context.h"

#include <algorithm>
#include <ctime>

#include "server/cache_marks.h"
#include "server/protocol/reasoning.h"

namespace quire::server {

ModelContext::ModelContext(std::shared_ptr<const LoadedModel> loaded, Options options)
    : loaded_(std::move(loaded)), options_(std::move(options)), created_(std::time(nullptr)) {}

Result<std::shared_ptr<const ModelContext>> ModelContext::create(std::shared_ptr<const LoadedModel> loaded,
                                                                 Options options) {
  if (!loaded->tokenizer) return file_error("{}: this file has no tokenizer, so it cannot be served", options.path);
  std::shared_ptr<ModelContext> m(new ModelContext(std::move(loaded), std::move(options)));
  const Tokenizer& t = m->tokenizer();
  m->options_.limits.vocab = t.size();
  m->options_.limits.context = m->options_.context;
  m->template_source_ = m->options_.chat_template.empty() ? std::string(t.chat_template()) : m->options_.chat_template;
  if (!m->template_source_.empty()) {
    QUIRE_TRY(m->chat_, ChatTemplate::parse(m->template_source_));
    m->options_.limits.roles = m->chat_->roles();
    for (const char* variable : {"reasoning_effort", "enable_thinking", "thinking"})
      if (std::string& to = m->options_.limits.effort_variable; to.empty() && m->chat_->references(variable))
        to = variable;
  }
  size_t longest = 1;
  for (TokenId id = 0; id < t.size(); ++id) longest = std::max(longest, t.token_bytes(id, true).size());
  // Normalisation (NFC) makes no text shorter than a third: three letters of Hangul, 9 bytes, become one of 3.
  m->max_text_bytes_ = std::min<size_t>(3 * longest * static_cast<size_t>(m->context()), Tokenizer::kMaxTextBytes);
  return std::shared_ptr<const ModelContext>(std::move(m));
}

ApiStatus ModelContext::check_name(const std::string& asked) const {
  if (asked.empty() || std::find(names().begin(), names().end(), asked) != names().end()) return {};
  return ApiError{404, fmt::format("the model '{}' does not exist; this server has '{}'", asked, name()), "model",
                  "model_not_found"};
}

ApiError ModelContext::too_long(std::string_view prompt_tokens) const {
  return bad_field("", "context_length_exceeded",
                   "this model's context holds {} tokens, prompt and answer together, but the prompt has {}", context(),
                   prompt_tokens);
}

ApiResult<std::vector<TokenId>> ModelContext::encode_text(const std::string& text, EncodeOptions options) const {
  if (text.size() > max_text_bytes_) return too_long(fmt::format("{} bytes", text.size()));
  return tokenizer().encode(text, options);
}

ApiResult<EncodedPrompt> ModelContext::encode(Conversation c) const {
  if (!chat_)
    return bad_field("messages", "no_chat_template",
                     "this model has no chat template; use /v1/completions, or start the server with --chat-template");
  const Tokenizer& t = tokenizer();
  TemplateOptions o{.add_generation_prompt = c.add_generation_prompt, .extra = &*c.template_variables};
  if (t.bos()) o.bos_token = std::string(t.token_text(*t.bos()));
  if (t.eos()) o.eos_token = std::string(t.token_text(*t.eos()));
  const std::time_t now = std::time(nullptr);
  localtime_r(&now, &o.now.emplace());
  const RenderMessages render = [&](const Json& messages) { return chat_->render(messages, Json(), o); };
  Result<RenderedPrompt> prompt = render(*c.messages);
  if (!prompt.ok()) {
    ApiError e = to_api_error(prompt.error());
    e.param = "messages";
    return e;
  }
  if (options_.special_in_content) prompt->foreign.clear();
  EncodedPrompt p;
  // BOS is the template's business; encode() does not double one that it wrote.
  QUIRE_TRY(p.tokens,
            encode_text(prompt->text, {.add_special = true, .parse_special = true, .plain = prompt->foreign}));
  p.inside_reasoning = ends_in_reasoning(prompt->text);
  for (const size_t at : find_marks(c, prompt->text, render))
    p.cache_positions.push_back(tokens_before(t, *prompt, at, p.tokens));
  p.text = std::move(prompt->text);
  return p;
}

ApiResult<EncodedPrompt> ModelContext::encode(Prompt prompt, bool add_special) const {
  EncodedPrompt p;
  if (auto* const tokens = std::get_if<std::vector<TokenId>>(&prompt)) {
    p.tokens = std::move(*tokens);
  } else {
    p.text = std::get<std::string>(std::move(prompt));
    QUIRE_TRY(p.tokens, encode_text(p.text, {.add_special = add_special, .parse_special = true}));
  }
  return p;
}

ApiStatus ModelContext::check_input(size_t tokens) const {
  if (tokens == 0) return bad_field("input", "invalid_value", "an input is empty: there is nothing to embed");
  if (static_cast<int64_t>(tokens) > context())
    return bad_field("input", "context_length_exceeded", "this model's context holds {} tokens, but an input has {}",
                     context(), tokens);
  return {};
}

ApiResult<int64_t> ModelContext::room_for(size_t prompt_tokens, std::optional<int64_t> max_tokens) const {
  if (prompt_tokens == 0)
    return bad_field("prompt", "invalid_value", "the prompt is empty: there is nothing to continue");
  const auto prompt = static_cast<int64_t>(prompt_tokens);
  if (prompt + std::min<int64_t>(max_tokens.value_or(1), 1) > context())
    return too_long(fmt::format("{} tokens", prompt));
  const int64_t room = context() - prompt;
  if (!max_tokens) return room;
  if (*max_tokens > room)
    return bad_field("max_tokens", "context_length_exceeded",
                     "this model's context holds {} tokens, prompt and answer together, but the prompt has {} and "
                     "'max_tokens' asks for {}",
                     context(), prompt, *max_tokens);
  return *max_tokens;
}

}  // namespace quire::server
