// Any bytes as what a hub answers. The first byte says as what: a list of files, an index of safetensors, a header of a
// GGUF file, an ETag, a URL that is redirected to, a model's name. What is taken leads out of no folder.
//   build/fuzz/fuzz_hub -max_total_time=600 -rss_limit_mb=2048 tests/fuzz/corpus/hub
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "hub/choose.h"
#include "hub/remote_gguf.h"
#include "hub/repository.h"

namespace quire::hub {
namespace {

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

void require_inside(const std::string& path) {
  const std::filesystem::path normal = std::filesystem::path("/root/folder") / path;
  require(normal.lexically_normal().string().starts_with("/root/folder/"), "a path stays in its folder");
}

void read_list(std::string_view text) {
  const auto repository = parse_repository(text);
  if (!repository.ok()) return require(!repository.error().message.empty(), "an error says why");
  require(is_hex(repository->commit, 40), "a commit is a hash");
  std::vector<NamedFile> files;
  for (const RemoteFile& f : repository->files) {
    require_inside(f.path);
    require(f.hash.empty() || is_hex(f.hash, 64) || is_hex(f.hash, 40), "a hash is one");
    require(repository->find(f.path) == &f, "a file is found");
    files.push_back({f.path, f.bytes.value_or(0)});
  }
  const std::vector<Variant> variants = variants_of(files);
  for (const Variant& v : variants) require(!v.files.empty(), "a variant has files");
  const auto choice = choose(variants, *ModelName::parse("a/b"), {"", int64_t{1} << 40, false});
  if (choice.ok()) require(choice->variant.parts_missing == 0, "what is chosen is whole");
}

void run(uint8_t kind, std::string_view text) {
  if (kind % 6 == 0) read_list(text);
  if (kind % 6 == 1)
    if (const auto names = parse_safetensors_index(text); names.ok())
      for (const std::string& name : *names) require_inside(name);
  if (kind % 6 == 2) {
    const auto header = gguf_header_bytes(std::as_bytes(std::span(text)));
    if (header.ok() && *header) require(**header <= text.size(), "a header ends where its bytes do");
  }
  if (kind % 6 == 3) {
    const std::string hash = hash_of_etag(text);
    require(hash.empty() || is_hex(hash, 64) || is_hex(hash, 40), "a hash is one");
  }
  if (kind % 6 == 4) {
    const auto url = Url::parse("https://example.org/a/b?c")->join(text);
    if (url.ok()) require(Url::parse(url->text())->text() == url->text(), "a URL is read back as itself");
  }
  if (kind % 6 == 5)
    if (const auto name = ModelName::parse(text); name.ok()) {
      require_inside(name->folder());
      require(name->folder().find('/') == std::string::npos, "a model is one folder");
    }
}

}  // namespace
}  // namespace quire::hub

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) quire::hub::run(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
