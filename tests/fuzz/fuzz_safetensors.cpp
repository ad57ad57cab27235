// Any bytes as a safetensors file and as its index: every tensor lies inside the file, every plain, FP8 or
// 4-bit matrix that the names make up decodes.
//   build/fuzz/fuzz_safetensors -max_total_time=600 -rss_limit_mb=2048 tests/fuzz/corpus/safetensors
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "convert/matrix.h"
#include "convert/safetensors.h"

namespace quire::convert {
namespace {

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

template <class T>
bool read(const Result<T>& r) {
  if (r.ok()) return true;
  require(!r.error().message.empty() && r.error().message.size() < 4000, "an error has a message");
  require(r.error().message.find('\n') == std::string::npos, "it is one line");
  require(r.error().fault == Fault::kModelFile, "a bad file is the file's fault");
  return false;
}

void decode_all(const Result<Matrix>& m) {
  if (!read(m) || m->cols > 4096) return;
  std::vector<double> row(static_cast<size_t>(m->cols));
  for (int64_t r = 0; r < std::min<int64_t>(m->rows, 300); ++r) decode_row(*m, r, row.data());
}

void walk(const FolderWeights& c, std::span<const std::byte> file) {
  uint64_t sum = 0;
  for (const SourceTensor& t : c.tensors()) {
    require(t.data.data() >= file.data() && t.data.data() + t.data.size() <= file.data() + file.size(), "in bounds");
    require(c.find(t.name) == &t, "every tensor is found");
    sum += t.data.size();
  }
  require(sum == c.bytes() && sum <= file.size(), "tensors tile the data");
  Source source(c);
  (void)read(source.check());
  for (const SourceTensor& t : c.tensors()) {
    if (t.shape.empty() || t.elems() == 0) continue;
    const int64_t cols = t.shape.back(), rows = t.elems() / cols;
    decode_all(source.tensor(t.name, rows, cols));
    if (t.name.ends_with(".weight")) {
      const std::string stem = t.name.substr(0, t.name.size() - 7);
      decode_all(source.linear(stem, rows, cols));
      if (cols < (1 << 30)) decode_all(source.linear(stem, rows, 2 * cols));  // codes in pairs
    }
    if (t.name.ends_with(".weight_packed") && cols < (1 << 30))
      decode_all(source.linear(t.name.substr(0, t.name.size() - 14), rows, 2 * cols));
  }
  require(source.unused().size() <= c.tensors().size(), "unused ones are among them");
}

}  // namespace
}  // namespace quire::convert

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto c = quire::convert::FolderWeights::parse(bytes);
  if (quire::convert::read(c)) quire::convert::walk(*c, bytes);
  const auto index = quire::convert::parse_shard_index({reinterpret_cast<const char*>(data), size});
  if (quire::convert::read(index))
    for (const std::string& file : index->files)
      quire::convert::require(file.find('/') == file.npos && file != "..", "a plain name");
  return 0;
}
