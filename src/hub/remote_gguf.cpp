#include "hub/remote_gguf.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "gguf/cursor.h"

namespace quire::hub {
namespace {

constexpr uint64_t kFirst = 1 << 20, kMost = uint64_t{256} << 20;
constexpr uint64_t kMaxText = 64 << 20;  // of one string: longer than any template

// Addresses of a size, read as zero where nothing was written.
struct Memory {
  std::byte* base = nullptr;
  size_t bytes = 0;
  Memory() = default;
  Memory(const Memory&) = delete;
  ~Memory() {
    if (base != nullptr) munmap(base, bytes);
  }
  // What was fetched beyond a header is weights: they read as zero like all others.
  void forget_from(uint64_t begin) const {
    const auto page_size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const uint64_t end = std::min<uint64_t>((begin + page_size - 1) / page_size * page_size, bytes);
    std::memset(base + begin, 0, end - begin);
    if (end < bytes) madvise(base + end, bytes - end, MADV_DONTNEED);
  }
  Status reserve(uint64_t size) {
    void* const at =
        size == 0 ? MAP_FAILED
                  : mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return file_error("a file of {} bytes cannot be looked at", size);
    base = static_cast<std::byte*>(at);
    bytes = size;
    return {};
  }
};

// Steps over a header's records. A step that the bytes do not suffice for leaves `short_of` set.
class HeaderWalk {
 public:
  explicit HeaderWalk(std::span<const std::byte> bytes) : in_(bytes) {}

  Result<std::optional<uint64_t>> run() {
    const uint32_t magic = number<uint32_t>(), version = number<uint32_t>();
    if (!short_of_ && (magic != 0x46554747 || version < 2 || version > 3))
      return file_error("it is no GGUF file of version 2 or 3");
    const uint64_t tensors = number<uint64_t>(), entries = number<uint64_t>();
    for (uint64_t i = 0; i < entries && good(); ++i) entry();
    for (uint64_t i = 0; i < tensors && good(); ++i) {
      text();
      const uint32_t dims = number<uint32_t>();
      if (dims > gguf::kMaxDims) damaged_ = true;
      if (good()) skip(dims * uint64_t{8} + 4 + 8);
    }
    if (damaged_) return file_error("its header is damaged");
    if (short_of_) return std::optional<uint64_t>();
    return std::optional<uint64_t>(in_.position());
  }

 private:
  bool good() const { return !short_of_ && !damaged_; }
  template <class T>
  T number() {
    T x{};
    if (!good()) return x;
    const auto taken = in_.take<T>("");
    if (taken.ok()) return *taken;
    short_of_ = true;
    return x;
  }
  void skip(uint64_t bytes) {
    if (good() && !in_.take_bytes("", bytes).ok()) short_of_ = true;
  }
  void text() {
    const uint64_t bytes = number<uint64_t>();
    if (bytes > kMaxText) damaged_ = true;
    skip(bytes);
  }
  void entry() {
    text();
    uint32_t type = number<uint32_t>();
    uint64_t count = 1;
    if (type == static_cast<uint32_t>(gguf::ValueType::kArray)) {
      type = number<uint32_t>();
      count = number<uint64_t>();
    }
    if (type >= gguf::kValueTypes || type == static_cast<uint32_t>(gguf::ValueType::kArray) || count > kMost)
      damaged_ = true;
    if (!good()) return;
    if (type != static_cast<uint32_t>(gguf::ValueType::kString))
      return skip(count * static_cast<uint64_t>(gguf::value_type_bytes(static_cast<gguf::ValueType>(type))));
    for (uint64_t i = 0; i < count && good(); ++i) text();
  }

  gguf::Cursor in_;
  bool short_of_ = false, damaged_ = false;
};

// Bytes `have` to `want` of the file; the first call reserves the memory. Ends with as much as there is.
Status fetch_more(HttpClient& client, const Url& url, const std::string& model, Memory& memory, uint64_t& have,
                  uint64_t want) {
  for (int attempt = 1; have < want; ++attempt) {
    QUIRE_TRY(Response answer, client.fetch({.url = url, .range = {{have, want - 1}}}));
    const auto part = answer.part();
    const auto whole = answer.status() == 206 && part ? std::optional(part->whole) : answer.length();
    if (answer.status() != 200 && answer.status() != 206) return refusal(answer, client.options(), model, url.text());
    if (!whole) return file_error("{} does not say how long the file is", url.origin());
    if (answer.status() == 206 && (!part || part->first != have))
      return file_error("{} sends another range than was asked for", url.origin());
    if (memory.base == nullptr) QUIRE_CHECKED(memory.reserve(*whole));
    if (memory.bytes != *whole) return file_error("the file at {} has changed; try again", url.origin());
    want = std::min<uint64_t>(want, memory.bytes);
    // Without ranges an answer begins at the beginning.
    uint64_t at = answer.status() == 206 ? have : 0;
    Result<size_t> n = size_t{1};
    while (at < want && (n = answer.read({memory.base + at, want - at})).ok() && *n > 0) at += *n;
    have = std::max(have, at);
    if (have < want && !client.wait_before(attempt))
      return n.ok() ? file_error("{}: the answer ended early", url.origin()) : n.take_error();
  }
  return {};
}

Result<uint64_t> fetch_header(HttpClient& client, const Url& url, const std::string& model, Memory& memory) {
  uint64_t have = 0;
  for (uint64_t want = kFirst;; want *= 2) {
    QUIRE_CHECKED(fetch_more(client, url, model, memory, have, want));
    QUIRE_TRY(const auto header, gguf_header_bytes({memory.base, have}));
    if (header) return *header;
    if (have >= memory.bytes) return file_error("it ends within its header");
    if (want >= kMost) return file_error("its header is longer than {} bytes", kMost);
  }
}

}  // namespace

Result<std::optional<uint64_t>> gguf_header_bytes(std::span<const std::byte> bytes) {
  return HeaderWalk(bytes).run();
}

Result<RemoteGguf> read_remote_gguf(HttpClient& client, const std::vector<Url>& parts, const std::string& model) {
  auto memory = std::make_shared<std::vector<Memory>>(parts.size());
  std::vector<std::span<const std::byte>> spans;
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    Memory& m = (*memory)[i];
    QUIRE_TRY(const uint64_t header, fetch_header(client, parts[i], model, m).context(parts[i].text()));
    m.forget_from(header);
    header_bytes += header;
    spans.emplace_back(m.base, m.bytes);
  }
  QUIRE_TRY(gguf::File file, gguf::File::parse(spans).context(parts.front().text()));
  return RemoteGguf{std::move(memory), std::move(file), header_bytes};
}

}  // namespace quire::hub
