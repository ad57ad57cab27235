#include "server/model_context.h"

#include <algorithm>
#include <ctime>

#include "server/cache_marks.h"
#include "server/protocol/reasoning.h"
#include "tokenizer/unicode.h"

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
  m->infill_ = find_infill_tokens(t, m->loaded_->file);
  m->options_.limits.infill = m->infill_.has_value();
  for (std::string& name : m->options_.names) name = unicode::replace_invalid(name);  // of a file: any bytes
  auto vocabulary = std::make_shared<const Vocabulary>(vocabulary_of(t, m->loaded_->model->config().vocab));
  m->grammars_ = std::make_unique<GrammarCache>(std::move(vocabulary), m->options_.grammars);
  m->template_source_ = m->options_.chat_template.empty() ? std::string(t.chat_template()) : m->options_.chat_template;
  if (!m->template_source_.empty()) {
    const std::string source = m->options_.chat_template.empty()
                                   ? m->options_.path + ": its chat template (--chat-template gives another one)"
                                   : "--chat-template";
    QUIRE_TRY(m->chat_, ChatTemplate::parse(m->template_source_).context(source));
    m->options_.limits.roles = m->chat_->roles();
    for (const char* variable : {"reasoning_effort", "enable_thinking", "thinking"})
      if (std::string& to = m->options_.limits.effort_variable; to.empty() && m->chat_->references(variable))
        to = variable;
    m->options_.limits.template_tools = m->chat_->references_tools();
    m->options_.limits.call_arguments = m->probe_call_arguments();
    QUIRE_TRY(m->needs_, m->probe_needs());
  }
  if (m->loaded_->vision != nullptr) QUIRE_CHECKED(m->prepare_pictures());
  if (m->options_.tool_format == nullptr) m->options_.tool_format = &tool_format_of(m->template_source_);
  size_t longest = 1;
  for (TokenId id = 0; id < t.size(); ++id) longest = std::max(longest, t.token_bytes(id, true).size());
  // Normalisation (NFC) makes no text shorter than a third: three letters of Hangul, 9 bytes, become one of 3.
  m->token_bytes_ = 3 * longest;
  m->max_text_bytes_ = std::min(m->token_bytes_ * static_cast<size_t>(m->context()), Tokenizer::kMaxTextBytes);
  return std::shared_ptr<const ModelContext>(std::move(m));
}

namespace {

bool names_none(const std::string& asked) {
  return asked.empty() || asked == "unknown" || asked == "default";
}

}  // namespace

const std::string& ModelContext::told_name(const std::string& asked) const {
  const bool served = std::find(names().begin(), names().end(), asked) != names().end();
  return !served && names_none(asked) ? name() : asked;
}

ApiStatus ModelContext::check_name(const std::string& asked) const {
  if (options_.limits.any_model || names_none(asked)) return {};
  if (std::find(names().begin(), names().end(), asked) != names().end()) return {};
  return ApiError{404, fmt::format("the model '{}' does not exist; this server has '{}'", asked, name()), "model",
                  "model_not_found"};
}

// Of a text that was not made tokens of, because no text of so many bytes fits.
ApiError ModelContext::too_long(size_t bytes, std::string_view what) const {
  const int64_t tokens = std::max(context() + 1, static_cast<int64_t>(bytes / token_bytes_));
  return context_exceeded(what, {.what = what, .context = context(), .prompt = tokens, .at_least = true});
}

ApiResult<std::vector<TokenId>> ModelContext::encode_text(const std::string& text, EncodeOptions options,
                                                          std::string_view what) const {
  if (text.size() > max_text_bytes_) return too_long(text.size(), what);
  return tokenizer().encode(text, options);
}

// What every rendering gets, but for the conversation's own.
TemplateOptions ModelContext::template_options() const {
  const Tokenizer& t = tokenizer();
  TemplateOptions o;
  if (t.bos()) o.bos_token = std::string(t.token_text(*t.bos()));
  if (t.eos()) o.eos_token = std::string(t.token_text(*t.eos()));
  const std::time_t now = std::time(nullptr);
  localtime_r(&now, &o.now.emplace());
  return o;
}

