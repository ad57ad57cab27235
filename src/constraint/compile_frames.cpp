#include "constraint/compile_frames.h"

#include <cstring>

namespace quire {
namespace {

template <class T>
void put(std::string& to, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  to.append(reinterpret_cast<const char*>(&value), sizeof(T));
}
void put(std::string& to, const std::string& text) {
  put(to, static_cast<uint64_t>(text.size()));
  to += text;
}
void put(std::string& to, const std::vector<TokenId>& ids) {
  put(to, static_cast<uint64_t>(ids.size()));
  to.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(TokenId));
}

// Reads values one after the other; what is not there any more makes all of them fail.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  template <class T>
  void get(T& value) {
    const std::string_view bytes = take(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof(T));
  }
  void get(std::string& text) { text = take(length(1)); }
  void get(std::vector<TokenId>& ids) {
    const std::string_view bytes = take(length(sizeof(TokenId)));
    ids.resize(bytes.size() / sizeof(TokenId));
    if (!bytes.empty()) std::memcpy(ids.data(), bytes.data(), bytes.size());
  }
  // Bytes of an array of items of at least `size` bytes each, whose count comes next.
  size_t length(size_t size) {
    uint64_t count = 0;
    get(count);
    if (count > left_.size() / size) fail();
    return ok_ ? static_cast<size_t>(count) * size : 0;
  }
  std::string_view rest() { return take(left_.size()); }
  bool done() const { return ok_ && left_.empty(); }

 private:
  void fail() {
    ok_ = false;
    left_ = {};
  }
  std::string_view take(size_t size) {
    if (size > left_.size()) fail();
    if (!ok_) return {};
    const std::string_view bytes = left_.substr(0, size);
    left_.remove_prefix(size);
    return bytes;
  }

  std::string_view left_;
  bool ok_ = true;
};

std::string framed(std::string bytes) {
  const uint64_t length = bytes.size() - kFrameHead;
  std::memcpy(bytes.data(), &length, kFrameHead);
  return bytes;
}

}  // namespace

std::string to_frame(const CompileRequest& request) {
  std::string bytes(kFrameHead, '\0');
  put(bytes, request.spec.kind);
  put(bytes, request.spec.ends_itself);
  put(bytes, request.limits.work);
  put(bytes, request.limits.memory);
  put(bytes, request.limits.time.count());
  bytes += request.spec.text;
  return framed(std::move(bytes));
}

std::string to_frame(const CompileReply& reply) {
  std::string bytes(kFrameHead, '\0');
  bytes.reserve(kFrameHead + 1 + reply.text.size());
  put(bytes, reply.status);
  bytes += reply.text;
  return framed(std::move(bytes));
}

uint64_t frame_length(std::string_view head) {
  uint64_t length = 0;
  std::memcpy(&length, head.data(), kFrameHead);
  return length;
}

std::optional<CompileRequest> read_request(std::string_view bytes) {
  Reader reader(bytes);
  CompileRequest request;
  reader.get(request.spec.kind);
  reader.get(request.spec.ends_itself);
  reader.get(request.limits.work);
  reader.get(request.limits.memory);
  std::chrono::milliseconds::rep time = 0;
  reader.get(time);
  request.limits.time = std::chrono::milliseconds(time);
  request.spec.text = reader.rest();
  if (!reader.done()) return std::nullopt;
  return request;
}

std::optional<CompileReply> read_reply(std::string_view bytes) {
  Reader reader(bytes);
  CompileReply reply;
  reader.get(reply.status);
  reply.text = reader.rest();
  if (!reader.done() || reply.status > CompileReply::Status::kMemory) return std::nullopt;
  return reply;
}

std::string to_bytes(const Vocabulary& vocabulary) {
  std::string bytes;
  put(bytes, vocabulary.ends);
  put(bytes, vocabulary.control);
  put(bytes, static_cast<uint64_t>(vocabulary.bytes.size()));
  for (const std::string& token : vocabulary.bytes) put(bytes, token);
  return bytes;
}

std::optional<Vocabulary> read_vocabulary(std::string_view bytes) {
  Reader reader(bytes);
  Vocabulary vocabulary;
  reader.get(vocabulary.ends);
  reader.get(vocabulary.control);
  vocabulary.bytes.resize(reader.length(sizeof(uint64_t)) / sizeof(uint64_t));
  for (std::string& token : vocabulary.bytes) reader.get(token);
  if (!reader.done()) return std::nullopt;
  return vocabulary;
}

}  // namespace quire
