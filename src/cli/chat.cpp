// The conversation at the terminal: quire run -m FILE without a prompt.
#include "cli/chat/commands.h"
#include "cli/chat/console.h"
#include "cli/chat/conversation.h"
#include "cli/chat/line_editor.h"
#include "cli/run.h"
#include "core/escape.h"
#include "core/output.h"

namespace quire::cli {
namespace {

using End = TypedLine::End;

class Chat {
 public:
  Chat(const RunOptions& o, std::shared_ptr<const LoadedModel> model, std::unique_ptr<Engine> engine,
       ChatSettings settings)
      : options_(o),
        model_(std::move(model)),
        engine_(std::move(engine)),
        settings_(std::move(settings)),
        editor_(history_file(), console_.colours()) {
    conversation_.system = o.system;
    settings_.stats = !o.quiet;
  }

  Status run();

 private:
  enum class Next { kGoOn, kEnd };

  TypedLine read_message();
  Next obey(const ChatCommand& command);
  void show_or_set_system(const std::string& argument);
  void load(const std::string& path);
  Status take_turn(const std::string& message);
  Result<std::vector<TokenId>> encoded() const;
  Result<bool> make_room(std::vector<TokenId>& tokens);
  Status generate_answer(std::vector<TokenId> tokens);
  void show_status(const Output& out) const;
  std::string model_name() const;

