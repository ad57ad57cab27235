// The conversation at the terminal: quire run -m FILE without a prompt.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/run.h"

namespace quire::cli {

Status chat_at_terminal(const RunOptions& o, const std::shared_ptr<const LoadedModel>& model,
                        EngineOptions options) {
  options.prefix_cache = true;  // each turn goes on from the one before
  QUIRE_TRY(const std::unique_ptr<Engine> engine, Engine::create(model, std::move(options)));
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (!o.system.empty()) messages.push_back({{"role", "system"}, {"content", o.system}});
  const nlohmann::ordered_json first = messages;
  std::fprintf(stderr, "%s. /clear starts anew, /exit or Ctrl-D ends, Ctrl-C stops an answer.\n",
               model->model->config().name.empty() ? "Chat" : model->model->config().name.c_str());
  const CancelKey cancel_key;
  std::string line;
  for (;;) {
    std::fprintf(stderr, "> ");
    if (!std::getline(std::cin, line)) break;
    if (line == "/exit" || line == "/quit") break;
    if (line == "/clear") {
      messages = first;
      continue;
    }
    if (line.empty()) continue;
    messages.push_back({{"role", "user"}, {"content", line}});
    Result<std::vector<TokenId>> tokens = encode_chat(*model, messages, o.think);
    if (!tokens.ok()) {
      // A message that the template refuses; another one may pass.
      if (tokens.error().fault != Fault::kRequest && tokens.error().fault != Fault::kModelFile)
        return tokens.take_error();
      std::fprintf(stderr, "quire: %s\n", tokens.error().message.c_str());
      messages.erase(messages.size() - 1);
      continue;
    }
    QUIRE_TRY(Request request, o.request(std::move(*tokens)));
    const Output out = generate(*engine, std::move(request), [](const TokenEvent& e) {
      std::fwrite(e.text.data(), 1, e.text.size(), stdout);
      std::fflush(stdout);
    });
    std::printf("\n");
    if (out.error) {
      // A conversation that outgrew the context ends here; anything else the next message may avoid.
      std::fprintf(stderr, "quire: %s\n", out.error->message.c_str());
      messages.erase(messages.size() - 1);
      continue;
    }
    messages.push_back({{"role", "assistant"}, {"content", out.text}});
    print_status_line(out, *engine);
  }
  return {};
}

}  // namespace quire::cli
