// The conversation at the terminal: quire run FILE without a prompt.
#include "cli/chat/local_partner.h"
#include "cli/chat/session.h"
#include "cli/run.h"

namespace quire::cli {

Status chat_at_terminal(const RunOptions& o, const std::shared_ptr<const LoadedModel>& model, EngineOptions options) {
  if (!model->tokenizer || model->tokenizer->chat_template().empty())
    return request_error("{}: this file has no chat template; give a prompt to continue with --prompt", o.model.model);
  options.prefix_cache = true;  // each turn goes on from the one before
  QUIRE_TRY(std::unique_ptr<Engine> engine, Engine::create(model, std::move(options)));
  ChatSettings settings;
  settings.max_tokens = o.max_tokens, settings.think = o.think;
  settings.given = o.sampling.all_given();
  QUIRE_TRY(settings.sampling, o.sampling.parsed());
  QUIRE_TRY(const ChatSampling recommended, chat_sampling(*model));
  settings.plain = recommended.plain;
  settings.thinking = recommended.thinking;
  settings.source = recommended.source;
  LocalPartner partner(o, model, std::move(engine));
  return ChatSession(partner, std::move(settings), o.system, o.quiet).run();
}

}  // namespace quire::cli
