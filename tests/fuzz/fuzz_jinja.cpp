// libFuzzer target: the bytes are a template source, a zero byte, and the JSON of its variables (optional).
// Any outcome is fine but a crash, a leak, undefined behaviour or running past the limits.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tokenizer/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = input.find('\0');
  quire::jinja::Limits limits;
  limits.max_source_bytes = 1 << 14;
  limits.max_steps = 50'000;
  limits.max_string_bytes = 1 << 16;
  limits.max_output_bytes = 1 << 16;
  limits.max_allocated_bytes = 8 << 20;
  limits.max_range = 1000;
  auto parsed = quire::ChatTemplate::parse(input.substr(0, zero), limits);
  if (!parsed.ok()) return 0;
  nlohmann::ordered_json variables;
  if (zero != std::string_view::npos) {
    variables = nlohmann::ordered_json::parse(input.substr(zero + 1), nullptr, /*allow_exceptions=*/false);
  }
  if (!variables.is_object()) {
    variables = {{"messages", {{{"role", "user"}, {"content", "Hi"}}, {{"role", "tool"}, {"content", nullptr}}}},
                 {"l", {1, "a", 2.5, nullptr}},
                 {"s", "Größe 😀\n"},
                 {"tools", {{{"function", {{"name", "f"}}}}}}};
  }
  (void)parsed->roles();
  const auto prompt = parsed->render_variables(variables, std::tm{});
  if (!prompt.ok()) return 0;
  std::size_t end = 0;
  for (const quire::jinja::ByteRange& r : prompt->foreign) {
    if ((r.begin <= end && end > 0) || r.begin >= r.end || r.end > prompt->text.size()) std::abort();
    end = r.end;
  }
  return 0;
}
