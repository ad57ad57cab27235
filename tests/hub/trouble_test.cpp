// A hub that misbehaves: what is said, and that the cache holds nothing that it should not.
#include "hub/hub_test.h"

namespace quire::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

using Trouble = FakeHub::Trouble;

struct Case {
  const char* name;
  Trouble trouble;
  std::string complaint;  // empty: the pull succeeds all the same
};

bool is_list(const FakeRequest& r) {
  return r.is("/api/models/");
}
bool is_head(const FakeRequest& r) {
  return r.method == "HEAD";
}
bool is_data(const FakeRequest& r) {
  return r.cdn && r.method == "GET";
}

// The first time that `which` is true.
Trouble once(bool (*which)(const FakeRequest&), std::function<void(const FakeRequest&, FakePeer&)> act) {
  auto done = std::make_shared<std::atomic<bool>>(false);
  return [=](const FakeRequest& r, FakePeer& peer) {
    if (!which(r) || done->exchange(true)) return false;
    act(r, peer);
    return true;
  };
}

Trouble always(bool (*which)(const FakeRequest&), std::function<void(const FakeRequest&, FakePeer&)> act) {
  return [=](const FakeRequest& r, FakePeer& peer) {
    if (!which(r)) return false;
    act(r, peer);
    return true;
  };
}

std::function<void(const FakeRequest&, FakePeer&)> says(const std::string& status, const std::string& headers = "",
                                                        const std::string& body = "") {
  return [=](const FakeRequest&, FakePeer& peer) { peer.answer(status, headers, body); };
}

const std::string kContent = noise((9 << 20) + 12345);

// A right answer to a range, but for what is changed by `edit` (first, last, whole, body).
struct Part {
  uint64_t first, last, whole;
  std::string body;
};
std::function<void(const FakeRequest&, FakePeer&)> sends(const std::function<void(Part&)>& edit) {
  return [=](const FakeRequest& r, FakePeer& peer) {
    const uint64_t first = r.range ? r.range->first : 0;
    const uint64_t last = std::min<uint64_t>(r.range ? r.range->second : UINT64_MAX, kContent.size() - 1);
    Part p{first, last, kContent.size(), kContent.substr(first, last - first + 1)};
    edit(p);
    peer.answer("206 Partial Content", fmt::format("Content-Range: bytes {}-{}/{}\r\n", p.first, p.last, p.whole),
                p.body);
  };
}

std::string list_of(const std::string& path, const std::string& more = "") {
  return fmt::format(R"({{"sha": "{}", "siblings": [{{"rfilename": "{}"}}]{}}})", FakeHub::kCommit, path, more);
}

void endless(FakePeer& peer, const std::string& piece) {
  while (peer.open) peer.write(piece);
}

