// Any JSON as a schema: the gate ends, what it lets pass it lets pass again, and says what it leaves out in few words.
//   build/fuzz/fuzz_schema_gate -max_total_time=600 -rss_limit_mb=2048 tests/fuzz/corpus/schema_gate
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "constraint/schema_gate.h"
#include "server/protocol/json.h"

namespace {

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  auto parsed = server::parse_json_object({reinterpret_cast<const char*>(data), size}, {.max_bytes = 1 << 16});
  if (!parsed.ok()) return 0;
  const server::JsonDocument document = std::move(parsed).value();
  const GateOptions options{.additional_properties = size % 2 == 0};
  const Result<GatedSchema> once = gate_schema(*document, options);
  if (!once.ok()) {
    require(once.error().fault == Fault::kRequest, "what is refused is the request's fault");
    return 0;
  }
  require(once->unenforced.size() <= GatedSchema::kMostNotes, "few notes");
  const auto rewritten = nlohmann::ordered_json::parse(once->text, nullptr, false);
  require(rewritten.is_object(), "what passes is an object");
  require(gate_schema(rewritten, options).ok(), "what passed passes again");
  return 0;
}
