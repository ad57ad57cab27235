// Any bytes as a GGUF file: parsed as one file and as two shards, every value read through every getter,
// every tensor looked up, the first row of each decodable one decoded; and read as an importance file.
//   build/fuzz/fuzz_gguf -max_total_time=600 -rss_limit_mb=2048 tests/fuzz/corpus/gguf
// The seeds are the worked example of the format and files written by tests/fuzz/make_gguf_corpus.py.
#include <cfloat>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gguf/reader.h"
#include "quant/format.h"
#include "quant/importance.h"

namespace quire {
namespace {

volatile uint64_t g_sink;  // what is read must not be optimised away

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

void touch(std::string_view text) {
  uint64_t sum = 0;
  for (const char c : text) sum += static_cast<unsigned char>(c);
  g_sink = g_sink + sum;
}

template <class T>
void touch(const Result<T>& r) {
  if (r.ok()) return;
  require(!r.error().message.empty(), "an error has a message");
  require(r.error().fault == Fault::kModelFile, "a bad file is the file's fault");
}

void walk_metadata(const gguf::Metadata& m) {
  for (const auto& [key, value] : m.entries()) {
    require(m.find(key) == &value, "every key is found");
    touch(key);
    touch(m.get_u32(key));
    touch(m.get_i32(key));
    touch(m.get_u64(key));
    touch(m.get_i64(key));
    touch(m.get_f32(key));
    touch(m.get_bool(key));
    touch(m.get_string(key));
    touch(m.get_strings(key));
    touch(m.get_i32_array(key));
    touch(m.get_u32_array(key));
    touch(m.get_f32_array(key));
    touch(m.get_bool_array(key));
    touch(m.get_u32_per_layer(key, 3));
    for (const std::string_view s : value.strings) touch(s);
  }
}

void walk_tensors(const gguf::File& f, std::span<const std::span<const std::byte>> parts) {
  for (const gguf::TensorInfo& t : f.tensors()) {
    require(f.find_tensor(t.name) == &t, "every tensor is found");
    touch(gguf::shape_text(t));
    const auto whole = parts[static_cast<size_t>(t.shard)];
    require(t.data >= whole.data() && t.bytes >= 0 && t.data + t.bytes <= whole.data() + whole.size(), "in bounds");
    require(t.bytes == t.rows() * t.row_bytes(), "rows add up");
    if (t.bytes == 0) continue;
    touch({reinterpret_cast<const char*>(t.data), static_cast<size_t>(t.bytes)});
    if (!quant::can_decode(t.dtype)) continue;
    std::vector<float> row(static_cast<size_t>(t.dims[0]));
    quant::decode_row(t.dtype, t.data, t.dims[0], row.data());
  }
}

void walk_importance(const quant::Importance& f) {
  for (const quant::Importance::Entry& e : f.entries())
    for (int64_t m = 0; m < e.matrices; ++m) {
      const std::span<const float> means = f.find(e.tensor, m, e.columns);
      require(means.empty() == (e.counts[static_cast<size_t>(m)] == 0), "means where tokens came by");
      for (const float x : means) require(x >= 0 && x <= FLT_MAX, "a mean of squares");
    }
}

void parse(std::span<const std::span<const std::byte>> parts) {
  const auto f = gguf::File::parse(parts);
  touch(f);
  if (!f.ok()) return;
  walk_metadata(*f);
  walk_tensors(*f, parts);
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  quire::parse(std::span(&bytes, 1));
  const auto importance = quire::quant::Importance::parse(bytes);
  quire::touch(importance);
  if (importance.ok()) quire::walk_importance(*importance);
  // A split model: the input cut where its second file begins, if it has one (shards must start on 8-byte
  // boundaries).
  for (size_t at = 8; at + 4 <= size; at += 8) {
    if (std::memcmp(data + at, "GGUF", 4) != 0) continue;
    const std::span<const std::byte> shards[] = {bytes.first(at), bytes.subspan(at)};
    quire::parse(shards);
    break;
  }
  return 0;
}
