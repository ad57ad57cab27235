// Where the server listens: addresses, names for them, unix domain sockets; and the connections that it keeps for those
// who ask how it is.
#include "server/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <future>
#include <thread>

#include "server/serve_program.h"

namespace quire::test {
namespace {

using server::Listener;
using server::ListenOptions;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct Listening {
  boost::asio::io_context io;
  std::unique_ptr<Listener> listener;
  std::string error;

  explicit Listening(const ListenOptions& options) {
    auto made = Listener::create(io, options);
    if (made.ok())
      listener = std::move(made).value();
    else
      error = made.error().message;
  }
  std::vector<std::string> urls(bool tls = false) const { return listener->urls(tls); }
};

bool has_v6() {
  return Listening({.host = "::1", .port = 0}).listener != nullptr;
}

TEST(Listener, TellsItsUrls) {
  const Listening one({.host = "127.0.0.1", .port = 0});
  const std::string port = std::to_string(one.listener->port());
  EXPECT_THAT(one.urls(), ElementsAre("http://127.0.0.1:" + port));
  EXPECT_THAT(one.urls(true), ElementsAre("https://127.0.0.1:" + port));
  const Listening any({.host = "0.0.0.0", .port = 0});
  EXPECT_THAT(any.urls(), Contains("http://127.0.0.1:" + std::to_string(any.listener->port())));
  EXPECT_THAT(any.urls(), Each(Not(HasSubstr("0.0.0.0"))));
  if (!has_v6()) return;
  for (const char* host : {"::1", "[::1]"}) {
    const Listening v6({.host = host, .port = 0});
    EXPECT_THAT(v6.urls(), ElementsAre(fmt::format("http://[::1]:{}", v6.listener->port())));
  }
  const Listening all({.host = "::", .port = 0});
  EXPECT_THAT(all.urls(), Contains(fmt::format("http://[::1]:{}", all.listener->port())));
  EXPECT_THAT(all.urls(), Contains(fmt::format("http://127.0.0.1:{}", all.listener->port())));
}

TEST(Listener, LocalhostIsEitherKindOfAddress) {
  const Listening l({.host = "localhost", .port = 0});
  const uint16_t port = l.listener->port();
  EXPECT_THAT(l.urls(), Contains(fmt::format("http://127.0.0.1:{}", port)));
  EXPECT_EQ(l.urls().size(), has_v6() ? 2u : 1u);
  if (has_v6()) {
    EXPECT_THAT(l.urls(), Contains(fmt::format("http://[::1]:{}", port)));
  }
}

TEST(Listener, SaysWhyItCannotListen) {
  const Listening first({.host = "127.0.0.1", .port = 0});
  const uint16_t port = first.listener->port();
  EXPECT_EQ(Listening({.host = "127.0.0.1", .port = port}).error,
            fmt::format("cannot listen at 127.0.0.1:{}: another program listens there; choose another --port, or 0 "
                        "for any free one",
                        port));
  EXPECT_EQ(Listening({.host = "203.0.113.7", .port = port}).error,
            fmt::format("cannot listen at 203.0.113.7:{}: this machine has no such address; see --host", port));
  EXPECT_THAT(Listening({.host = "example.org", .port = 0}).error, HasSubstr("must be a numeric address"));
}

TEST(Listener, NamesPeersByTheirOwnAddresses) {
  if (!has_v6()) GTEST_SKIP() << "no IPv6 here";
  Listening l({.host = "::", .port = 0});
  std::promise<std::string> peer;
  l.listener->start([&](Listener::Socket, const std::string& name) { peer.set_value(name); }, nullptr);
  std::thread thread([&] { l.io.run(); });
  const Client c(l.listener->port());
  std::future<std::string> name = peer.get_future();
  const bool came = name.wait_for(std::chrono::minutes(1)) == std::future_status::ready;
  l.listener->stop();
  l.io.stop();
  thread.join();
  ASSERT_TRUE(came);
  EXPECT_THAT(name.get(), testing::StartsWith("127.0.0.1:"));
}

TEST(Listener, KnowsWhatOnlyThisMachineReaches) {
  for (const char* host : {"localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]", "::ffff:127.0.0.1"})
    EXPECT_TRUE(server::is_loopback(host)) << host;
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "example.org", ""})
    EXPECT_FALSE(server::is_loopback(host)) << host;
}

