#include "core/ip_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>

namespace quire::test {
namespace {

TEST(IpAddress, IsReadInItsUsualNotationsAlone) {
  for (const char* const text : {"1.2.3.4", "255.255.255.255", "::", "::1", "2001:db8::7", "::ffff:1.2.3.4", "fe80::1"})
    EXPECT_TRUE(IpAddress::parse(text)) << text;
  for (const char* const text : {"", "1.2.3", "1.2.3.4.5", "1.2.3.256", "0x7f.0.0.1", "2130706433", "127.1", "1.2.3.4 ",
                                 "localhost", "[::1]", "fe80::1%eth0", "1::2::3", "::ffff:1.2.3"})
    EXPECT_FALSE(IpAddress::parse(text)) << text;
}

TEST(IpAddress, IsTheSameHoweverItIsWritten) {
  EXPECT_EQ(IpAddress::parse("10.0.0.7"), IpAddress::parse("::ffff:10.0.0.7"));
  EXPECT_EQ(IpAddress::parse("10.0.0.7"), IpAddress::parse("::ffff:a00:7"));
  EXPECT_EQ(IpAddress::parse("2001:DB8::0:7"), IpAddress::parse("2001:db8::7"));
  EXPECT_FALSE(IpAddress::parse("10.0.0.7") == IpAddress::parse("10.0.0.8"));
  EXPECT_FALSE(IpAddress::parse("0.0.0.1") == IpAddress::parse("::1"));
}

TEST(IpAddress, KnowsWhichAnybodyMayReach) {
  for (const char* const text : {"1.1.1.1",         "8.8.8.8",         "9.255.255.255",        "11.0.0.0",
                                 "100.63.255.255",  "100.128.0.0",     "126.255.255.255",      "128.0.0.1",
                                 "169.253.255.255", "169.255.0.0",     "172.15.255.255",       "172.32.0.0",
                                 "192.0.1.0",       "192.167.255.255", "192.169.0.0",          "198.17.255.255",
                                 "198.20.0.0",      "223.255.255.255", "::ffff:8.8.8.8",       "2600::1",
                                 "2a00:1450::5",    "2001:200::1",     "2001:4860:4860::8888", "64:ff9b::8.8.8.8",
                                 "3ffe::1"})
    EXPECT_TRUE(IpAddress::parse(text)->is_public()) << text;
  for (const char* const text : {"0.0.0.0",
                                 "0.1.2.3",
                                 "10.0.0.0",
                                 "10.255.255.255",
                                 "100.64.0.0",
                                 "100.127.255.255",
                                 "127.0.0.1",
                                 "127.9.9.9",
                                 "169.254.0.0",
                                 "169.254.169.254",
                                 "172.16.0.0",
                                 "172.31.255.255",
                                 "192.0.0.1",
                                 "192.0.2.1",
                                 "192.88.99.1",
                                 "192.168.0.1",
                                 "192.168.255.255",
                                 "198.18.0.1",
                                 "198.19.255.255",
                                 "198.51.100.1",
                                 "203.0.113.1",
                                 "224.0.0.1",
                                 "239.255.255.255",
                                 "240.0.0.1",
                                 "255.255.255.255",
                                 "::",
                                 "::1",
                                 "::2",
                                 "::ffff:127.0.0.1",
                                 "::ffff:10.1.2.3",
                                 "::127.0.0.1",
                                 "::8.8.8.8",
                                 "::ffff:0:8.8.8.8",
                                 "100::1",
                                 "64:ff9b::127.0.0.1",
                                 "64:ff9b::a00:1",
                                 "64:ff9b:1::1",
                                 "fc00::1",
                                 "fdff::1",
                                 "fe80::1",
                                 "fec0::1",
                                 "ff02::1",
                                 "2001::1",
                                 "2001:1ff::1",
                                 "2001:db8::1",
                                 "2002:a00:1::1",
                                 "2002:808:808::1",
                                 "3fff::1",
                                 "4000::1",
                                 "5f00::1",
                                 "fd00:ec2::254"})
    EXPECT_FALSE(IpAddress::parse(text)->is_public()) << text;
}

TEST(IpAddress, KnowsThisMachine) {
  for (const char* const text : {"127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1"})
    EXPECT_TRUE(IpAddress::parse(text)->is_loopback()) << text;
  for (const char* const text : {"126.0.0.1", "128.0.0.1", "::", "::2", "1::1", "::127.0.0.1"})
    EXPECT_FALSE(IpAddress::parse(text)->is_loopback()) << text;
}

TEST(IpAddress, OfSockets) {
  sockaddr_storage any{};
  sockaddr_in v4{.sin_family = AF_INET, .sin_port = 1, .sin_addr = {htonl(0x0a000007)}, .sin_zero = {}};
  std::memcpy(&any, &v4, sizeof v4);
  EXPECT_EQ(IpAddress::of(any), IpAddress::parse("10.0.0.7"));
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_loopback;
  std::memcpy(&any, &v6, sizeof v6);
  EXPECT_EQ(IpAddress::of(any), IpAddress::parse("::1"));
  any.ss_family = AF_UNIX;
  EXPECT_FALSE(IpAddress::of(any));
}

}  // namespace
}  // namespace quire::test
