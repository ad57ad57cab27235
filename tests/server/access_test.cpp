// API keys: how clients show them, and the files that they are in.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "server/client.h"
#include "server/demo_server.h"
#include "support/program.h"

namespace quire::test {
namespace {

using server::KeyRing;
using testing::HasSubstr;

DemoServer::Options with_keys() {
  DemoServer::Options o;
  o.api.keys = std::move(KeyRing::parse("correct-key\nother-key-2\n")).value();
  return o;
}

TEST(Access, AKeyMayComeInEitherHeader) {
  DemoServer s(with_keys());
  struct Case {
    int status;
    const char *headers, *message;
  };
  for (const Case& c : {
           Case{200, "X-Api-Key: correct-key\r\n", ""},
           {200, "Authorization: Bearer other-key-2\r\n", ""},
           {200, "Authorization: Bearer correct-key\r\nX-Api-Key: correct-key\r\n", ""},
           {200, "Authorization: Basic cHJveHk=\r\nx-api-key: correct-key\r\n", ""},
           {401, "", "no API key was given; send it as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'"},
           {401, "X-Api-Key: wrong-key-1\r\n", "the API key is not valid"},
           {401, "Authorization: correct-key\r\n",
            "the Authorization header has no API key; send it as 'Authorization: Bearer KEY'"},
           {401, "Authorization: Bearer correct-key\r\nX-Api-Key: other-key-2\r\n",
            "Authorization and X-Api-Key have different keys; send one of them"},
       }) {
    const Reply r = ask(s.port(), get("/v1/models", c.headers));
    EXPECT_EQ(r.status, c.status) << c.headers;
    EXPECT_EQ(r.error(), c.message) << c.headers;
  }
}

TEST(Access, MetricsMayNeedNoKey) {
  DemoServer::Options o = with_keys();
  o.api.metrics_without_key = true;
  DemoServer s(o);
  EXPECT_EQ(ask(s.port(), get("/metrics")).status, 200);
  EXPECT_EQ(ask(s.port(), get("/v1/models")).status, 401);
  DemoServer closed(with_keys());
  EXPECT_EQ(ask(closed.port(), get("/metrics")).status, 401);
}

TEST(KeyRing, ReadsComments) {
  const auto ring =
      KeyRing::parse("first-key-1 # of Ada\nkey#with-sharp\t# tab\n  # nothing else\n#first\n\nlast-key-3#\n");
  ASSERT_TRUE(ring.ok()) << ring.error().message;
  EXPECT_EQ(ring->size(), 3u);
  EXPECT_EQ(ring->find("first-key-1"), 1);
  EXPECT_EQ(ring->find("key#with-sharp"), 2);
  EXPECT_EQ(ring->find("last-key-3#"), 3);
}

class KeyFiles : public ProgramTest {
 protected:
  std::string fifo() const {
    EXPECT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
    return path("pipe");
  }
  static std::string refused(const std::string& file) {
    const auto ring = KeyRing::load(file, std::chrono::milliseconds(20));
    return ring.ok() ? "" : ring.error().message;
  }
};

TEST_F(KeyFiles, MayBePipes) {
  const std::string name = fifo();
  std::thread writer([&] {
    const int fd = open(name.c_str(), O_WRONLY);  // waits for the reader
    for (const std::string_view piece : {"first-", "key-1\nsecond", "-key-2\n"})
      EXPECT_EQ(::write(fd, piece.data(), piece.size()), static_cast<ssize_t>(piece.size()));
    close(fd);
  });
  const auto ring = KeyRing::load(name, std::chrono::minutes(2));
  writer.join();
  ASSERT_TRUE(ring.ok()) << ring.error().message;
  EXPECT_EQ(ring->size(), 2u);
  // A pipe of the shell, whose writer has ended by now.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "third-key-3\n", 12), 12);
  close(ends[1]);
  EXPECT_EQ(std::move(KeyRing::load(fmt::format("/dev/fd/{}", ends[0]))).value().find("third-key-3"), 1);
  close(ends[0]);
}

TEST_F(KeyFiles, AreReadAlikeByWhoMeasures) {
  DemoServer s(with_keys());
  write("keys", "# the first one\ncorrect-key # of the bench\n");
  const Outcome o =
      quire(fmt::format("bench-serve http://127.0.0.1:{} --api-key-file {} --clients 1 --requests 1 --prompt-tokens 4 "
                        "--output-tokens 2",
                        s.port(), path("keys")));
  EXPECT_EQ(o.code, 0) << o.err;
}

TEST_F(KeyFiles, SayWhatIsWrongWithThem) {
  EXPECT_EQ(refused(path("none")), path("none") + ": No such file or directory");
  EXPECT_EQ(refused(path("")), path("") + ": it is a folder; a file with one key a line is needed");
  EXPECT_THAT(refused(write("empty", "# nothing\n")), HasSubstr("no key in it"));
  EXPECT_THAT(refused(write("large", std::string((1 << 20) + 1, 'k'))), HasSubstr("more than 1048576 bytes"));
  const std::string name = fifo();
  EXPECT_THAT(refused(name), HasSubstr("it is a pipe into which nobody has written for"));
  const int writer = open(name.c_str(), O_RDWR);
  EXPECT_THAT(refused(name), HasSubstr("which nobody closes"));
  close(writer);
  if (geteuid() != 0) {
    write("secret", "first-key-1\n");
    chmod(path("secret").c_str(), 0);
    EXPECT_EQ(refused(path("secret")), path("secret") + ": Permission denied");
  }
  const std::string serve = "serve -m " + demo_model_path() + " --port 0 ";
  expect_refused(serve + "--api-key-file " + path(""), "--api-key-file: " + path("") + ": it is a folder");
  expect_refused(serve + "--metrics-without-key", "there are no keys");
}

}  // namespace
}  // namespace quire::test
