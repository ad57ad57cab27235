// From where pictures may be fetched, as tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "server/protocol/media_policy.h"
#include "support/hf_folder.h"

namespace quire::test {
namespace {

using server::MediaFile;
using server::MediaPolicy;
using testing::ElementsAre;
using testing::HasSubstr;

MediaPolicy policy_of(const std::vector<std::string>& domains, const std::string& folder = "") {
  auto made = MediaPolicy::create(domains, folder);
  EXPECT_TRUE(made.ok()) << made.error().message;
  return std::move(made).value();
}

std::string refusal_by(const MediaPolicy& p, const std::string& url) {
  const auto source = p.judge(url);
  return source.ok() ? "" : source.error().message;
}

bool connects(const MediaPolicy& p, const std::string& ip, const std::string& url) {
  return p.may_connect(*IpAddress::parse(ip), *hub::Url::parse(url));
}

TEST(MediaPolicy, TakesNothingByDefault) {
  const MediaPolicy none;
  EXPECT_FALSE(none.any());
  EXPECT_THAT(refusal_by(none, "https://example.org/a.png"), HasSubstr("--allowed-media-domains"));
  EXPECT_THAT(refusal_by(none, "http://127.0.0.1/a.png"), HasSubstr("--allowed-media-domains"));
  EXPECT_THAT(refusal_by(none, "file:///a.png"), HasSubstr("--allowed-local-media-path"));
}

TEST(MediaPolicy, TakesWhatIsListedAndNothingElse) {
  const MediaPolicy p = policy_of(
      {"Images.Example.org", "b.example:8443", "192.0.2.7", "[2001:db8::7]:8080", "10.0.0.5:9000", "2001:db8::9"});
  for (const char* const url :
       {"https://images.example.org/a.png", "http://images.example.org/a", "HTTPS://IMAGES.EXAMPLE.ORG:443/a?b#c",
        "http://images.example.org:80", "https://b.example:8443/x", "http://b.example:8443/x", "http://192.0.2.7/a",
        "http://[::ffff:192.0.2.7]/a", "https://192.0.2.7:443/", "http://[2001:db8::7]:8080/a",
        "http://[2001:DB8:0::7]:8080/a", "http://10.0.0.5:9000/bucket/a.png", "https://[2001:db8::9]/",
        "https://images.example.org:0443/"})
    EXPECT_EQ(refusal_by(p, url), "") << url;
  for (const char* const url : {"https://example.org/a",
                                "https://a.images.example.org/",
                                "https://images.example.org.evil.net/",
                                "https://images.example.org./",
                                "https://images.example.org:8443/",
                                "http://images.example.org:443/",
                                "https://images.example.org:80/",
                                "https://b.example/",
                                "https://b.example:443/",
                                "http://192.0.2.8/",
                                "http://192.0.2.7:8080/",
                                "http://10.0.0.5/",
                                "http://10.0.0.5:9001/",
                                "http://[2001:db8::7]/",
                                "http://[2001:db8::8]:8080/",
                                "http://3221225991/",
                                "http://0xc0000207/",
                                "http://192.0.519/",
                                "http://0300.0.2.7/",
                                "http://localhost/",
                                "http://127.0.0.1/",
                                "https://images.example.org:0/",
                                "https://images.example.org:65979/"})
    EXPECT_THAT(refusal_by(p, url), HasSubstr("fetches no pictures from")) << url;
  for (const char* const url :
       {"https://images.example.org@evil.net/", "https://evil.net@images.example.org/",
        "https://u:p@images.example.org/", "https://images.example.org\\@evil.net/", "https:images.example.org/a",
        "https:///a", "https://", "https://images.example.org:x/", "https://[2001:db8::7/",
        "https://images.example.org/a b", "https://images.example.org/\r\nHost: evil", "http://[fe80::1%25eth0]/",
        "https://images.example.org%2eevil/"})
    EXPECT_NE(refusal_by(p, url), "") << url;
}

TEST(MediaPolicy, LocalhostIsThisMachine) {
  const MediaPolicy p = policy_of({"localhost:9000"});
  for (const char* const url : {"http://localhost:9000/a", "http://127.0.0.1:9000/a", "http://127.9.9.9:9000/a",
                                "http://[::1]:9000/", "http://[::ffff:127.0.0.1]:9000/"})
    EXPECT_EQ(refusal_by(p, url), "") << url;
  for (const char* const url : {"http://localhost/", "http://localhost.evil.net:9000/", "http://[::]:9000/",
                                "http://0.0.0.0:9000/", "http://2130706433:9000/", "http://127.1:9000/"})
    EXPECT_NE(refusal_by(p, url), "") << url;
  for (const char* const ip : {"127.0.0.1", "127.1.2.3", "::1"}) {
    EXPECT_TRUE(connects(p, ip, "http://pictures.example:9000/")) << ip;
    EXPECT_FALSE(connects(p, ip, "http://pictures.example/")) << "at that port alone: " << ip;
  }
  EXPECT_FALSE(connects(p, "10.0.0.1", "http://pictures.example:9000/"));
}

// A name may lead to what is listed by itself, at the port that is asked.
TEST(MediaPolicy, ConnectsToPublicAndListedAddresses) {
  const MediaPolicy p = policy_of({"images.example.org", "10.0.0.5:9000", "169.254.169.254"});
  const std::string usual = "http://images.example.org/", other = "http://images.example.org:9000/";
  for (const char* const ip : {"8.8.8.8", "2600::1"}) {
    EXPECT_TRUE(connects(p, ip, usual)) << ip;
    EXPECT_TRUE(connects(p, ip, other)) << ip;
  }
  EXPECT_TRUE(connects(p, "169.254.169.254", usual));
  EXPECT_FALSE(connects(p, "169.254.169.254", other));
  for (const char* const ip : {"10.0.0.5", "::ffff:10.0.0.5"}) {
    EXPECT_TRUE(connects(p, ip, other)) << ip;
    EXPECT_FALSE(connects(p, ip, usual)) << ip;
  }
  for (const char* const ip : {"10.0.0.6", "127.0.0.1", "::1", "192.168.1.1", "169.254.169.253", "fe80::1", "fd00::1",
                               "0.0.0.0", "::ffff:192.168.1.1", "224.0.0.1"}) {
    EXPECT_FALSE(connects(p, ip, usual)) << ip;
    EXPECT_FALSE(connects(p, ip, other)) << ip;
  }
}

TEST(MediaPolicy, RefusesListsThatAreNone) {
  for (const auto& [text, why] : {std::pair{"https://example.org", "it is a URL"},
                                  {"example.org/", "it is no host"},
                                  {"*.example.org", "it is no host"},
                                  {"u@example.org", "it is no host"},
                                  {"", "it is no host"},
                                  {"exa mple", "it is no host"},
                                  {"example.org:", "its port is none"},
                                  {"example.org:0", "its port is none"},
                                  {"example.org:65536", "its port is none"},
                                  {"example.org:+80", "its port is none"},
                                  {"10.0.0.0/8", "it is no host"},
                                  {"127.1", "ends in a number"},
                                  {"0x7f000001", "ends in a number"},
                                  {"2130706433:80", "ends in a number"},
                                  {"[::1", "a bracket is not closed"},
                                  {"[example.org]", "it is no address"},
                                  {"[::1]x", "a bracket is not closed"},
                                  {"1::2::3", "it is no address"}}) {
    const auto made = MediaPolicy::create({text}, "");
    ASSERT_FALSE(made.ok()) << text;
    EXPECT_THAT(made.error().message, HasSubstr(why)) << text;
    EXPECT_THAT(made.error().message, HasSubstr("--allowed-media-domains '")) << text;
  }
  EXPECT_THAT(MediaPolicy::create({}, "/there/is/none").error().message, HasSubstr("--allowed-local-media-path"));
  const HfFolder folder;
  folder.write("file", "x");
  EXPECT_THAT(MediaPolicy::create({}, folder.path("file")).error().message, HasSubstr("it is no folder"));
}

TEST(MediaPolicy, FilesAreBelowTheFolder) {
  const HfFolder folder;
  std::filesystem::create_directory(folder.path("pictures"));
  std::filesystem::create_directory_symlink(folder.path("pictures"), folder.path("link"));
  const std::string root = folder.path("pictures");
  const MediaPolicy p = policy_of({}, folder.path("link") + "/");
  const auto parts = [&](const std::string& url) {
    const auto source = p.judge(url);
    EXPECT_TRUE(source.ok()) << url << source.error().message;
    return source.ok() ? std::get<MediaFile>(*source).parts : std::vector<std::string>();
  };
  EXPECT_THAT(parts("file://" + root + "/a.png"), ElementsAre("a.png"));
  EXPECT_THAT(parts("file://" + folder.path("link") + "/a.png"), ElementsAre("a.png"));
  EXPECT_THAT(parts("FILE://LocalHost" + root + "/b/c%20%23%25d.png"), ElementsAre("b", "c #%d.png"));
  EXPECT_THAT(parts("file://" + root + "/%2e%2e.png"), ElementsAre("...png"));
  const std::string one = MediaPolicy::no_file().message;
  for (const std::string& url : {"file://" + root,
                                 "file://" + root + "/",
                                 "file://" + root + "/../a.png",
                                 "file://" + root + "/%2e%2e/a.png",
                                 "file://" + root + "/./a.png",
                                 "file://" + root + "//a.png",
                                 "file://" + root + "/b%2fa.png",
                                 "file://" + root + "/a%00.png",
                                 "file://" + root + "/a%2",
                                 "file://" + root + "/a%zz",
                                 "file://" + root + "x/a.png",
                                 "file://" + root + "/a.png?b",
                                 "file://" + root + "/a.png#b",
                                 "file://" + root + "/a.png/",
                                 "file:" + root + "/a.png",
                                 "file://example.org" + root + "/a.png",
                                 std::string("file:///etc/passwd"),
                                 std::string("file:///"),
                                 std::string("file://"),
                                 std::string("file:"),
                                 "file://" + root + "/" + std::string(256, 'a'),
                                 "file://" + folder.path("a.png"),
                                 "file://" + root + "/" + std::string(9000, 'a')})
    EXPECT_EQ(refusal_by(p, url), one) << url;
}

}  // namespace
}  // namespace quire::test
