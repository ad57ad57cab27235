// ZeroMQ's protocol, byte by byte, and KV events as they are written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/kv_event_batch.h"
#include "server/protocol/json.h"
#include "server/protocol/zmtp.h"
#include "server/zmtp_place.h"

namespace quire::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// What libzmq 4.3.5 sends first as a SUB socket, and then to subscribe to "kv@".
std::string subscriber() {
  std::string g("\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL", 16);
  g.resize(64);
  g += std::string("\x04\x26\x05READY\x0bSocket-Type\0\0\0\x03SUB\x08Identity\0\0\0\0", 40);
  g += std::string("\0\x04\x01kv@", 6);
  return g;
}

std::string read_in_pieces(std::string_view bytes, size_t piece, std::vector<ZmtpItem>& items) {
  ZmtpReader reader;
  for (size_t at = 0; at < bytes.size(); at += piece)
    if (const Status s = reader.feed(bytes.substr(at, piece), items); !s.ok()) return s.error().message;
  return "";
}

std::string complaint(std::string_view bytes) {
  std::vector<ZmtpItem> items;
  return read_in_pieces(bytes, bytes.size(), items);
}

TEST(Zmtp, ReadsASubscriberInAnyPieces) {
  const std::string bytes = subscriber();
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    std::vector<ZmtpItem> items;
    ASSERT_EQ(read_in_pieces(bytes, piece, items), "") << piece;
    ASSERT_EQ(items.size(), 2u) << piece;
    EXPECT_EQ(items[0].command, "READY");
    const Result<std::string> type = zmtp_socket_type(items[0].frames[0]);
    ASSERT_TRUE(type.ok()) << type.error().message;
    EXPECT_EQ(*type, "SUB");
    EXPECT_EQ(items[1].command, "");
    EXPECT_THAT(items[1].frames, ElementsAre("\x01kv@"));
  }
}

TEST(Zmtp, ReadsWhatItWrites) {
  std::string all = zmtp_greeting() + zmtp_ready("DEALER");
  ASSERT_EQ(zmtp_greeting().size(), 64u);
  append_zmtp_frame(all, "", true);
  append_zmtp_frame(all, std::string(300, 'x'), false);
  all += zmtp_frame_head(2, false) + "ab" + zmtp_pong(std::string("\0\1context", 9));
  std::vector<ZmtpItem> items;
  ASSERT_EQ(read_in_pieces(all, 7, items), "");
  ASSERT_EQ(items.size(), 4u);
  EXPECT_EQ(*zmtp_socket_type(items[0].frames[0]), "DEALER");
  EXPECT_THAT(items[1].frames, ElementsAre("", std::string(300, 'x')));
  EXPECT_THAT(items[2].frames, ElementsAre("ab"));
  EXPECT_EQ(items[3].command, "PONG");
  EXPECT_THAT(items[3].frames, ElementsAre("context"));
}

TEST(Zmtp, SaysWhatIsWrong) {
  std::string g = zmtp_greeting();
  EXPECT_THAT(complaint("GET / HTTP/1.1\r\n"), HasSubstr("no greeting"));
  g[10] = 2;
  EXPECT_THAT(complaint(g), HasSubstr("version 2"));
  g = zmtp_greeting();
  g.replace(12, 5, "CURVE");
  EXPECT_THAT(complaint(g), HasSubstr("'CURVE'"));
  const std::string greeting = zmtp_greeting();
  EXPECT_THAT(complaint(greeting + '\x08'), HasSubstr("flags 0x08"));
  EXPECT_THAT(complaint(greeting + '\x05'), HasSubstr("flags 0x05"));
  EXPECT_THAT(complaint(greeting + std::string("\x02\0\0\0\0\0\1\0\0", 9)), HasSubstr("65536 bytes"));
  EXPECT_THAT(complaint(greeting + std::string("\x02\xff\xff\xff\xff\xff\xff\xff\xff", 9)), HasSubstr("at most 4096"));
  EXPECT_THAT(complaint(greeting + std::string("\x04\0", 2)), HasSubstr("ends too soon"));
  EXPECT_THAT(complaint(greeting + std::string("\x04\x02\x05R", 4)), HasSubstr("ends too soon"));
  EXPECT_THAT(complaint(greeting + std::string("\1\0\4\2\1P", 6)), HasSubstr("within a message"));
  std::string many;
  for (int i = 0; i < 9; ++i) append_zmtp_frame(many, "", true);
  EXPECT_THAT(complaint(greeting + many), HasSubstr("more than 8 frames"));
  EXPECT_THAT(zmtp_socket_type("").error().message, HasSubstr("which type"));
  EXPECT_THAT(zmtp_socket_type(std::string("\x01x\0\0\1\0y", 7)).error().message, HasSubstr("too soon"));
}

