#include "cli/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "command/display.h"
#include "core/escape.h"

namespace quire::cli {
namespace {

constexpr size_t kMaxPattern = 1000;  // bytes
// Far above what any sensible pattern needs for a name of 255 bytes; a hostile one ends after milliseconds.
constexpr uint32_t kMaxSteps = 200000, kMaxDepth = 1000, kMaxHeapKiB = 4096;

std::string reason(int code) {
  unsigned char text[256];
  if (pcre2_get_error_message(code, text, sizeof text) < 0) return fmt::format("error {}", code);
  return reinterpret_cast<const char*>(text);
}

template <class T, void (*kFree)(T*)>
struct Deleter {
  void operator()(T* p) const { kFree(p); }
};

}  // namespace

void Pattern::Free::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

Result<Pattern> Pattern::compile(std::string_view text) {
  if (text.size() > kMaxPattern)
    return request_error("a pattern of {} bytes is too long: at most {}", text.size(), kMaxPattern);
  int error = 0;
  size_t at = 0;
  Pattern p;
  p.text_ = text;
  p.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), PCRE2_NEVER_BACKSLASH_C, &error,
                              &at, nullptr));
  if (p.code_ == nullptr)
    return request_error("pattern '{}' is no regular expression: {} at byte {}", escaped(text, 100), reason(error), at);
  return p;
}

Result<bool> Pattern::found_in(std::string_view subject) const {
  const std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context, pcre2_match_context_free>> limits(
      pcre2_match_context_create(nullptr));
  const std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data, pcre2_match_data_free>> match(
      pcre2_match_data_create(1, nullptr));
  QUIRE_CHECK(limits != nullptr && match != nullptr, "out of memory");
  pcre2_set_match_limit(limits.get(), kMaxSteps);
  pcre2_set_depth_limit(limits.get(), kMaxDepth);
  pcre2_set_heap_limit(limits.get(), kMaxHeapKiB);
  const int rc = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), 0, 0,
                             match.get(), limits.get());
  if (rc >= 0) return true;
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  return request_error("pattern '{}' on tensor {}: {}; use a simpler pattern", escaped(text_, 100),
                       escaped(subject, 100), reason(rc));
}

}  // namespace quire::cli