  const RunOptions& options_;
  std::shared_ptr<const LoadedModel> model_;
  std::unique_ptr<Engine> engine_;
  ChatSettings settings_;
  CancelKey cancel_key_;
  Console console_;
  LineEditor editor_;
  Conversation conversation_;
};

std::string Chat::model_name() const {
  const std::string& name = model_->model->config().name;
  return name.empty() ? "a model without a name" : escaped(name, 80);
}

Status Chat::run() {
  if (!options_.quiet)
    console_.status(fmt::format("{}, context {}. /help lists commands, Ctrl-D ends, Ctrl-C stops an answer.",
                                model_name(), engine_->context()));
  for (;;) {
    const TypedLine typed = read_message();
    if (typed.end == End::kEndOfFile) return {};
    if (typed.end == End::kInterrupt || typed.text.find_first_not_of(" \t\n") == typed.text.npos) continue;
    editor_.remember(typed.text);
    const Result<ChatCommand> command = parse_chat_command(typed.text);
    if (!command.ok()) {
      console_.fail(command.error().message);
    } else if (command->kind == ChatCommand::Kind::kMessage) {
      QUIRE_CHECKED(take_turn(command->argument));
    } else if (obey(*command) == Next::kEnd) {
      return {};
    }
  }
}

// A line, or what stands between two """, of which the first begins a line and the second ends one.
TypedLine Chat::read_message() {
  constexpr std::string_view kQuotes = R"(""")";
  TypedLine typed = editor_.read("> ");
  if (typed.end != End::kLine || !typed.text.starts_with(kQuotes)) return typed;
  std::string text = typed.text.substr(kQuotes.size());
  while (!text.ends_with(kQuotes)) {
    typed = editor_.read("... ");
    if (typed.end != End::kLine) return typed;
    text += "\n" + typed.text;
  }
  text.resize(text.size() - kQuotes.size());
  const size_t begin = text.starts_with('\n') ? 1 : 0, end = text.ends_with('\n') ? 1 : 0;
  // A space before a slash: what is quoted is no command.
  text = text.size() > begin ? text.substr(begin, text.size() - begin - end) : "";
  return {End::kLine, text.starts_with('/') ? " " + text : text};
}

Chat::Next Chat::obey(const ChatCommand& command) {
  using Kind = ChatCommand::Kind;
  const auto report = [&](const Status& s, std::string_view done) {
    if (!s.ok())
      console_.fail(s.error().message);
    else if (!done.empty())
      console_.say(done);
  };
  switch (command.kind) {
    case Kind::kBye:
      return Next::kEnd;
    case Kind::kHelp:
      console_.say(chat_help());
      break;
    case Kind::kClear:
      conversation_.turns.clear();
      console_.say("What was said is forgotten.");
      break;
    case Kind::kSystem:
      show_or_set_system(command.argument);
      break;
    case Kind::kSet:
      if (command.argument.empty())
        console_.say(settings_.list());
      else
        report(settings_.set(command.argument, model_->model->config().vocab), "");
      break;
    case Kind::kSave:
      report(conversation_.save(command.argument, model_name()),
             fmt::format("Saved: {}", escaped(command.argument, 200)));
      break;
    case Kind::kLoad:
      load(command.argument);
      break;
    case Kind::kMessage:
      break;
  }
  return Next::kGoOn;
}

void Chat::show_or_set_system(const std::string& argument) {
  if (!argument.empty()) conversation_.system = argument == R"("")" ? "" : argument;
  console_.say(conversation_.system.empty() ? "There is no system message."
                                            : "System message: " + harmless(conversation_.system));
}

void Chat::load(const std::string& path) {
  Result<Conversation> loaded = Conversation::load(path);
  if (!loaded.ok()) return console_.fail(loaded.error().message);
  conversation_ = std::move(loaded).value();
  console_.say(fmt::format("{} messages and {} system message; the conversation goes on.", conversation_.turns.size(),
                           conversation_.system.empty() ? "no" : "a"));
}

// Errors of a message take it back; others end the conversation.
Status Chat::take_turn(const std::string& message) {
  conversation_.turns.push_back({true, message, {}});
  const auto answer = [&]() -> Result<bool> {
    QUIRE_TRY(std::vector<TokenId> tokens, encoded());
    QUIRE_TRY(const bool fits, make_room(tokens));
    if (!fits) return false;
    QUIRE_CHECKED(generate_answer(std::move(tokens)));
    return true;
  };
  Result<bool> answered = answer();
  if (answered.ok() && *answered) return {};
  if (!conversation_.turns.empty() && conversation_.turns.back().user) conversation_.turns.pop_back();
  if (answered.ok()) return {};
  const Fault fault = answered.error().fault;
  if (fault != Fault::kRequest && fault != Fault::kModelFile) return answered.take_error();
  console_.fail(answered.error().message);
  return {};
}

Result<std::vector<TokenId>> Chat::encoded() const {
  return encode_chat(*model_, conversation_.messages(), settings_.think);
}

// Asks what to do about a conversation that leaves no room for an answer; false: the message is taken back.
Result<bool> Chat::make_room(std::vector<TokenId>& tokens) {
  const auto context = static_cast<size_t>(engine_->context());
  if (tokens.size() < context) return true;
  console_.say(
      fmt::format("The conversation has {} tokens, and the context holds {} with the answer.", tokens.size(), context));
  console_.say(
      "  d  drop the oldest turns as far as needed\n"
      "  c  /clear: forget all turns before this message\n"
      "  Enter  take the message back");
  const TypedLine choice = editor_.read("d, c or Enter: ");
  if (choice.end != End::kLine || (choice.text != "d" && choice.text != "c")) {
    console_.say("The message is taken back.");
    return false;
  }
  const auto room = choice.text == "d" ? context - context / 4 : size_t{0};  // a quarter is for the answer
  size_t dropped = 0;
  while (tokens.size() > room && conversation_.drop_oldest()) {
    ++dropped;
    QUIRE_TRY(tokens, encoded());
  }
  if (tokens.size() >= context)
    return request_error("this message alone has {} tokens, and the context holds {}; it is taken back", tokens.size(),
                         context);
  console_.say(fmt::format("{} {} dropped.", dropped, dropped == 1 ? "turn is" : "turns are"));
  return true;
}

Status Chat::generate_answer(std::vector<TokenId> tokens) {
  const std::string prompt = model_->tokenizer->decode(tokens, true);
  const auto prompt_tokens = static_cast<int64_t>(tokens.size());
  QUIRE_TRY(Request request, options_.request(std::move(tokens)));
  request.sampling = settings_.sampling;
  request.max_tokens = settings_.max_tokens;
  console_.begin_answer(server::ends_in_reasoning(prompt));
  (void)CancelKey::take();  // typed before there was anything to stop
  const Output out = generate(*engine_, std::move(request), [&](const TokenEvent& e) { console_.answer(e.text); });
  console_.end_answer();
  if (out.error) return *out.error;
  QUIRE_CHECKED(flush_output());
  conversation_.turns.push_back({false, console_.content(), console_.thinking()});
  show_status(out);
  const auto used = prompt_tokens + static_cast<int64_t>(out.events.size());
  if (out.finish == FinishReason::kLength && used < engine_->context())
    console_.status(fmt::format("The answer was cut at {} tokens: /set max_tokens {}", settings_.max_tokens,
                                4 * settings_.max_tokens));
  else if (out.finish == FinishReason::kLength)
    console_.status("The context is full: the next message will ask what to drop.");
  return {};
}

void Chat::show_status(const Output& out) const {
  if (!settings_.stats) return;
  console_.status(fmt::format("[{} | {} tokens, {:.1f} tokens/s | {} of {} tokens of context]",
                              finish_reason_name(out.finish), out.events.size(), out.generation_rate(),
                              out.prompt.size() + out.events.size(), engine_->context()));
}

}  // namespace

Status chat_at_terminal(const RunOptions& o, const std::shared_ptr<const LoadedModel>& model, EngineOptions options) {
  if (!model->tokenizer || model->tokenizer->chat_template().empty())
    return request_error("{}: this file has no chat template; give a prompt to continue with --prompt", o.model.model);
  options.prefix_cache = true;  // each turn goes on from the one before
  QUIRE_TRY(std::unique_ptr<Engine> engine, Engine::create(model, std::move(options)));
  ChatSettings settings{.max_tokens = o.max_tokens, .think = o.think};
  QUIRE_TRY(settings.sampling, o.sampling.parsed());
  return Chat(o, model, std::move(engine), std::move(settings)).run();
}

}  // namespace quire::cli
