// quire chat: a conversation with the model of a server.
#include <unistd.h>

#include <csignal>

#include "cli/api_key.h"
#include "cli/chat/remote_partner.h"
#include "cli/chat/session.h"
#include "cli/command.h"
#include "cli/ending.h"
#include "cli/options.h"
#include "core/output.h"

namespace quire::cli {
namespace {

struct ChatOptions {
  ServerOptions server;
  SamplingOptions sampling;
  std::string prompt, file, system, key_file;
  int64_t max_tokens = -1;
  bool think = false, quiet = false;
  const CLI::Option* think_option = nullptr;

  void add(CLI::App& app);
  Result<ChatSettings> settings() const;
};

void ChatOptions::add(CLI::App& app) {
  app.add_option("-u,--url,URL", server.url, "The server: http[s]://host[:port], or host:port")->required();
  app.add_option("--model", server.model, "Name of the model there (default: the first it lists)");
  app.add_option("--api-key-file", key_file,
                 "File with the key, of which the first line that has one is taken; -: asks for it at the terminal")
      ->type_name("FILE");
  app.add_option("--ca-file", server.ca_file, "Certificates (PEM) to trust beside the system's")->type_name("FILE");
  app.add_option("-p,--prompt,PROMPT", prompt, "One message instead of a conversation");
  app.add_option("-f,--file", file, "Read it from a file; - for standard input")->type_name("FILE");
  app.add_option("--system", system, "System message");
  think_option =
      app.add_flag("--think,!--no-think", think, "Ask for thinking, or for none (default: as the server does)");
  sampling.add_of_requests(app);
  app.add_option("-n,--max-tokens", max_tokens, "Tokens to generate at most; -1: as many as the server allows")
      ->capture_default_str();
  app.add_option("--stop", server.stop, "Text that ends the answer (repeatable)");
  app.add_flag("-q,--quiet", quiet, "No status lines, and in a conversation no banner");
}

Result<ChatSettings> ChatOptions::settings() const {
  if (max_tokens < 1 && max_tokens != -1)
    return request_error("--max-tokens {}: must be at least 1, or -1 for as many as the server allows", max_tokens);
  ChatSettings s;
  s.max_tokens = max_tokens, s.think = think, s.stats = !quiet, s.server = true;
  s.given = sampling.all_given();
  QUIRE_TRY(s.sampling, sampling.parsed());
  if (think_option->count() > 0) s.given.insert("think");
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

Action add_chat(CLI::App& app) {
  auto o = std::make_shared<ChatOptions>();
  o->add(app);
  app.footer(
      "Without a prompt: a conversation at the terminal, with the commands of `quire run`, or the prompt from "
      "standard input.");
  return [o] { return chat(*o); };
}

}  // namespace quire::cli
