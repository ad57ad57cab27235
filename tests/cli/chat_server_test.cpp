// quire chat: the model of a server as who answers. The server is a script.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/program.h"
#include "support/terminal.h"

namespace quire::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

std::string whole(int status, const std::string& body) {
  return fmt::format("HTTP/1.1 {} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}", status,
                     body.size(), body);
}

// Server-sent events; the end of the connection is the end of the answer.
std::string stream(const std::vector<std::string>& events) {
  std::string text = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
  for (const std::string& e : events) text += "data: " + e + "\n\n";
  return text;
}

std::string delta(const json& d, const json& finish = nullptr) {
  return json{{"choices", {{{"index", 0}, {"delta", d}, {"finish_reason", finish}}}}}.dump();
}

const char kModels[] = R"({"data": [{"id": "first", "max_model_len": 100}, {"id": "second"}]})";

// Answers each request of a connection of its own; of what it was asked it keeps everything.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::vector<std::string> answers) : answers_(std::move(answers)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    QUIRE_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(listener_, 8) == 0 &&
                    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0,
                "no port: error {}", errno);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~ScriptedServer() {
    done_ = true;
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }
  std::vector<std::string> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  // The body of the last request.
  json last() const {
    const std::string request = requests().back();
    return json::parse(request.substr(request.find("\r\n\r\n") + 4));
  }

 private:
  static std::string read_request(int fd) {
    std::string text;
    char buffer[4096];
    for (;;) {
      const size_t head = text.find("\r\n\r\n");
      if (head != text.npos) {
        const size_t at = text.find("Content-Length: ");
        const size_t body = at < head ? std::stoul(text.substr(at + 16)) : 0;
        if (text.size() >= head + 4 + body) return text;
      }
      const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
      if (n <= 0) return text;
      text.append(buffer, static_cast<size_t>(n));
    }
  }
  void serve() {
    for (size_t next = 0; !done_;) {
      const int fd = accept(listener_, nullptr, nullptr);
      if (fd < 0) return;
      const std::string request = read_request(fd);
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      // A list of models is there for whoever asks, unless the script begins with another.
      const bool models = request.starts_with("GET");
      std::string answer = models ? whole(200, kModels) : "";
      if (next < answers_.size() && (!models || answers_[next].find("\r\n") == answers_[next].npos))
        answer = answers_[next++];
      if (models && answer.find("HTTP/") != 0) answer = whole(std::stoi(answer.substr(0, 3)), answer.substr(3));
      send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
      // What says nothing of its end stays open until the client goes.
      if (answer.find("Content-Length") == answer.npos && answer.find("[DONE]") == answer.npos &&
          answer.find("cut here") == answer.npos) {
        char byte = 0;
        while (recv(fd, &byte, 1, 0) > 0) {
        }
      }
      close(fd);
    }
  }

  std::vector<std::string> answers_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> done_{false};
  mutable std::mutex mutex_;
  std::vector<std::string> requests_;
  std::thread thread_;
};

const std::string kUsage = R"({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}})";

std::string answered(const std::string& text) {
  return stream(
      {delta({{"role", "assistant"}}), delta({{"content", text}}), delta(json::object(), "stop"), kUsage, "[DONE]"});
}

class ChatServer : public ProgramTest {
 protected:
  Terminal chat(const std::string& url, std::vector<std::string> more = {}) const {
    std::vector<std::string> command = {QUIRE_PROGRAM, "chat", url};
    command.insert(command.end(), more.begin(), more.end());
    return Terminal(command, {{"XDG_STATE_HOME", path("state")}, {"TERM", "xterm"}, {"NO_COLOR", "1"}});
  }
};

TEST_F(ChatServer, OneQuestionIsOneAnswer) {
  ScriptedServer server({answered("Hello, you.")});
  const Outcome o = quire("chat " + server.url() + "/v1/ Hi --system 'Be kind.' --temperature 0.7 -n 8k --stop END");
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, "Hello, you.\n");
  EXPECT_THAT(o.err, HasSubstr("[stop | prompt 5 tokens | generated 3 tokens"));
  EXPECT_THAT(server.requests().front(), testing::StartsWith("GET /v1/models HTTP/1.1\r\n"));
  EXPECT_THAT(server.requests().back(), testing::StartsWith("POST /v1/chat/completions HTTP/1.1\r\n"));
  const json want = json::parse(R"({"model": "first", "stream": true, "stream_options": {"include_usage": true},
    "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
    "max_tokens": 8000, "stop": ["END"], "temperature": 0.7})");
  EXPECT_EQ(server.last(), want) << "what was not given is not sent";
}

TEST_F(ChatServer, KeysComeFromAFileAndSettingsAreSent) {
  ScriptedServer server({answered("x")});
  write("keys", "# whose\nsecret-key-1  # mine\n");
  const Outcome o = quire("chat -u " + server.url() + " -p Hi --model second --no-think --seed 7 --top-k 5 -q " +
                          "--api-key-file " + path("keys"));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  for (const std::string& request : server.requests())
    EXPECT_THAT(request, HasSubstr("Authorization: Bearer secret-key-1\r\n"));
  EXPECT_EQ(server.last()["model"], "second");
  EXPECT_EQ(server.last()["chat_template_kwargs"]["enable_thinking"], false);
  EXPECT_EQ(server.last()["seed"], 7);
  EXPECT_EQ(server.last()["top_k"], 5);
  EXPECT_FALSE(server.last().contains("temperature"));
}