TEST(ZmtpEndpoint, ListensOrConnectsAsVllmDoes) {
  struct Case {
    const char* text;
    int offset;
    bool listens;
    const char* is;
  };
  constexpr Case kCases[] = {
      {"tcp://*:5557", 0, true, "tcp://0.0.0.0:5557"},
      {"tcp://*:5557", 2, true, "tcp://0.0.0.0:5559"},
      {"tcp://[::]:5557", 0, true, "tcp://[::]:5557"},
      {"tcp://*:0", 3, true, "tcp://0.0.0.0:0"},
      {"tcp://indexer.llm-d:5557", 1, false, "tcp://indexer.llm-d:5558"},
      {"@tcp://127.0.0.1:5557", 0, true, "tcp://127.0.0.1:5557"},
      {"ipc:///tmp/events", 0, true, "ipc:///tmp/events"},
      {"ipc:///tmp/events", 1, true, "ipc:///tmp/events.1"},
  };
  for (const Case& c : kCases) {
    const Result<ZmtpEndpoint> e = parse_zmtp_endpoint(c.text, c.offset, false);
    ASSERT_TRUE(e.ok()) << e.error().message;
    EXPECT_EQ(e->listens, c.listens) << c.text;
    EXPECT_EQ(e->text(), c.is);
  }
  EXPECT_TRUE(parse_zmtp_endpoint("tcp://127.0.0.1:1", 0, true)->listens);
  for (const char* wrong : {"", "5557", "udp://*:5557", "tcp://*", "tcp://:5557", "tcp://*:x", "tcp://*:65536",
                            "tcp://*:-1", "tcp://host:0", "ipc://", "tcp://[]:5557"})
    EXPECT_THAT(parse_zmtp_endpoint(wrong, 0, false).error().message, HasSubstr("endpoints are")) << wrong;
  EXPECT_FALSE(parse_zmtp_endpoint("tcp://*:65535", 1, false).ok());
}

KvEvent stored(uint64_t hash, std::optional<uint64_t> parent, TokenId token) {
  KvEvent e{.kind = KvEvent::Kind::kStored, .has_tokens = true, .hash = hash, .parent = parent};
  e.tokens.fill(token);
  return e;
}

TEST(KvEventBatch, JoinsWhatBelongsTogether) {
  const std::vector<KvEvent> events = {{},
                                       stored(UINT64_MAX, {}, 1),
                                       stored(7, UINT64_MAX, 200000),
                                       stored(8, 6, 3),
                                       {.kind = KvEvent::Kind::kRemoved, .hash = 8},
                                       {.kind = KvEvent::Kind::kRemoved, .hash = 7}};
  const Json arrays = Json::from_msgpack(kv_event_batch(events, 12.5, 3, KvEventFormat::kArrays));
  EXPECT_EQ(arrays[0], 12.5);
  EXPECT_EQ(arrays[2], 3);
  const Json& all = arrays[1];
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0], Json::parse(R"(["AllBlocksCleared"])"));
  EXPECT_EQ(all[1][1], Json::array({UINT64_MAX, 7}));
  EXPECT_TRUE(all[1][2].is_null());
  EXPECT_EQ(all[1][3].size(), 128u);
  EXPECT_EQ(all[1][3][127], 200000);
  EXPECT_EQ(all[1][4], 64);
  EXPECT_TRUE(all[1][5].is_null());
  EXPECT_EQ(all[1][6], "GPU");
  EXPECT_TRUE(all[1][7].is_null());
  EXPECT_EQ(all[1].size(), 8u);
  EXPECT_EQ(all[2][1], Json::array({8}));
  EXPECT_EQ(all[2][2], 6);
  EXPECT_EQ(all[3], Json::parse(R"(["BlockRemoved", [8, 7], "GPU"])"));

  const Json tagged = Json::from_msgpack(kv_event_batch(events, 12.5, 3, KvEventFormat::kTagged));
  EXPECT_EQ(tagged[1][3], Json::parse(R"({"type": "BlockRemoved", "block_hashes": [8, 7], "medium": "GPU"})"));
  const Json maps = Json::from_msgpack(kv_event_batch(events, 12.5, 3, KvEventFormat::kMaps));
  EXPECT_EQ(maps["data_parallel_rank"], 3);
  EXPECT_EQ(maps["events"][1]["parent_block_hash"], Json());
  EXPECT_EQ(maps["events"][2]["token_ids"].size(), 64u);
}

}  // namespace
}  // namespace quire::server
