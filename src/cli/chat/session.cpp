#include "cli/chat/session.h"

#include "cli/chat/chat_prompt.h"
#include "cli/chat/history_store.h"
#include "command/help.h"
#include "command/options.h"
#include "command/text_input.h"
#include "core/escape.h"
#include "core/output.h"
#include "tokenizer/unicode.h"

namespace quire::cli {
namespace {

using End = TypedLine::End;

constexpr int64_t kMaxAttachedBytes = int64_t{16} << 20;

std::string_view file_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

ChatSession::ChatSession(ChatPartner& partner, ChatSettings settings, std::string system, bool quiet)
    : partner_(partner), settings_(std::move(settings)), quiet_(quiet), editor_(history_file(), console_.colours()) {
  conversation_.system = std::move(system);
  settings_.stats = !quiet;
  console_.set_wraps(settings_.wrap);
  editor_.set_completer(complete_chat_line);
}

Status ChatSession::run() {
  if (!quiet_) {
    const std::string context = partner_.context() > 0 ? fmt::format(", context {}", partner_.context()) : "";
    console_.status(
        fmt::format("{}{}. /help lists commands, Ctrl-D ends, Ctrl-C stops an answer.", partner_.name(), context));
  }
  for (;;) {
    const TypedLine typed = read_message();
    if (typed.end == End::kEndOfFile) return {};
    if (typed.end == End::kInterrupt || typed.text.find_first_not_of(" \t\n") == typed.text.npos) continue;
    editor_.remember(typed.text);
    const Result<ChatCommand> command = parse_chat_command(typed.text);
    Next next = Next::kGoOn;
    if (!command.ok())
      console_.fail(command.error().message);
    else
      QUIRE_CHECKED(obey_or_answer(*command, next));
    if (next == Next::kEnd) return {};
  }
}

Status ChatSession::obey_or_answer(const ChatCommand& command, Next& next) {
  using Kind = ChatCommand::Kind;
  if (command.kind == Kind::kMessage) return take_turn(command.argument);
  if (command.kind == Kind::kRegen) return regenerate();
  if (command.kind == Kind::kEdit) return edit();
  next = obey(command);
  return {};
}

// A line, or what stands between two """, of which the first begins a line and the second ends one.
TypedLine ChatSession::read_message() {
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

ChatSession::Next ChatSession::obey(const ChatCommand& command) {
  using Kind = ChatCommand::Kind;
  switch (command.kind) {
    case Kind::kBye:
      return Next::kEnd;
    case Kind::kHelp:
      console_.say(chat_help(terminal_columns()));
      break;
    case Kind::kClear:
      conversation_.turns.clear();
      attached_.clear();
      pictures_.clear();
      used_ = 0;
      console_.say("What was said is forgotten.");
      break;
    case Kind::kSystem:
      show_or_set_system(command.argument);
      break;
    case Kind::kSet:
      set(command.argument);
      break;
    case Kind::kSave:
      if (const Status s = conversation_.save(command.argument, partner_.name()); !s.ok())
        console_.fail(s.error().message);
      else
        console_.say(fmt::format("Saved: {}", escaped(command.argument, 200)));
      break;
    case Kind::kLoad:
      load(command.argument);
      break;
    case Kind::kRead:
      read_file(command.argument);
      break;
    case Kind::kImage:
      attach_picture(command.argument);
      break;
    case Kind::kShow:
      show(command.argument);
      break;
    case Kind::kRegen:
    case Kind::kEdit:
    case Kind::kMessage:
      break;  // obey_or_answer
  }
  return Next::kGoOn;
}

void ChatSession::set(const std::string& argument) {
  if (argument.empty()) return console_.say(settings_.list());
  if (const Status s = settings_.set(argument, partner_.vocabulary()); !s.ok()) console_.fail(s.error().message);
  console_.set_wraps(settings_.wrap);
}

void ChatSession::show_or_set_system(const std::string& argument) {
  if (!argument.empty()) conversation_.system = argument == R"("")" ? "" : argument;
  console_.say(conversation_.system.empty() ? "There is no system message."
                                            : "System message: " + harmless(conversation_.system));
}

std::string ChatSession::of_context(int64_t tokens) const {
  return partner_.context() > 0 ? fmt::format("{} of {} tokens", tokens, partner_.context())
                                : fmt::format("{} tokens", tokens);
}

std::string ChatSession::info() const {
  std::string text = partner_.about();
  const std::string used = used_ > 0 || conversation_.turns.empty() ? of_context(used_) : "not known yet";
  text += fmt::format("  context used         {}, {} messages\n", used, conversation_.turns.size());
  if (!attached_.empty()) text += fmt::format("  before the next one  {} bytes of files\n", attached_.size());
  if (!pictures_.empty()) text += fmt::format("  before the next one  {} pictures\n", pictures_.size());
  text += fmt::format("  system message       {}\n",
                      conversation_.system.empty() ? "none" : escaped(conversation_.system, 200));
  if (!settings_.source.empty())
    text += fmt::format("  sampling             by {}, where it is not set\n", settings_.source);
  return text + settings_.list();
}

void ChatSession::show(const std::string& topic) {
  if (topic.empty() || topic == "info") return console_.say(info());
  if (topic == "template") {
    const Result<std::string> text = partner_.chat_template();
    return text.ok() ? console_.say(harmless(*text)) : console_.fail(text.error().message);
  }
  if (!conversation_.system.empty()) console_.say("(system) " + harmless(conversation_.system));
  for (const Turn& t : conversation_.turns) {
    if (!t.thinking.empty()) console_.status("(thinking) " + harmless(t.thinking));
    const std::string pictures = t.pictures.empty() ? "" : fmt::format("({} pictures) ", t.pictures.size());
    console_.say((t.user ? "> " : "") + pictures + harmless(t.content));
  }
  if (conversation_.turns.empty()) console_.say("Nothing was said yet.");
}

void ChatSession::load(const std::string& path) {
  Result<Conversation> loaded = Conversation::load(path);
  if (!loaded.ok()) return console_.fail(loaded.error().message);
  conversation_ = std::move(loaded).value();
  used_ = 0;
  console_.say(fmt::format("{} messages and {} system message; the conversation goes on.", conversation_.turns.size(),
                           conversation_.system.empty() ? "no" : "a"));
}

void ChatSession::read_file(const std::string& path) {
  if (path == "-") return console_.fail("/read takes a file; what is typed is a message");
  const Result<std::string> text = read_text(path, kMaxAttachedBytes, "that is too long for a message");
  if (!text.ok()) return console_.fail(text.error().message);
  if (text->empty() || text->find('\0') != text->npos)
    return console_.fail(fmt::format("{} {}", escaped(path, 200), text->empty() ? "is empty" : "is no text"));
  if (std::ssize(attached_) + std::ssize(*text) > kMaxAttachedBytes)
    return console_.fail(
        fmt::format("{}: with the files before it that is too long for a message", escaped(path, 200)));
  attached_ += fmt::format("File {}:\n\n{}\n\n", escaped(file_name(path), 200), unicode::replace_invalid(*text));
  console_.say(fmt::format("{}: {} bytes go before the next message.", escaped(path, 200), text->size()));
}

void ChatSession::attach_picture(const std::string& path) {
  Result<server::PicturePtr> picture = read_picture(path);
  if (!picture.ok()) return console_.fail(picture.error().message);
  pictures_.push_back(std::move(*picture));
  console_.say(
      fmt::format("{}: {} bytes go before the next message.", escaped(path, 200), pictures_.back()->bytes.size()));
}

// Where there is no answer, the conversation is what it was.
Status ChatSession::answer_or_restore(const Conversation& before, bool& done) {
  Result<bool> result = answered();
  done = result.ok() && *result;
  if (done) return {};
  conversation_ = before;
  if (result.ok()) return {};
  const Fault fault = result.error().fault;
  if (fault != Fault::kRequest && fault != Fault::kModelFile) return result.take_error();
  console_.fail(result.error().message);
  return {};
}

Status ChatSession::take_turn(const std::string& message) {
  const Conversation before = conversation_;
  conversation_.turns.push_back({true, attached_ + message, {}, pictures_});
  bool done = false;
  QUIRE_CHECKED(answer_or_restore(before, done));
  if (done) {
    attached_.clear();
    pictures_.clear();
  }
  return {};
}

Status ChatSession::regenerate() {
  if (conversation_.turns.empty()) {
    console_.fail("/regen: nothing was said yet");
    return {};
  }
  const Conversation before = conversation_;
  conversation_.turns.pop_back();
  if (!settings_.server || settings_.given.contains("seed")) ++settings_.sampling.seed;
  bool done = false;
  return answer_or_restore(before, done);
}

Status ChatSession::edit() {
  if (conversation_.turns.size() < 2) {
    console_.fail("/edit: nothing was said yet");
    return {};
  }
  const Conversation before = conversation_;
  const Turn edited = conversation_.turns[conversation_.turns.size() - 2];
  const std::string& message = edited.content;
  if (message.size() > HistoryStore::kMaxEntryBytes) {
    console_.fail("/edit: the message is too long to be edited here");
    return {};
  }
  const TypedLine typed = editor_.read("edit> ", message);
  if (typed.end != End::kLine || typed.text.find_first_not_of(" \t\n") == typed.text.npos) {
    console_.say("The message stays as it was.");
    return {};
  }
  editor_.remember(typed.text);
  conversation_.turns.resize(conversation_.turns.size() - 2);
  conversation_.turns.push_back({true, typed.text, {}, edited.pictures});
  bool done = false;
  return answer_or_restore(before, done);
}

// Has the last message answered. False: the conversation is too long, and the message is taken back.
Result<bool> ChatSession::answered() {
  for (bool dropping = false;;) {
    QUIRE_TRY(const auto result, partner_.answer(conversation_, settings_, console_));
    if (const auto* over = std::get_if<ChatTooLong>(&result)) {
      QUIRE_TRY(const bool again, make_room(*over, dropping));
      if (!again) return false;
      continue;
    }
    conversation_.turns.push_back({false, console_.content(), console_.thinking(), {}});
    show_status(std::get<ChatAnswer>(result));
    used_ = std::get<ChatAnswer>(result).prompt_tokens + std::get<ChatAnswer>(result).tokens;
    return true;
  }
}

// Asks what to do about a conversation that leaves no room for an answer, once for each message; false: the message is
// taken back.
Result<bool> ChatSession::make_room(const ChatTooLong& over, bool& dropping) {
  const auto too_long = [&]() -> Error {
    if (over.tokens == 0) return request_error("this message alone is too long for the model; it is taken back");
    return request_error("this message alone has {} tokens, and the context holds {}; it is taken back", over.tokens,
                         over.context);
  };
  bool clears = false;
  if (!dropping) {
    console_.say(over.tokens == 0 ? "The conversation is too long for the model."
                                  : fmt::format("The conversation has {} tokens, and the context holds {} with the "
                                                "answer.",
                                                over.tokens, over.context));
    console_.say(
        "  d  drop the oldest turns as far as needed\n"
        "  c  /clear: forget all turns before this message\n"
        "  Enter  take the message back");
    const TypedLine choice = editor_.read("d, c or Enter: ");
    if (choice.end != End::kLine || (choice.text != "d" && choice.text != "c")) {
      console_.say("The message is taken back.");
      return false;
    }
    clears = choice.text == "c";
    dropping = true;
  }
  const int64_t room = over.context - over.context / 4;  // a quarter is for the answer
  size_t dropped = 0;
  for (bool enough = false; !enough && conversation_.drop_oldest();) {
    ++dropped;
    if (clears) continue;
    QUIRE_TRY(const int64_t tokens, partner_.count_tokens(conversation_, settings_));
    enough = tokens <= room;  // or not known: the next request tells
  }
  if (dropped == 0) return too_long();
  console_.say(fmt::format("{} {} dropped.", dropped, dropped == 1 ? "turn is" : "turns are"));
  return true;
}

void ChatSession::show_status(const ChatAnswer& answer) const {
  const int64_t used = answer.prompt_tokens + answer.tokens;
  if (settings_.stats) {
    std::string line = answer.finish;
    if (answer.tokens > 0) line += fmt::format(" | {} tokens", answer.tokens);
    if (answer.rate > 0) line += fmt::format(", {:.1f} tokens/s", answer.rate);
    if (used > 0) line += fmt::format(" | {} of context", of_context(used));
    console_.status(fmt::format("[{}]", line));
  }
  if (answer.finish != "length") return;
  if (answer.context_full)
    console_.status("The context is full: the next message will ask what to drop.");
  else if (settings_.max_tokens > 0)
    console_.status(fmt::format("The answer was cut at {} tokens: /set max_tokens {}, or -1 for no limit",
                                settings_.max_tokens, 4 * settings_.max_tokens));
}

}  // namespace quire::cli
