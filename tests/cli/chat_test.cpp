// The conversation at the terminal: its parts alone, and the program at a terminal of its own.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "cli/chat/commands.h"
#include "cli/chat/console.h"
#include "cli/chat/conversation.h"
#include "cli/chat/history_store.h"
#include "cli/chat/line_editor.h"
#include "cli/chat/thinking.h"
#include "support/program.h"
#include "support/terminal.h"

namespace quire::test {
namespace {

using cli::ChatCommand;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// ---- Parts ----

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
  const std::string help = cli::chat_help();
  for (const char* name : {"/help", "/bye", "/clear", "/system", "/set", "/save", "/load"})
    EXPECT_THAT(help, HasSubstr(name));
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
  for (const char* bad : {"temperature", "temperature -1", "temperature 1x", "temperature nan", "top_p 2", "top_k 1.5",
                          "top_k 99999999999", "seed -1", "max_tokens 0", "think yes", "colour red", ""}) {
    const cli::ChatSettings before = s;
    EXPECT_FALSE(s.set(bad, 100).ok()) << bad;
    EXPECT_EQ(s.list(), before.list()) << bad;
  }
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

// ---- The program ----

class ChatProgram : public ProgramTest {
 protected:
  Terminal chat(std::vector<std::string> more = {}, Terminal::Variables variables = {}) const {
    std::vector<std::string> command = {QUIRE_PROGRAM, "run", "-m", QUIRE_SOURCE_DIR "/models/demo-dense-nvfp4.gguf",
                                        "-t",          "1"};
    command.insert(command.end(), more.begin(), more.end());
    variables.insert({{"XDG_STATE_HOME", path("state")}, {"TERM", "xterm"}, {"NO_COLOR", "1"}});
    return Terminal(command, variables);
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
  const std::string command = "run -m " QUIRE_SOURCE_DIR "/models/demo-dense-nvfp4.gguf --chat -p 77+94 -n 8 --json";
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
