// Any bytes as what a peer says to a ZeroMQ socket of ours, cut into pieces as the first byte says. However they are
// cut, the same comes of them; frames and messages keep their limits.
//   build/fuzz/fuzz_zmtp -max_total_time=600 tests/fuzz/corpus/zmtp
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "server/protocol/zmtp.h"

namespace quire::server {
namespace {

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

// All that is said before something wrong.
std::string read_all(std::string_view bytes, size_t step) {
  ZmtpReader reader;
  std::vector<ZmtpItem> items;
  std::string seen;
  for (size_t at = 0; at < bytes.size(); at += step) {
    const Status s = reader.feed(bytes.substr(at, step), items);
    if (!s.ok()) {
      require(!s.error().message.empty(), "an error has a message");
      seen = "wrong: ";  // how much of what follows is seen may depend on the pieces
      break;
    }
  }
  for (const ZmtpItem& item : items) {
    require(!item.frames.empty() && item.frames.size() <= ZmtpReader::kMostFrames, "messages are limited");
    seen += item.command + "\n";
    for (const std::string& frame : item.frames) {
      require(frame.size() <= ZmtpReader::kMostFrameBytes, "frames are limited");
      seen += frame + "\n";
    }
    if (item.command == "READY") {
      const Result<std::string> type = zmtp_socket_type(item.frames[0]);
      seen += type.ok() ? *type : type.error().message;
    }
    if (item.command == "PING") seen += zmtp_pong(item.frames[0]);
  }
  return seen;
}

}  // namespace
}  // namespace quire::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t step = 1 + data[0] % 64;
  quire::server::require(quire::server::read_all(bytes, bytes.size() + 1) == quire::server::read_all(bytes, step),
                         "the same is read in pieces");
  return 0;
}
