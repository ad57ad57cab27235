// The conversation at the terminal: its parts alone, and the program at a terminal of its own.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "cli/chat/chat_prompt.h"
#include "cli/chat/commands.h"
#include "cli/chat/console.h"
#include "cli/chat/conversation.h"
#include "cli/chat/history_store.h"
#include "cli/chat/line_editor.h"
#include "cli/chat/terminal_text.h"
#include "cli/chat/thinking.h"
#include "cli/chat/word_wrap.h"
#include "support/program.h"
#include "support/terminal.h"

namespace quire::test {
namespace {

using cli::ChatCommand;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// ---- Parts ----

int longest_line(const std::string& text) {
  size_t longest = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    longest = std::max(longest, end - at);
    at = end + 1;
  }
  return static_cast<int>(longest);
}

TEST(ChatCommands, AreTold) {
  const auto kind = [](std::string_view text) { return cli::parse_chat_command(text).value().kind; };
  EXPECT_EQ(kind("hello"), ChatCommand::Kind::kMessage);
  EXPECT_EQ(kind(" /hello"), ChatCommand::Kind::kMessage);
  EXPECT_EQ(kind("/?"), ChatCommand::Kind::kHelp);
  EXPECT_EQ(kind("/quit"), ChatCommand::Kind::kBye);
  EXPECT_EQ(kind("/system"), ChatCommand::Kind::kSystem);
  EXPECT_EQ(cli::parse_chat_command("/system  Be brief. ").value().argument, "Be brief.");
  const auto refusal = [](std::string_view text) { return cli::parse_chat_command(text).error().message; };
  EXPECT_THAT(refusal("/cleer"), HasSubstr("no command '/cleer' (did you mean /clear?)"));
  EXPECT_THAT(refusal("/usr/bin/env"), HasSubstr("no command '/usr/bin/env'; /help lists them"));
  EXPECT_THAT(refusal("/"), HasSubstr("/help lists them"));
  EXPECT_THAT(refusal("/save"), HasSubstr("FILE is missing"));
  EXPECT_THAT(refusal("/clear all"), HasSubstr("takes nothing"));
  EXPECT_EQ(cli::parse_chat_command("/read notes.txt").value().kind, ChatCommand::Kind::kRead);
  EXPECT_EQ(kind("/image a.png"), ChatCommand::Kind::kImage);
  EXPECT_EQ(kind("/regen"), ChatCommand::Kind::kRegen);
  EXPECT_EQ(kind("/edit"), ChatCommand::Kind::kEdit);
  EXPECT_EQ(kind("/show template"), ChatCommand::Kind::kShow);
  EXPECT_THAT(refusal("/show wheels"), HasSubstr("it shows info, template or messages"));
  EXPECT_THAT(refusal("/read"), HasSubstr("FILE is missing"));
  const std::string help = cli::chat_help(0);
  for (const char* name :
       {"/help", "/bye", "/clear", "/system", "/set", "/save", "/load", "/regen", "/edit", "/read", "/show", "Tab"})
    EXPECT_THAT(help, HasSubstr(name));
  for (const int columns : {40, 60, 120}) EXPECT_LE(longest_line(cli::chat_help(columns)), columns);
}

TEST(ChatCommands, AreCompleted) {
  const auto words = [](std::string_view line) { return cli::complete_chat_line(line).words; };
  EXPECT_THAT(words("/re"), ElementsAre("/read ", "/regen "));
  EXPECT_THAT(words("/sho"), ElementsAre("/show "));
  EXPECT_THAT(words("/set top"), ElementsAre("top_k ", "top_p "));
  EXPECT_EQ(cli::complete_chat_line("/set  top").typed, 3u);
  EXPECT_THAT(words("/show t"), ElementsAre("template "));
  EXPECT_THAT(words("/nothing"), ElementsAre());
  EXPECT_THAT(words("hello"), ElementsAre());
  EXPECT_THAT(words(" /re"), ElementsAre());
  EXPECT_THAT(words("/read " QUIRE_SOURCE_DIR "/REA"), ElementsAre(QUIRE_SOURCE_DIR "/README.md "));
  EXPECT_THAT(words("/load " QUIRE_SOURCE_DIR "/mod"), ElementsAre(QUIRE_SOURCE_DIR "/models/"));
  EXPECT_THAT(words("/read /no/such/folder/x"), ElementsAre());
}

// What a terminal of so many columns shows of what it is sent.
std::string shown(std::string_view sent) {
  std::string screen;
  for (size_t i = 0; i < sent.size(); ++i) {
    if (!sent.substr(i).starts_with("\033[")) {
      screen += sent[i];
      continue;
    }
    size_t end = i + 2;
    while (end < sent.size() && (sent[end] < '@' || sent[end] > '~')) ++end;
    if (sent[end] == 'D') screen.resize(screen.size() - std::stoul(std::string(sent.substr(i + 2, end - i - 2))));
    i = end;
  }
  return screen;
}

TEST(ChatWrap, BreaksLinesBetweenWords) {
  const auto wrapped = [](std::string_view text, int columns, size_t piece) {
    cli::WordWrap wrap;
    wrap.set_columns(columns);
    std::string out;
    for (size_t i = 0; i < text.size(); i += piece) out += wrap.push(text.substr(i, piece));
    return shown(out);
  };
  const std::string text = "The quick brown fox jumps over the lazy dog and on";
  for (const size_t piece : {size_t{1}, size_t{3}, size_t{7}, text.size()}) {
    SCOPED_TRACE(piece);
    EXPECT_EQ(wrapped(text, 16, piece), "The quick brown\nfox jumps over \nthe lazy dog \nand on");
    EXPECT_EQ(wrapped("one two\nthree four five", 12, piece), "one two\nthree four \nfive");
    EXPECT_EQ(wrapped("```\na line of code that is long\n```\nthree four five", 12, piece),
              "```\na line of code that is long\n```\nthree four \nfive");
    EXPECT_EQ(wrapped("see https://example.org/a/long/path here", 12, piece),
              "see \nhttps://example.org/a/long/path \nhere")
        << "a word that is longer than a line";
  }
  EXPECT_EQ(wrapped(text, 0, 5), text) << "no terminal";
  EXPECT_EQ(wrapped("中文字符中文字符", 11, 24), "中文字符中\n文字符");
  EXPECT_EQ(wrapped("e\u0301e\u0301e\u0301 e\u0301e", 5, 24), "e\u0301e\u0301e\u0301 \ne\u0301e");
}

TEST(ChatSettings, AreCheckedAndKept) {
  cli::ChatSettings s;
  EXPECT_TRUE(s.set("temperature 0.5", 100).ok());
  EXPECT_TRUE(s.set("top_k=40", 100).ok());
  EXPECT_TRUE(s.set("seed  18446744073709551615", 100).ok());
  EXPECT_TRUE(s.set("think on", 100).ok());
  EXPECT_EQ(s.sampling.temperature, 0.5F);
  EXPECT_EQ(s.sampling.top_k, 40);
  EXPECT_EQ(s.sampling.seed, UINT64_MAX);
  EXPECT_TRUE(s.think);
  EXPECT_THAT(s.list(), HasSubstr("temperature          0.5\n"));
  EXPECT_EQ(s.max_tokens, -1) << "an answer ends by itself";
  EXPECT_TRUE(s.set("max_tokens 8k", 100).ok());
  EXPECT_EQ(s.max_tokens, 8000);
  EXPECT_TRUE(s.set("max_tokens 2K", 100).ok());
  EXPECT_EQ(s.max_tokens, 2048);
  EXPECT_TRUE(s.set("max_tokens=-1", 100).ok());
  EXPECT_EQ(s.max_tokens, -1);
  for (const char* bad : {"temperature", "temperature -1", "temperature 1x", "temperature nan", "top_p 2", "top_k 1.5",
                          "top_k 99999999999", "top_k -1", "seed -1", "max_tokens 0", "max_tokens -2", "max_tokens 8q",
                          "think yes", "colour red", ""}) {
    const cli::ChatSettings before = s;
    EXPECT_FALSE(s.set(bad, 100).ok()) << bad;
    EXPECT_EQ(s.list(), before.list()) << bad;
  }
}

TEST(ChatSettings, ThinkingHasItsOwnSampling) {
  // Of the rows of kSamplingFields: temperature, top_k, top_p.
  cli::ChatSettings s{.plain = {{0.7, std::nullopt, 0.8}}, .thinking = {{1.0, std::nullopt, 0.95}}};
  s.plain.apply(s.sampling);
  EXPECT_TRUE(s.set("top_p 0.5", 100).ok());
  EXPECT_TRUE(s.set("think on", 100).ok());
  EXPECT_EQ(s.sampling.temperature, 1.0F);
  EXPECT_EQ(s.sampling.top_p, 0.5F) << "what was set stays";
  EXPECT_TRUE(s.set("think off", 100).ok());
  EXPECT_EQ(s.sampling.temperature, 0.7F);
  cli::ChatSettings of_server;
  of_server.server = true;
  of_server.given = {"seed"};
  EXPECT_THAT(of_server.list(), HasSubstr("temperature          as the server chooses\n"));
  EXPECT_THAT(of_server.list(), HasSubstr("seed                 0\n"));
  EXPECT_THAT(of_server.list(), HasSubstr("max_tokens           -1\n"));
}

TEST(ChatConsole, TextDoesNotSteerTheTerminal) {
  EXPECT_EQ(cli::harmless("a\tb\n\x1b[2J\x07z\xc2\x9b"), "a\tb\n\\u001b[2J\\u0007z\\u009b");
  EXPECT_EQ(cli::harmless("中é🙂"), "中é🙂");
}

TEST(ChatThinking, IsApartFromTheAnswer) {
  const auto parts = cli::split_thinking("<|im_start|>assistant\n<think>\n", "Let me see.\n</think>\n\n4");
  EXPECT_EQ(parts.thinking, "Let me see.");
  EXPECT_EQ(parts.answer, "4");
  EXPECT_EQ(cli::split_thinking("<think>\n\n</think>\n\n", "4").answer, "4");
  EXPECT_EQ(cli::split_thinking("", "<think>a</think>b").thinking, "a");
}

class ChatFiles : public ProgramTest {};

TEST_F(ChatFiles, HistoryIsKeptForTheUserAlone) {
  const std::string file = path("state/quire/history");
  {
    cli::HistoryStore store(file);
    EXPECT_TRUE(store.add("one"));
    EXPECT_FALSE(store.add("one"));
    EXPECT_FALSE(store.add(""));
    EXPECT_TRUE(store.add("two\nlines \\n and a backslash \\"));
  }
  EXPECT_THAT(cli::HistoryStore(file).entries(), ElementsAre("one", "two\nlines \\n and a backslash \\"));
  struct stat status {};
  ASSERT_EQ(stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(path("state/quire").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  std::string many = "\xff not text\n";
  for (int i = 0; i < 3000; ++i) many += fmt::format("line {}\n", i);
  write("state/quire/history", many);
  cli::HistoryStore long_one(file);
  EXPECT_EQ(long_one.entries().size(), 1000u);
  EXPECT_EQ(long_one.entries().front(), "line 2000");
  EXPECT_EQ(read_whole_file(file).substr(0, 10), "line 2000\n") << "a file that has grown is written anew";
  // What cannot be written is done without.
  cli::HistoryStore nowhere("/proc/no/such/history");
  EXPECT_TRUE(nowhere.add("kept in memory"));
  EXPECT_EQ(nowhere.entries().size(), 1u);
}

TEST_F(ChatFiles, ConversationsAreSavedAndLoaded) {
  cli::Conversation c;
  c.system = "Be brief.";
  c.turns = {{true, "2+2", ""}, {false, "4", "Easy."}};
  ASSERT_TRUE(c.save(path("c.json"), "demo").ok());
  struct stat status {};
  ASSERT_EQ(stat(path("c.json").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  const auto again = cli::Conversation::load(path("c.json"));
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again->messages(), c.messages());
  EXPECT_EQ(again->turns[1].thinking, "Easy.");
  EXPECT_TRUE(c.save(path("c.json"), "demo").ok()) << "a conversation may be written over";
  write("other.txt", "precious");
  EXPECT_THAT(c.save(path("other.txt"), "demo").error().message, HasSubstr("is no conversation"));
  EXPECT_EQ(read_whole_file(path("other.txt")), "precious");
  const auto refusal = [&](const std::string& messages) {
    write("bad.json", R"({"format": "quire conversation", "messages": )" + messages + "}");
    return cli::Conversation::load(path("bad.json")).error().message;
  };
  EXPECT_THAT(refusal("{}"), HasSubstr("no list of messages"));
  EXPECT_THAT(refusal(R"([{"role": "user"}])"), HasSubstr("message 0 has no content"));
  EXPECT_THAT(refusal(R"([{"role": "assistant", "content": "x"}])"), HasSubstr("message 0 is not where"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": "x"}])"), HasSubstr("no answer"));
  EXPECT_THAT(cli::Conversation::load(path("none")).error().message, HasSubstr("no such file"));
  EXPECT_TRUE(c.drop_oldest() == false && c.turns.size() == 2);
}

TEST_F(ChatFiles, ConversationsHaveTheirPictures) {
  const std::string folder = QUIRE_SOURCE_DIR "/tests/fuzz/corpus/image/";
  auto pictures = cli::read_pictures({folder + "png-rgb", folder + "webp-lossy"});
  ASSERT_TRUE(pictures.ok()) << pictures.error().message;
  cli::Conversation c;
  c.turns = {{true, "what", "", *pictures}, {false, "that", ""}};
  const nlohmann::ordered_json content = c.messages()[0]["content"];
  ASSERT_EQ(content.size(), 3u);
  EXPECT_THAT(content[0]["image_url"]["url"].get<std::string>(), testing::StartsWith("data:image/png;base64,"));
  EXPECT_THAT(content[1]["image_url"]["url"].get<std::string>(), testing::StartsWith("data:image/webp;base64,"));
  EXPECT_EQ(content[2]["text"], "what");
  ASSERT_TRUE(c.save(path("c.json"), "demo").ok());
  const auto again = cli::Conversation::load(path("c.json"));
  ASSERT_TRUE(again.ok()) << again.error().message;
  ASSERT_EQ(again->turns[0].pictures.size(), 2u);
  EXPECT_EQ(again->turns[0].pictures[1]->bytes, (*pictures)[1]->bytes);
  EXPECT_EQ(again->messages(), c.messages());
  write("no.png", "text");
  EXPECT_THAT(cli::read_pictures({path("no.png")}).error().message, HasSubstr("no.png: "));
  EXPECT_FALSE(cli::read_pictures({path("none.png")}).ok());
}

// ---- The program ----

class ChatProgram : public ProgramTest {
 protected:
  Terminal chat(std::vector<std::string> more = {}, Terminal::Variables variables = {}, int columns = 120) const {
    std::vector<std::string> command = {
        QUIRE_PROGRAM, "run", "-m", QUIRE_SOURCE_DIR "/models/demo-dense-nvfp4.gguf", "-t", "1", "--temperature", "0"};
    command.insert(command.end(), more.begin(), more.end());
    variables.insert({{"XDG_STATE_HOME", path("state")}, {"TERM", "xterm"}, {"NO_COLOR", "1"}});
    return Terminal(command, variables, columns);
  }
  nlohmann::json saved(Terminal& t) const {
    const std::string file = path("saved.json");
    t.type("/save " + file + "\r");
    t.until("Saved:");
    return nlohmann::json::parse(read_whole_file(file));
  }
};

TEST_F(ChatProgram, CommandsAndTheEnd) {
  Terminal t = chat();
  EXPECT_THAT(t.prompt(), HasSubstr("/help lists commands"));
  t.type("/help\r");
  t.until("/load FILE");
  t.prompt();
  t.type("/hepl\r");
  t.until("did you mean /help?");
  t.prompt();
  t.type("/set top_p 2\r");
  t.until("top_p");
  t.until("quire: ");
  t.prompt();
  t.type("/set temperature 0.25\r/set\r");
  t.until("temperature          0.25");
  t.type("/system Be kind.\r");
  t.until("System message: Be kind.");
  t.type("/load " + path("none") + "\r");
  t.until("no such file");
  t.type("/bye\r");
  EXPECT_EQ(t.finish(), 0);
}

TEST_F(ChatProgram, CtrlCClearsTheLineAndNotTheNextAnswer) {
  Terminal t = chat();
  t.prompt();
  t.type("Never sent");
  t.until("sent");
  t.type("\x03");
  t.until("^C");
  t.prompt();
  t.type("77+94\r");
  t.until("171");
  EXPECT_THAT(t.until("of context]"), HasSubstr("[stop | "));
  const nlohmann::json messages = saved(t)["messages"];
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0]["content"], "77+94");
  t.prompt();
  t.type("\x04");  // Ctrl-D
  EXPECT_EQ(t.finish(), 0);
}

TEST_F(ChatProgram, CtrlCStopsAnAnswerAndTheConversationGoesOn) {
  Terminal t = chat({"-n", "4000", "--ignore-eos"});
  t.prompt();
  t.type("Tell me a story.\r");
  t.until("story.");
  t.until(" the ");
  t.type("\x03");
  t.until("[cancelled | ");
  t.prompt();
  t.type("/clear\r");
  t.until("forgotten");
  t.type("/bye\r");
  EXPECT_EQ(t.finish(), 0);
}

TEST_F(ChatProgram, SeveralLinesByQuotesAndByPaste) {
  Terminal t = chat({"-n", "4"});
  t.prompt();
  t.type("\"\"\"\r");
  t.prompt("... ");
  t.type("one\r");
  t.prompt("... ");
  t.type("/two\"\"\"\r");
  t.until("of context]");
  t.prompt();
  t.type("\033[200~three\rfour\tfive\x07\033[201~ six\r");
  t.until("of context]");
  const nlohmann::json messages = saved(t)["messages"];
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[0]["content"], "one\n/two");
  EXPECT_EQ(messages[2]["content"], "three\nfour\tfive six");
}

TEST_F(ChatProgram, HistoryAcrossSessionsAndEditing) {
  {
    Terminal t = chat({"-n", "4"});
    t.prompt();
    t.type("77+94\r");
    t.until("of context]");
    t.prompt();
    t.type("/bye\r");
    EXPECT_EQ(t.finish(), 0);
  }
  struct stat status {};
  ASSERT_EQ(stat(path("state/quire/chat_history").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  Terminal t = chat({"-n", "4"});
  t.prompt();
  t.type("\033[A\033[A\x01x\x05y\177z\r");  // up twice, to the begin, to the end, Backspace
  t.until("of context]");
  EXPECT_EQ(saved(t)["messages"][0]["content"], "x77+94z");
}

TEST_F(ChatProgram, AnswersAreGivenAnewAndQuestionsChanged) {
  Terminal t = chat({"-n", "6"});
  t.prompt();
  t.type("/regen\r");
  t.until("nothing was said yet");
  t.prompt();
  t.type("77+94\r");
  t.until("171");
  t.until("of context]");
  t.prompt();
  t.type("/set seed 41\r/regen\r");
  t.until("171");
  t.until("of context]");
  t.prompt();
  t.type("/set\r");
  t.until("seed                 42");
  t.prompt();
  EXPECT_EQ(saved(t)["messages"].size(), 2u);
  t.prompt();
  t.type("/edit\r");
  t.until("edit> ");
  t.until("77+94");
  t.type(
      "\177"
      "5\r");  // Backspace: 77+95
  t.until("172");
  t.until("of context]");
  t.prompt();
  const nlohmann::json messages = saved(t)["messages"];
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0]["content"], "77+95");
  t.prompt();
  t.type("/edit\r");
  t.until("edit> ");
  t.type("\x03");
  t.until("stays as it was");
}

TEST_F(ChatProgram, FilesGoBeforeAMessageAndThingsAreShown) {
  const std::string notes = write("notes.txt", "first line\nsecond \xff line\n");
  Terminal t = chat({"-n", "4"});
  t.prompt();
  t.type("/read " + path("nothing") + "\r");
  t.until("No such file");
  t.prompt();
  t.type("/read " + path("not") + "\t\r");  // Tab completes the name
  t.until("bytes go before the next message");
  t.prompt();
  t.type("/show\r");
  EXPECT_THAT(t.until("max_tokens           4"), HasSubstr("of files"));
  t.prompt();
  t.type("/show template\r");
  t.until("<|im_start|>");
  t.prompt();
  t.type("77+94\r");
  t.until("of context]");
  t.prompt();
  const nlohmann::json messages = saved(t)["messages"];
  EXPECT_EQ(messages[0]["content"], "File notes.txt:\n\nfirst line\nsecond \xef\xbf\xbd line\n\n\n77+94");
  t.prompt();
  t.type("/show mes\t\r");
  t.until("second");
  t.prompt();
  t.type("/se\t temperature 0.125\r");
  t.prompt();
  t.type("/s\t");  // what begins so is shown
  t.until("/system");
  t.type("\x03");
  t.until("^C");
  t.prompt();
  t.type("/bye\r");
  EXPECT_EQ(t.finish(), 0);
}

TEST_F(ChatProgram, WordsWrapAndAnswersAreNotCut) {
  Terminal t = chat({}, {}, 40);
  t.prompt();
  t.type("Tell me a story about a cat.\r");
  t.until("cat.");
  const std::string story = t.until("of context]");
  EXPECT_THAT(story, HasSubstr("[stop | "));
  std::string text = shown(story.substr(0, story.find("[stop")));
  std::erase(text, '\r');
  EXPECT_GT(text.size(), 200u);
  EXPECT_LE(longest_line(text), 39);
  t.prompt();
  t.type("/set wrap off\r/regen\r");
  t.until("regen");
  EXPECT_GT(longest_line(t.until("of context]")), 100);
}

TEST_F(ChatProgram, AFullContextAsks) {
  Terminal t = chat({"-c", "64", "-n", "16"});
  const std::string question = "Tell me a story about a cat, a dog and a bird in the garden of the king.\r";
  t.prompt();
  t.type(question);
  t.until("of context]");
  t.prompt();
  t.type(question);
  t.until("d, c or Enter: ");
  t.type("\r");
  t.until("taken back");
  t.prompt();
  EXPECT_EQ(saved(t)["messages"].size(), 2u);
  t.prompt();
  t.type(question);
  t.until("d, c or Enter: ");
  t.type("d\r");
  t.until("1 turn is dropped.");
  t.until("of context]");
  t.prompt();
  EXPECT_EQ(saved(t)["messages"].size(), 2u);
}

TEST_F(ChatProgram, ThinkingIsDimmedOrMarkedAndApartInFiles) {
  {
    Terminal t = chat({"-n", "8"}, {{"NO_COLOR", ""}});
    t.prompt();
    t.type("/set think on\r77+94\r");
    t.until("77+94\r\n");
    EXPECT_THAT(t.until("of context]"), HasSubstr("\033[2m70 + 90"));
    const nlohmann::json answer = saved(t)["messages"][1];
    EXPECT_THAT(answer["reasoning_content"], HasSubstr("70 + 90"));
    EXPECT_EQ(answer["content"], "");
  }
  Terminal t = chat({"-n", "8", "--think"});
  t.prompt();
  t.type("77+94\r");
  t.until("(thinking)");
}

TEST_F(ChatProgram, ThinkingIsApartInJson) {
  const std::string command =
      "run -m " QUIRE_SOURCE_DIR "/models/demo-dense-nvfp4.gguf --chat -p 77+94 -n 8 --temperature 0 --json";
  const auto plain = nlohmann::json::parse(quire(command).out);
  EXPECT_EQ(plain["text"], "171");
  EXPECT_FALSE(plain.contains("thinking"));
  const auto thoughtful = nlohmann::json::parse(quire(command + " --think").out);
  EXPECT_EQ(thoughtful["text"], "");
  EXPECT_THAT(thoughtful["thinking"], HasSubstr("70 + 90"));
}

TEST_F(ChatProgram, ColoursAndQuiet) {
  {
    Terminal t = chat();
    EXPECT_THAT(t.prompt(), Not(HasSubstr("\033[2m")));
  }
  {
    Terminal t = chat({}, {{"NO_COLOR", ""}});
    EXPECT_THAT(t.prompt(), HasSubstr("\033[2m"));
  }
  Terminal t = chat({"--quiet"});
  EXPECT_THAT(t.prompt(), Not(HasSubstr("/help")));
  t.type("77+94\r");
  t.until("171");
  EXPECT_THAT(t.prompt(), Not(HasSubstr("tokens/s")));
}

}  // namespace
}  // namespace quire::test
