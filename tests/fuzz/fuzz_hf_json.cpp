// Any text as config.json, tokenizer.json, tokenizer_config.json and generation_config.json, with a NUL
// between them: read, planned against an empty model folder, and written as metadata.
//   build/fuzz/fuzz_hf_json -max_total_time=600 -rss_limit_mb=2048 tests/fuzz/corpus/hf_json
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "convert/hf_tokenizer.h"
#include "convert/metadata.h"

namespace quire::convert {
namespace {

constexpr int64_t kMaxVocab = 4096;  // larger ones are as many tokens of padding

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

template <class T>
bool read(const Result<T>& r) {
  if (r.ok()) return true;
  require(!r.error().message.empty() && r.error().fault == Fault::kModelFile, "a bad file is the file's fault");
  return false;
}

void run(const std::array<nlohmann::json, 4>& files) {
  Result<HfConfig> config = read_hf_config(files[0]);
  if (!read(config) || config->vocab > kMaxVocab) return;
  const auto empty = FolderWeights::parse(std::as_bytes(std::span("\2\0\0\0\0\0\0\0{}", 10)));
  require(empty.ok(), "no tensors are weights too");
  Source source(*empty);
  require(!read(make_plan(source, *config, {})), "tensors are missing");
  const auto tokenizer =
      read_hf_tokenizer({.tokenizer = files[1], .tokenizer_config = files[2], .generation_config = files[3]}, *config);
  if (!read(tokenizer)) return;
  require(static_cast<int64_t>(tokenizer->tokens.size()) == config->vocab, "one token an id");
  gguf::Writer w;
  write_metadata(*config, *tokenizer, files[3], Plan(), "name", w);
  require(w.file_bytes() > 0, "metadata is written");
}

}  // namespace
}  // namespace quire::convert

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::array<nlohmann::json, 4> files;
  for (nlohmann::json& file : files) {
    const size_t end = std::min(rest.find('\0'), rest.size());
    auto document = quire::convert::parse_json(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    file = document.ok() && document->is_object() ? *document : nlohmann::json::object();
  }
  quire::convert::run(files);
  return 0;
}
