// quire health: ready, not ready, nobody there.
#include "support/program.h"

#include <gmock/gmock.h>

#include "server/serve_program.h"

namespace quire::test {
namespace {

class Health : public ServeProgram {
 protected:
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
};

TEST_F(Health, SaysWhetherAServerIsReady) {
  start("--no-access-log");
  const Outcome o = quire("health --url " + url());
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, "ok\n");
  EXPECT_EQ(quire("health " + url() + "/").code, 0);
  EXPECT_EQ(quire("health 127.0.0.1:" + std::to_string(port_)).code, 0);
  expect_refused("health --url " + url() + "/v2", "answers with status 404");
  kill(pid_, SIGTERM);
  EXPECT_EQ(wait(), 0);
  expect_refused("health --timeout 1 --url " + url(), "127.0.0.1");
}

TEST_F(Health, AsksAtAUnixDomainSocket) {
  write("err", "");
  launch("--no-access-log --host " + path("quire.sock"));  // which is --uds by its name
  ASSERT_TRUE(eventually([&] { return quire("health --uds " + path("quire.sock")).out == "ok\n"; }));
  expect_refused("health --uds " + path("quire.sock") + " --url localhost/v2", "answers with status 404");
  kill(pid_, SIGTERM);
  EXPECT_EQ(wait(), 0);
  expect_refused("health --uds " + path("quire.sock"), path("quire.sock") + " cannot be reached: No such file");
  expect_refused("health --uds /" + std::string(200, 'x'), "File name too long");
}

TEST_F(Health, RefusesWhatIsNoAddress) {
  expect_refused("health --url ftp://x", "ftp://x");
  expect_refused("health --timeout 0", "--timeout 0: must be between 1 and 3600 s");
}

}  // namespace
}  // namespace quire::test