const std::vector<Case> kCases = {
    // ---- The list of files ----
    {"PageForBrowsers", always(is_list, says("200 OK", "", "<html><body>Sign in to the network</body></html>")),
     "page for browsers"},
    {"EmptyList", always(is_list, says("200 OK")), "not valid JSON"},
    {"PathThatClimbs", always(is_list, says("200 OK", "", list_of("../../../evil.gguf"))), "cannot be one"},
    {"AbsolutePath", always(is_list, says("200 OK", "", list_of("/tmp/evil.gguf"))), "cannot be one"},
    {"ControlCharacters", always(is_list, says("200 OK", "", list_of("a\\u001b[2J.gguf"))), "cannot be one"},
    {"CommitThatClimbs", always(is_list, says("200 OK", "", R"({"sha": "../../../../tmp", "siblings": []})")),
     "\"sha\""},
    {"NoFiles",
     always(is_list, says("200 OK", "", fmt::format(R"({{"sha": "{}", "siblings": []}})", FakeHub::kCommit))),
     "no model that can be run"},
    {"EndlessList",
     always(is_list,
            [](const FakeRequest&, FakePeer& peer) {
              peer.write("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
              endless(peer, std::string(1 << 20, ' '));
            }),
     "sends more than"},
    {"EndlessHeaders",
     always(is_list,
            [](const FakeRequest&, FakePeer& peer) {
              peer.write("HTTP/1.1 200 OK\r\n");
              endless(peer, "X-A: " + std::string(1000, 'a') + "\r\n");
            }),
     "headers are too long"},
    {"EndlessPromises",
     always(is_list, [](const FakeRequest&, FakePeer& peer) { endless(peer, "HTTP/1.1 100 Continue\r\n\r\n"); }),
     "again and again"},
    {"NoHttp", always(is_list, [](const FakeRequest&, FakePeer& peer) { peer.write("SSH-2.0-x\r\n\r\n"); }),
     "not valid HTTP"},
    {"ClosesAtOnce", always(is_list, [](const FakeRequest&, FakePeer& peer) { peer.close(); }), "closed early"},
    {"NeverAnswers", always(is_list, [](const FakeRequest&, FakePeer& peer) { peer.wait(5000); }),
     "nothing came in time"},
    {"SlowHeaders",
     always(is_list,
            [](const FakeRequest&, FakePeer& peer) {
              for (int i = 0; i < 200 && peer.open; ++i) {
                peer.write(i == 0 ? "HTTP/1.1 200 OK\r\nX: " : "a");
                peer.wait(50);
              }
            }),
     "nothing came in time"},
    {"Compressed", always(is_list, says("200 OK", "Content-Encoding: gzip\r\n", "\x1f\x8b")), "is compressed (gzip)"},
    {"NotThere", always(is_list, says("404 Not Found", "X-Error-Code: RepoNotFound\r\n")),
     "nothing of this name (404)"},
    {"NoSuchRevision", always(is_list, says("404 Not Found", "X-Error-Code: RevisionNotFound\r\n")),
     "no such revision"},
    {"Unauthorised", always(is_list, says("401 Unauthorized")), "gated or private"},
    {"TooManyRequests", once(is_list, says("429 Too Many Requests", "Retry-After: 1\r\n")), ""},
    {"TooManyForLong", always(is_list, says("429 Too Many Requests", "Retry-After: 86400\r\n")),
     "asks to wait 86400 seconds"},
    {"AlwaysUnavailable", always(is_list, says("503 Service Unavailable")), "answers with status 503"},
    {"UnavailableOnce",
     once(is_list, says("503 Service Unavailable", "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT\r\n")), ""},
    {"RedirectLoop", always(is_list, says("302 Found", "Location: /api/models/again\r\n")), "redirects"},
    {"RedirectNowhere", always(is_list, says("302 Found", "Location: file:///etc/passwd\r\n")), "redirects"},

    // ---- What a file is ----
    {"OtherHash",
     always(is_head, says("200 OK", "X-Linked-Size: 9449529\r\nX-Linked-Etag: \"" + std::string(64, 'a') + "\"\r\n")),
     "offers"},
    {"HashThatClimbs", always(is_head, says("200 OK", "X-Linked-Etag: \"../../../evil\"\r\n", kContent)), ""},
    {"OtherCommit", always(is_head, says("200 OK", "X-Repo-Commit: " + std::string(40, 'f') + "\r\n", kContent)),
     "another one"},
    {"OtherSize", always(is_head, says("200 OK", "X-Linked-Size: 99\r\nX-Linked-Etag: \"\"\r\n")), "offers"},
    {"GatedFile", always(is_head, says("403 Forbidden", "X-Error-Message: Access is restricted\r\n")),
     "Access is restricted"},

    // ---- Its bytes ----
    {"WrongBytes", always(is_data, sends([](Part& p) { p.body[p.body.size() / 2] ^= 1; })), "nothing of it is kept"},
    {"CutShort",
     once(is_data,
          [](const FakeRequest& r, FakePeer& peer) {
            peer.write(
                fmt::format("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {}-{}/{}\r\n"
                            "Content-Length: {}\r\n\r\n{}",
                            r.range->first, r.range->second, kContent.size(), r.range->second - r.range->first + 1,
                            kContent.substr(r.range->first, 100'000)));
            peer.close();
          }),
     ""},
    {"AlwaysCut",
     always(is_data,
            [](const FakeRequest& r, FakePeer& peer) {
              peer.write(
                  fmt::format("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {}-{}/{}\r\n"
                              "Content-Length: {}\r\n\r\nx",
                              r.range->first, r.range->second, kContent.size(), r.range->second - r.range->first + 1));
              peer.close();
            }),
     "closed early"},
    {"ShorterParts", always(is_data, sends([](Part& p) {
                              p.last = std::min(p.last, p.first + (3 << 20));
                              p.body.resize(p.last - p.first + 1);
                            })),
     ""},
    {"OtherRange", always(is_data, sends([](Part& p) { ++p.first, ++p.last; })), "the file may have changed"},
    {"SizeChanges", always(is_data, sends([](Part& p) { p.whole += p.first > 0 ? 1 : 0; })),
     "the file may have changed"},
    {"MoreThanAsked", always(is_data, sends([](Part& p) { p.last = p.whole - 1, p.body = kContent.substr(p.first); })),
     ""},
    {"RangesIgnored", always(is_data, says("200 OK", "", kContent)), ""},
    {"RangesIgnoredAndShort", always(is_data, says("200 OK", "", kContent.substr(0, 1000))),
     "the file may have changed"},
    {"RangesIgnoredEndless",
     always(is_data,
            [](const FakeRequest&, FakePeer& peer) {
              peer.write("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
              endless(peer, std::string(1 << 16, 'x'));
            }),
     "nothing of it is kept"},
    {"ChunkedWhole",
     always(is_data,
            [](const FakeRequest&, FakePeer& peer) {
              peer.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
              for (size_t at = 0; at < kContent.size(); at += 100'000) {
                const std::string piece = kContent.substr(at, 100'000);
                peer.write(fmt::format("{:x}\r\n{}\r\n", piece.size(), piece));
              }
              peer.write("0\r\n\r\n");
            }),
     ""},
    {"BadChunks",
     always(is_data,
            [](const FakeRequest&, FakePeer& peer) {
              peer.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n");
              peer.close();
            }),
     "not valid HTTP"},
    {"SlowBytes",
     always(is_data,
            [](const FakeRequest& r, FakePeer& peer) {
              peer.write(
                  fmt::format("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {}-{}/{}\r\n"
                              "Content-Length: {}\r\n\r\n",
                              r.range->first, r.range->second, kContent.size(), r.range->second - r.range->first + 1));
              for (int i = 0; i < 300 && peer.open; ++i) {
                peer.write("x");
                peer.wait(20);
              }
            }),
     "nothing came in time"},
    {"CompressedBytes", always(is_data, says("206 Partial Content", "Content-Encoding: zstd\r\n", "bomb")),
     "is compressed (zstd)"},
    {"NotSatisfiable", always(is_data, says("416 Range Not Satisfiable", "Content-Range: bytes */5\r\n")),
     "the file may have changed"},
    {"ExpiredLink", always(is_data, says("403 Forbidden")), "answers 403"},
    {"BusyBytes", once(is_data, says("503 Slow Down")), ""},
};

class HubTrouble : public HubTest, public testing::WithParamInterface<Case> {};

TEST_P(HubTrouble, LeavesNothingWrong) {
  const Case& c = GetParam();
  hub_->set_trouble(c.trouble);
  const auto pulled = pull();
  if (c.complaint.empty()) {
    ASSERT_TRUE(pulled.ok()) << pulled.error().message;
    EXPECT_EQ(check_cache(), 1);
    EXPECT_EQ(read_whole_file(pulled->path), kContent);
  } else {
    ASSERT_FALSE(pulled.ok());
    EXPECT_THAT(pulled.error().message, HasSubstr(c.complaint));
    EXPECT_EQ(check_cache(), 0);
    EXPECT_FALSE(fs::exists(path("cache/models--org--tiny/refs/main")));
    // And when the hub has come to its senses, all is well.
    hub_->set_trouble(nullptr);
    const auto again = pull();
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(check_cache(), 1);
    EXPECT_EQ(read_whole_file(again->path), kContent);
  }
}

INSTANTIATE_TEST_SUITE_P(All, HubTrouble, testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });

TEST_F(HubTest, SmallFilesAreCheckedByGitsHash) {
  hub_->add("org/folder", "config.json", {.content = "{\"a\": 1}", .large = false});
  hub_->add("org/folder", "model.safetensors", {.content = noise(1000)});
  hub_->set_trouble([](const FakeRequest& r, FakePeer& peer) {
    if (r.method != "GET" || !r.is("config.json")) return false;
    peer.answer("200 OK", "", "{\"a\": 2}");
    return true;
  });
  const auto pulled = pull("org/folder");
  ASSERT_FALSE(pulled.ok());
  EXPECT_THAT(pulled.error().message, HasSubstr("nothing of it is kept"));
  check_cache();
  hub_->set_trouble(nullptr);
  EXPECT_TRUE(pull("org/folder").ok());
  EXPECT_EQ(check_cache(), 2);
}

// Everything at random, again and again, with the same cache: in the end the model is there, and at no time anything
// wrong.
TEST_F(HubTest, RandomTroubleNeverLeavesWrongBlobs) {
  auto seed = std::make_shared<std::atomic<uint32_t>>(12345);
  hub_->set_trouble([=](const FakeRequest& r, FakePeer& peer) {
    const uint32_t n = (*seed = seed->load() * 1664525 + 1013904223) >> 8;
    if (n % 3 != 0) return false;
    for (size_t i = 0; i < kCases.size(); ++i) {
      const Case& c = kCases[(n / 3 + i) % kCases.size()];
      const std::string_view name = c.name;
      if (name.starts_with("Endless") || name.starts_with("Slow") || name == "NeverAnswers") continue;
      if (c.trouble(r, peer)) return true;
    }
    return false;
  });
  int good = 0;
  for (int i = 0; i < 40; ++i) {
    hub::HubOptions o = options();
    o.http.patience.attempts = 2;
    good += pull("org/tiny", o).ok() ? 1 : 0;
    check_cache();
  }
  hub_->set_trouble(nullptr);
  ASSERT_TRUE(pull().ok());
  EXPECT_EQ(check_cache(), 1);
}

}  // namespace
}  // namespace quire::test