class UnixSocket : public ServeProgram {
 protected:
  ListenOptions at(const std::string& name) const { return {.unix_socket = path(name)}; }
  // What a server leaves that was killed.
  void leave_socket(const std::string& name) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path(name).copy(address.sun_path, sizeof address.sun_path - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    close(fd);
  }
  unsigned mode_of(const std::string& name) const {
    struct stat s {};
    return stat(path(name).c_str(), &s) == 0 ? s.st_mode & 0777u : 0;
  }
};

TEST_F(UnixSocket, IsServedAndGoesAway) {
  leave_socket("quire.sock");
  {
    DemoServer::Options o;
    o.http.listen = at("quire.sock");
    DemoServer s(o);
    EXPECT_THAT(s.http().urls(), ElementsAre("unix:" + path("quire.sock")));
    EXPECT_EQ(mode_of("quire.sock"), 0600u);
    Client c(path("quire.sock"));
    ASSERT_TRUE(c.connected());
    c.send(post("/v1/completions", Json{{"prompt", "a"}, {"max_tokens", 2}, {"stream", true}}));
    EXPECT_THAT(c.receive().body, HasSubstr("[DONE]"));
    EXPECT_EQ(Listening(at("quire.sock")).error, "--uds " + path("quire.sock") + ": another server listens there");
  }
  EXPECT_FALSE(std::filesystem::exists(path("quire.sock")));
}

TEST_F(UnixSocket, IsOpenToWhomTheOperatorSays) {
  ListenOptions o = at("shared.sock");
  o.unix_socket_mode = 0666;
  const Listening l(o);
  EXPECT_EQ(mode_of("shared.sock"), 0666u) << "whatever the umask";
}

TEST_F(UnixSocket, ReplacesNothingButSockets) {
  write("file", "precious");
  EXPECT_EQ(Listening(at("file")).error, "--uds " + path("file") + ": there is something else, which is no socket");
  EXPECT_EQ(read_whole_file(path("file")), "precious");
  EXPECT_THAT(Listening(at("none/quire.sock")).error, HasSubstr("No such file or directory"));
  EXPECT_THAT(Listening(at(std::string(200, 'x'))).error, HasSubstr("a socket's path has at most 107 bytes"));
  const std::string serve = "serve -m " + demo_model_path();
  expect_refused(serve + " --uds " + path("file"), "which is no socket");
  for (const char* mode : {"0999", "rw", "01777", "-1"})
    expect_refused(serve + " --uds x --uds-mode=" + mode, std::string("--uds-mode ") + mode);
}

TEST_F(UnixSocket, NeedsNoLocalNameButAnOrigin) {
  write("err", "");
  launch("-c 512 --no-access-log --uds " + path("quire.sock"));
  ASSERT_TRUE(eventually([&] {
    return read_whole_file(path("err")).find("unix:" + path("quire.sock") + "\n") != std::string::npos;
  })) << read_whole_file(path("err"));
  const auto answer = [&](const std::string& headers) {
    Client c(path("quire.sock"));
    c.send("GET /health HTTP/1.1\r\n" + headers + "\r\n");
    return c.receive().status;
  };
  EXPECT_EQ(answer("Host: models.example\r\n"), 200);
  EXPECT_EQ(answer("Host: models.example\r\nOrigin: https://models.example\r\n"), 200);
  EXPECT_EQ(answer("Host: models.example\r\nOrigin: https://evil.example\r\n"), 403);
  kill(pid_, SIGTERM);
  EXPECT_EQ(wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(path("quire.sock")));
}