TEST_F(ChatServer, WhatServersRefuseIsSaid) {
  const auto refused = [&](std::vector<std::string> script, const std::string& reason, const std::string& more = "") {
    ScriptedServer server(std::move(script));
    expect_refused("chat " + server.url() + " Hi " + more, reason);
  };
  refused({"401{\"error\": {\"message\": \"no key\"}}"}, "wants a key (401): no key; give one with --api-key-file");
  refused({"404nothing"}, "answers 404; is it the address of a server of the OpenAI API?");
  refused({"200[]"}, "is no list of models");
  refused({"200{\"data\": []}"}, "lists no model; name one with --model");
  refused({}, "has no model 'third'; there are first, second", "--model third");
  refused({whole(500, "oops")}, "answers with status 500");
  refused({whole(400, R"({"error": {"message": "bad \u001b[2J thing"}})")}, "status 400: bad \\u001b[2J thing");
  refused({whole(400, R"({"error": {"code": "context_length_exceeded", "message": "x"}})")}, "the prompt is too long");
  refused({whole(302, "")}, "answers with status 302");
  expect_refused("chat ftp://x Hi", "begins with neither https:// nor http://");
  expect_refused("chat http://127.0.0.1:1 Hi", "127.0.0.1:1");
  expect_refused("chat http://127.0.0.1:1 Hi -n 0", "must be at least 1, or -1");
  expect_refused("chat http://127.0.0.1:1 Hi --api-key-file " + path("none"), "none: ");
  expect_refused("chat http://127.0.0.1:1 Hi --api-key-file -", "is no terminal at which the key could be typed");
}

TEST_F(ChatServer, ABrokenStreamIsAnError) {
  const auto err = [&](const std::string& answer) {
    ScriptedServer server({answer});
    const Outcome o = quire("chat " + server.url() + " Hi -q");
    EXPECT_EQ(o.code, 2);
    return o.err;
  };
  EXPECT_THAT(err(stream({delta({{"content", "cut here"}})})), HasSubstr("the answer ended early"));
  EXPECT_THAT(err(stream({"not json, cut here"})), HasSubstr("an event that is no JSON"));
  EXPECT_THAT(err(stream({R"({"error": {"message": "it fell over"}})", "[DONE]"})), HasSubstr("it fell over"));
}

TEST_F(ChatServer, AConversationGoesOn) {
  ScriptedServer server(
      {stream({delta({{"reasoning_content", "Hm."}}), delta({{"content", "One."}}, "stop"), kUsage, "[DONE]"}),
       answered("Two."), answered("Three.")});
  Terminal t = chat(server.url());
  EXPECT_THAT(t.prompt(), HasSubstr("first at http://127.0.0.1"));
  t.type("a\r");
  t.until("(thinking)");
  t.until("One.");
  EXPECT_THAT(t.until("of context]"), HasSubstr("8 of 100 tokens"));
  t.prompt();
  EXPECT_FALSE(server.last().contains("max_tokens"));
  t.type("/set temperature 0.5\r/set\r");
  t.until("top_k                as the server chooses");
  t.prompt();
  t.type("b\r");
  t.until("Two.");
  t.prompt();
  EXPECT_EQ(server.last()["messages"].size(), 3u);
  EXPECT_EQ(server.last()["messages"][1], json::parse(R"({"role": "assistant", "content": "One."})"));
  EXPECT_EQ(server.last()["temperature"], 0.5);
  EXPECT_FALSE(server.last().contains("top_k"));
  t.type("/regen\r");
  t.until("Three.");
  t.prompt();
  EXPECT_EQ(server.last()["messages"].size(), 3u) << "the last answer is not part of what is asked again";
  t.type("/bye\r");
  EXPECT_EQ(t.finish(), 0);
}

TEST_F(ChatServer, TooLongAsksAndCtrlCStops) {
  const std::string too_long =
      whole(400, R"({"error": {"message": "This model's maximum context length is 100 tokens.", "code": null}})");
  ScriptedServer server({answered("One."), answered("Two."), too_long, too_long, answered("Three."),
                         stream({delta({{"content", "It goes on"}})}), answered("Four.")});
  Terminal t = chat(server.url());
  for (const char* message : {"a\r", "b\r"}) {
    t.prompt();
    t.type(message);
    t.until("of context]");
  }
  t.prompt();
  t.type("c\r");
  t.until("d, c or Enter: ");
  t.type("d\r");
  t.until("1 turn is dropped.");
  t.until("1 turn is dropped.");
  t.until("Three.");
  t.prompt();
  EXPECT_EQ(server.last()["messages"].size(), 1u);
  t.type("d\r");
  t.until("It goes on");
  t.type("\x03");
  t.until("[cancelled");
  t.prompt();
  t.type("e\r");
  t.until("Four.");
  EXPECT_EQ(server.last()["messages"][3]["content"], "It goes on");
}

}  // namespace
}  // namespace quire::test
