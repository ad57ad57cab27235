// Any text as a grammar of Lark's: it is translated or refused, and what was translated stays as it is.
//   build/fuzz/fuzz_lark -max_total_time=600 -rss_limit_mb=2048 tests/fuzz/corpus/lark
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "constraint/lark.h"
#include "constraint/pattern_reader.h"

namespace {

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  is_lark(text);
  if (const Result<std::string> once = plain_lark(text); once.ok()) {
    const Result<std::string> twice = plain_lark(*once);
    require(twice.ok() && *twice == *once, "what was translated stays as it is");
  } else {
    require(once.error().fault == Fault::kRequest, "what is refused is the request's fault");
  }
  const auto pattern = canonical_pattern(text);
  if (const auto* const once = std::get_if<std::string>(&pattern)) {
    const auto again = canonical_pattern(*once);
    require(std::holds_alternative<std::string>(again) && std::get<std::string>(again) == *once,
            "a canonical pattern is its own canonical form");
  }
  return 0;
}
