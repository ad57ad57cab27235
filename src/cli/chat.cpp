// quire chat: a conversation with the model of a server.
#include <unistd.h>

#include <csignal>

#include "cli/chat/remote_partner.h"
#include "cli/chat/session.h"
#include "cli/commands.h"
#include "command/api_key.h"
#include "command/ending.h"
#include "command/options.h"
#include "command/text_input.h"
#include "core/output.h"

namespace quire::cli {
namespace {

struct ChatOptions {
  ServerOptions server;
  SamplingOptions sampling;
  std::string prompt, file, system, key_file;
  int64_t max_tokens = -1;
  bool think = false, quiet = false;
  const Flag* think_flag = nullptr;

  void add(Flags& flags);
  Result<ChatSettings> settings() const;
};

void ChatOptions::add(Flags& flags) {
  flags.add("-u,--url,URL", &server.url, "The server: http[s]://host[:port], or host:port").required();
  flags.add("--model", &server.model, "Name of the model there (default: the first it lists)");
  flags.add("--api-key-file FILE", &key_file,
            "File with the key, of which the first line that has one is taken; -: asks for it at the terminal");
  flags.add("--ca-file FILE", &server.ca_file, "Certificates (PEM) to trust beside the system's");
  flags.add("-p,--prompt,PROMPT", &prompt, "One message instead of a conversation");
  flags.add("-f,--file FILE", &file, "Read it from a file; - for standard input");
  flags.add("--system", &system, "System message");
  think_flag = &flags.add("--think,!--no-think", &think, "Ask for thinking, or for none (default: as the server does)");
  sampling.add_of_requests(flags);
  flags.add("-n,--max-tokens", &max_tokens, at_least(1).or_else(-1, "as many as the server allows"),
            "Tokens to generate at most; -1: as many as the server allows");
  flags.add("--stop", &server.stop, "Text that ends the answer (repeatable)");
  flags.add("-q,--quiet", &quiet, "No status lines, and in a conversation no banner");
}

Result<ChatSettings> ChatOptions::settings() const {
  ChatSettings s;
  s.max_tokens = max_tokens, s.think = think, s.stats = !quiet, s.server = true;
  s.given = sampling.all_given();
  QUIRE_TRY(s.sampling, sampling.parsed());
  if (think_flag->given()) s.given.insert("think");
  return s;
}

Status answer_once(const ChatOptions& o, ChatPartner& partner, const ChatSettings& settings, std::string prompt) {
  if (prompt.empty()) return request_error("the prompt is empty");
  Conversation conversation{.system = o.system, .turns = {}};
  conversation.turns.push_back({true, std::move(prompt), {}});
  Console console;
  QUIRE_TRY(const auto result, partner.answer(conversation, settings, console));
  const auto* const answer = std::get_if<ChatAnswer>(&result);
  if (answer == nullptr) return request_error("the prompt is too long for the model of {}", o.server.url);
  if (!o.quiet)
    tell_line(fmt::format("[{} | prompt {} tokens | generated {} tokens, {:.1f} tokens/s]", answer->finish,
                          answer->prompt_tokens, answer->tokens, answer->rate));
  if (answer->finish == "cancelled") end_by_signal(SIGINT);
  return {};
}

Status chat(ChatOptions& o) {
  if (!o.prompt.empty() && !o.file.empty()) return request_error("give one of --prompt and --file");
  QUIRE_TRY(ChatSettings settings, o.settings());
  if (!o.key_file.empty()) {
    QUIRE_TRY(o.server.key, key_for_server(o.key_file));
  }
  std::unique_ptr<RemotePartner> partner;
  const bool converse = o.prompt.empty() && o.file.empty() && isatty(STDIN_FILENO) != 0;
  if (!converse && o.prompt.empty()) {
    QUIRE_TRY(o.prompt, read_text(o.file.empty() ? "-" : o.file));
  }
  QUIRE_TRY(partner, RemotePartner::connect(o.server));
  if (converse) return ChatSession(*partner, std::move(settings), o.system, o.quiet).run();
  const CancelKey cancel_key;
  return answer_once(o, *partner, settings, std::move(o.prompt));
}

}  // namespace

Action add_chat(Flags& flags) {
  auto o = std::make_shared<ChatOptions>();
  o->add(flags);
  flags.footer(
      "Without a prompt: a conversation at the terminal, with the commands of `quire run`, or the prompt from "
      "standard input.");
  return [o] { return chat(*o); };
}

}  // namespace quire::cli
