#include "engine/tensor_samples.h"

#include <algorithm>

#include "core/hash.h"

namespace quire {
namespace {

// Adds samples of a tensor's bytes: all of them where they are few, else a page at its beginning, its end, and at even
// distances of at most 16 MiB between these, so that what was changed within shows without reading the file.
uint64_t add_samples(uint64_t h, const std::byte* data, size_t bytes) {
  constexpr size_t kPage = 4096, kDistance = size_t{16} << 20, kLeast = 6;
  const size_t pages = std::max(kLeast, bytes / kDistance + 1);
  if (bytes <= pages * kPage) return fnv1a(h, data, bytes);
  for (size_t i = 0; i < pages; ++i) h = fnv1a(h, data + (bytes - kPage) / (pages - 1) * i, kPage);
  return fnv1a(h, data + bytes - kPage, kPage);
}

}  // namespace

uint64_t add_tensors(uint64_t h, const gguf::File& file) {
  for (const gguf::TensorInfo& t : file.tensors()) {
    h = fnv1a_number(fnv1a(h, t.name), static_cast<int64_t>(t.dtype));
    for (const int64_t d : t.dims) h = fnv1a_number(h, d);
    h = add_samples(h, t.data, static_cast<size_t>(t.rows() * t.row_bytes()));
  }
  return h;
}

}  // namespace quire