TEST(Connections, AFewAreKeptForAskingHowItIs) {
  DemoServer::Options o;
  o.http.max_connections = 2;
  o.http.session.header_timeout = std::chrono::minutes(5);
  DemoServer s(o);
  std::vector<std::unique_ptr<Client>> open;
  const auto begin_request = [&] {  // which keeps its connection from being idle
    open.push_back(std::make_unique<Client>(s.port()));
    open.back()->send("GET /v1/models HTTP/1.1\r\n");
  };
  begin_request();
  begin_request();
  ASSERT_TRUE(eventually([&] { return s.http().connections() == 2 && !s.http().any_idle(); }));
  for (const char* path : {"/health", "/ping", "/metrics", "/load"}) {
    const Reply r = ask(s.port(), get(path));
    EXPECT_EQ(r.status, 200) << path;
    EXPECT_EQ(r.header("Connection"), "close") << path;
  }
  const Reply other = ask(s.port(), get("/v1/models"));
  EXPECT_EQ(other.status, 503);
  EXPECT_EQ(other.json()["error"]["code"], "overloaded");
  EXPECT_EQ(other.header("Connection"), "close");
  // Those who say nothing do not keep them.
  Client silent(s.port());
  EXPECT_TRUE(silent.closes(60));
  // Whoever was there first goes on.
  open.front()->send("Host: localhost\r\n\r\n");
  EXPECT_EQ(open.front()->receive().status, 200);
  open.front()->send("GET /v1/models HTTP/1.1\r\n");
  ASSERT_TRUE(eventually([&] { return s.http().connections() == 2 && !s.http().any_idle(); }));
  const double refused = s.metric("quire:http_connections_refused_total");
  // One that has not been read from is idle as yet, and gives way to the next: so more and more of them.
  EXPECT_TRUE(eventually([&] {
    begin_request();
    return s.metric("quire:http_connections_refused_total") > refused;
  }));
}

// Who says nothing gives way to who comes with a request, the longest silent first; who has one under way does not.
TEST(Connections, IdleOnesMakeRoom) {
  DemoServer::Options o;
  o.http.max_connections = 3;
  o.http.session.header_timeout = std::chrono::minutes(5);
  DemoServer s(o);
  Client busy(s.port());
  busy.send("GET /v1/models HTTP/1.1\r\n");
  Client first(s.port());
  ASSERT_TRUE(eventually([&] { return s.http().connections() == 2; }));
  Client second(s.port());
  second.send(get("/v1/models"));
  EXPECT_EQ(second.receive().status, 200);
  ASSERT_TRUE(eventually([&] { return s.http().connections() == 3; }));
  const auto served = [&] { return ask(s.port(), get("/v1/models")).status == 200; };
  ASSERT_TRUE(eventually(served));  // nobody gives way who has come just now
  EXPECT_TRUE(first.closes(60));
  EXPECT_EQ(s.metric("quire:http_connections_evicted_total"), 1);
  busy.send("Host: localhost\r\n\r\n");
  EXPECT_EQ(busy.receive().status, 200);
  second.send(get("/v1/models"));
  EXPECT_EQ(second.receive().status, 200);
}

// With few descriptors a crowd of connections that say nothing keeps nobody out, and the server says how few it has.
TEST_F(ServeProgram, FewDescriptorsAreEnough) {
  launch_within("ulimit -n 64; ", "-np 2 -c 512 --no-access-log");
  std::vector<std::unique_ptr<Client>> silent;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 80; ++i) silent.push_back(std::make_unique<Client>(port_));
    EXPECT_EQ(ask(port_, get("/health")).status, 200) << round;
    EXPECT_TRUE(eventually([&] { return ask(port_, get("/v1/models")).status == 200; })) << round;
  }
  EXPECT_THAT(read_whole_file(path("err")), testing::HasSubstr("this process may have 64 files and sockets open"));
  kill(pid_, SIGTERM);
  EXPECT_EQ(wait(), 0);
}

}  // namespace
}  // namespace quire::test
