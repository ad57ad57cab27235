#include "lab/synth_image.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "core/lazy_memory.h"
#include "core/memory.h"
#include "core/progress.h"

namespace quire::cli {
namespace {

constexpr size_t kLeastShared = size_t{1} << 20;  // smaller tensors are copied: a mapping each is not worth it
// Patterns are repeated to this length, since a process may have some 65,000 mappings: of 800 GB these are 50,000.
constexpr size_t kStored = size_t{16} << 20;

Error no_memory(std::string_view doing) {
  return capacity_error("{}: {}", doing, std::strerror(errno));
}

// Patterns as files in memory, whose pages are mapped wherever they repeat.
class SharedPatterns {
 public:
  ~SharedPatterns() {
    for (const auto& [data, file] : files_)
      if (file.fd >= 0) close(file.fd);
  }
  // `at` and the payload's beginning are multiples of a page.
  Status map(const SynthPayload& p, std::byte* at) {
    File& file = files_[p.pattern.data()];
    if (file.bytes == 0) QUIRE_CHECKED(store(p.pattern, file));
    for (size_t done = 0, from = p.begin; done < p.bytes; from = 0) {
      const size_t n = std::min(p.bytes - done, file.bytes - from);
      if (mmap(at + done, n, PROT_READ, MAP_SHARED | MAP_FIXED, file.fd, static_cast<off_t>(from)) == MAP_FAILED)
        return no_memory("mapping random weights");
      done += n;
    }
    return {};
  }

 private:
  struct File {
    int fd = -1;
    size_t bytes = 0;  // whole patterns
  };

  static Status store(std::span<const std::byte> pattern, File& file) {
    file.fd = memfd_create("quire-synth", MFD_CLOEXEC);
    if (file.fd < 0) return no_memory("a file in memory for random weights");
    while (file.bytes < kStored) {
      QUIRE_CHECKED(append(pattern, file.fd));
      file.bytes += pattern.size();
    }
    return {};
  }
  static Status append(std::span<const std::byte> bytes, int fd) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t n = write(fd, bytes.data() + done, bytes.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return no_memory("writing random weights into memory");
      done += static_cast<size_t>(n);
    }
    return {};
  }

  std::map<const std::byte*, File> files_;
};

Status fill(const SynthModel& model, const gguf::File& file, SynthPages pages) {
  SharedPatterns shared;
  Progress progress("making weights", file.tensor_bytes(), Progress::Unit::kBytes);
  size_t next = 0;
  return model.fill([&](const SynthPayload& payload) -> Status {
    // Ours to write: `file` was parsed from the image.
    auto* const at = const_cast<std::byte*>(file.tensors()[next++].data);
    progress.add(static_cast<int64_t>(payload.bytes));
    if (pages == SynthPages::kShared && payload.bytes >= kLeastShared) return shared.map(payload, at);
    payload.copy_to(at);
    return {};
  });
}

}  // namespace

Result<std::shared_ptr<const LoadedModel>> load_synth_model(const SynthOptions& o, SynthPages pages) {
  QUIRE_TRY(const SynthModel model, SynthModel::choose(o));
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (page > kLargestPage) pages = SynthPages::kOwn;
  gguf::Writer w(static_cast<uint32_t>(std::min(page, kLargestPage)));  // every tensor begins on a page of its own
  QUIRE_CHECKED(model.declare(w));
  QUIRE_TRY(const std::string head, w.head());
  const auto bytes = static_cast<int64_t>(w.file_bytes()), available = available_memory();
  if (pages == SynthPages::kOwn && bytes > available)
    return capacity_error("{} with {} layers takes {} MiB, and {} MiB of memory are available; use fewer --layers",
                          model.shape().name, model.shape().layers, bytes >> 20, available >> 20);
  QUIRE_TRY(LazyMemory reserved, LazyMemory::reserve(static_cast<size_t>(bytes), "random weights"));
  const auto image = std::make_shared<const LazyMemory>(std::move(reserved));
  std::memcpy(image->bytes().data(), head.data(), head.size());
  QUIRE_TRY(gguf::File file, gguf::File::parse(image->bytes()));
  QUIRE_CHECKED(fill(model, file, pages));
  return load_model(std::move(file), fmt::format("synthetic {}", model.shape().name), image);
}

}  // namespace quire::cli
