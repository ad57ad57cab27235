// Telling systemd.
#include "server/notify.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

namespace quire::server {
namespace {

TEST(Notify, ReachesTheSocket) {
  const std::string path = std::filesystem::temp_directory_path() / ("quire-notify-" + std::to_string(getpid()));
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_TRUE(notify(path, "READY=1").ok());
  char text[64];
  EXPECT_EQ(std::string(text, static_cast<size_t>(recv(fd, text, sizeof text, 0))), "READY=1");
  close(fd);
  std::filesystem::remove(path);
  EXPECT_FALSE(notify(path, "READY=1").ok());
  EXPECT_FALSE(notify("relative", "READY=1").ok());
  EXPECT_TRUE(notify("", "READY=1").ok());
}

}  // namespace
}  // namespace quire::server