// Found out with a conversation that has a call. Where neither works, both are left to the template.
CallArguments ModelContext::probe_call_arguments() const {
  const auto works = [&](const Json& arguments) {
    const Json call = {
        {"id", "call00001"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}};
    const Json messages = {{{"role", "user"}, {"content", "a"}},
                           {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}}};
    return chat_->render(messages, Json(), template_options()).ok();
  };
  const CallArguments takes{.objects = works({{"a", "b"}}), .texts = works("{}")};
  return takes.objects || takes.texts ? takes : CallArguments{};
}

// With few steps for each: templates come from strangers.
Result<TemplateNeeds> ModelContext::probe_needs() const {
  QUIRE_TRY(const ChatTemplate trial, ChatTemplate::parse(template_source_, {.max_steps = 100'000}));
  return TemplateNeeds::probe([&](const Json& messages) { return trial.render(messages, Json(), template_options()); },
                              options_.limits.call_arguments);
}

namespace {

// Cuts a prompt behind the content of the conversation's last message, as transformers does: the white space around it
// stays if the template leaves it there. Errors: the content is not in the prompt.
ApiStatus end_within(RenderedPrompt& prompt, const std::string& content) {
  constexpr std::string_view kWhite = " \t\r\n\f\v";
  const size_t begin = content.find_first_not_of(kWhite), end = content.find_last_not_of(kWhite) + 1;
  const std::string core = content.substr(begin, end - begin);
  const size_t at = prompt.text.rfind(core);
  if (at == std::string::npos)
    return bad_field("continue_final_message", "invalid_value",
                     "the chat template does not print the last message as it is, so it cannot be gone on with");
  const std::string left = content.substr(begin);
  const size_t length = prompt.text.compare(at, left.size(), left) == 0 ? left.size() : core.size();
  prompt.text.resize(at + length);
  while (!prompt.foreign.empty() && prompt.foreign.back().begin >= prompt.text.size()) prompt.foreign.pop_back();
  if (!prompt.foreign.empty()) prompt.foreign.back().end = std::min(prompt.foreign.back().end, prompt.text.size());
  return {};
}

}  // namespace

ApiResult<EncodedPrompt> ModelContext::encode(Conversation c, bool add_special) const {
  if (!chat_)
    return bad_field("messages", "no_chat_template",
                     "this model has no chat template; use /v1/completions, or start the server with --chat-template");
  const Tokenizer& t = tokenizer();
  TemplateOptions o = template_options();
  o.add_generation_prompt = c.add_generation_prompt;
  o.extra = &*c.template_variables;
  needs_.fit(c);
  const RenderMessages plain = [&](const Json& messages) { return chat_->render(messages, *c.tools, o); };
  EncodedPrompt p{.from_messages = true};
  if (!c.pictures.files.empty()) {
    QUIRE_TRY(p.pictures, plan_pictures(*c.messages, c.pictures, loaded_->vision->spec, options_.limits.image));
  }
  const RenderMessages with_pictures = [&](const Json& messages) {
    return picture_template_.render(messages, c.pictures, p.pictures, plain);
  };
  const RenderMessages& render = c.pictures.files.empty() ? plain : with_pictures;
  Result<RenderedPrompt> prompt = render(*c.messages);
  if (!prompt.ok()) {
    ApiError e = to_api_error(prompt.error());
    e.param = "messages";
    return e;
  }
  const std::string whole = c.marks.empty() ? "" : prompt->text;
  if (c.continue_final) QUIRE_CHECKED(end_within(*prompt, c.messages->back()["content"].get_ref<const std::string&>()));
  if (options_.special_in_content) prompt->foreign.clear();
  // By default special tokens at the beginning are the template's business. One that it wrote is not doubled.
  QUIRE_TRY(p.tokens,
            encode_text(prompt->text, {.add_special = add_special, .parse_special = true, .plain = prompt->foreign},
                        "messages"));
  p.inside_reasoning = ends_in_reasoning(prompt->text);
  for (const size_t at : find_marks(c, whole, render))
    if (at <= prompt->text.size()) p.cache_positions.push_back(tokens_before(t, *prompt, at, p.tokens));
  if (!c.pictures.files.empty()) QUIRE_CHECKED(place_pictures(p));
  p.text = std::move(prompt->text);
  return p;
}

Status ModelContext::prepare_pictures() {
  const LoadedVision& vision = *loaded_->vision;
  RequestLimits& limits = options_.limits;
  limits.images = true;
  pictures_ = std::make_unique<PictureStore>(vision.spec, limits.image, limits.max_image_memory);
  if (!chat_) return {};
  // With few steps, as in probe_needs().
  QUIRE_TRY(const ChatTemplate trial, ChatTemplate::parse(template_source_, {.max_steps = 100'000}));
  const RenderMessages render = [&](const Json& messages) {
    return trial.render(messages, Json(), template_options());
  };
  picture_template_ = PictureTemplate(render, tokenizer(), vision);
  return {};
}

// Pictures claim their sizes in a few bytes each: what is far beyond the context is not written out.
ApiStatus ModelContext::place_pictures(EncodedPrompt& prompt) const {
  constexpr int64_t kMostBeyond = int64_t{1} << 20;
  int64_t all = std::ssize(prompt.tokens);
  for (const PlacedPicture& p : prompt.pictures) all += p.plan.tokens - 1;
  if (all > context() + kMostBeyond)
    return context_exceeded("messages", {.what = "messages", .context = context(), .prompt = all});
  return expand_pictures(prompt.tokens, loaded_->vision->token, picture_template_.pad(), prompt.pictures,
                         prompt.cache_positions);
}

ApiResult<EncodedPrompt> ModelContext::encode(Prompt prompt, bool add_special) const {
  EncodedPrompt p;
  if (auto* const tokens = std::get_if<std::vector<TokenId>>(&prompt)) {
    p.tokens = std::move(*tokens);
  } else {
    p.text = std::get<std::string>(std::move(prompt));
    QUIRE_TRY(p.tokens, encode_text(p.text, {.add_special = add_special, .parse_special = true}, "prompt"));
  }
  return p;
}

ApiResult<EncodedPrompt> ModelContext::encode_beginning(Prompt prompt, bool add_special) const {
  if (auto* const text = std::get_if<std::string>(&prompt); text != nullptr && text->size() > max_text_bytes_) {
    size_t end = max_text_bytes_;  // which is more than fits
    while (end > 0 && (static_cast<unsigned char>((*text)[end]) & 0xc0) == 0x80) --end;
    text->resize(end);
  }
  QUIRE_TRY(EncodedPrompt p, encode(std::move(prompt), add_special));
  const auto most = static_cast<size_t>(context());
  if (p.tokens.size() <= most) return p;
  const TokenId last = p.tokens.back();
  p.tokens.resize(most);
  if (add_special && tokenizer().add_eos() && last == tokenizer().eos()) p.tokens.back() = last;
  p.text.clear();
  return p;
}

ApiResult<std::vector<TokenId>> ModelContext::encode_plain(const std::string& text) const {
  return encode_text(text, {.add_special = false, .parse_special = false, .continues = true}, "prompt");
}

ApiStatus ModelContext::check_input(size_t tokens) const {
  if (tokens == 0) return bad_field("input", "invalid_value", "an input is empty: there is nothing to embed");
  if (static_cast<int64_t>(tokens) > context())
    return context_exceeded("input", {.what = "input", .context = context(), .prompt = static_cast<int64_t>(tokens)});
  return {};
}

ApiResult<int64_t> ModelContext::room_for(const EncodedPrompt& encoded, const GenerationParams& params) const {
  const std::optional<int64_t>& max_tokens = params.max_tokens;
  if (encoded.tokens.empty())
    return bad_field("prompt", "invalid_value", "the prompt is empty: there is nothing to continue");
  const auto prompt = std::ssize(encoded.tokens);
  const std::string_view what = encoded.from_messages ? "messages" : "prompt";
  if (prompt > context()) return context_exceeded(what, {.what = what, .context = context(), .prompt = prompt});
  const int64_t room = context() - prompt, least = std::min<int64_t>(max_tokens.value_or(1), 1);
  if (room < least)
    return context_exceeded(what, {.what = what, .context = context(), .prompt = prompt, .answer = least});
  if (!max_tokens)
    return options_.limits.max_output_tokens > 0 ? std::min(room, options_.limits.max_output_tokens) : room;
  if (params.cut_max_tokens) return std::min(*max_tokens, room);
  if (*max_tokens > room)
    return context_exceeded("max_tokens",
                            {.what = what, .context = context(), .prompt = prompt, .answer = *max_tokens});
  return *max_tokens;
}

}  // namespace quire::server
