// Renders templates for tools/fuzz_templates_against_jinja2.py: one JSON object {"template", "variables"} per
// line of standard input, one {"text"} or {"error"} per line of standard output. The tool compiles it; CMake
// does not know it.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "tokenizer/chat_template.h"

int main() {
  using nlohmann::ordered_json;
  std::tm now{};
  now.tm_year = 126;
  now.tm_mon = 6;
  now.tm_mday = 14;
  now.tm_hour = 9;
  now.tm_min = 5;
  now.tm_wday = 2;
  now.tm_yday = 194;
  for (std::string line; std::getline(std::cin, line);) {
    const auto job = ordered_json::parse(line);
    ordered_json answer;
    auto parsed = quire::ChatTemplate::parse(job["template"].get_ref<const std::string&>());
    if (!parsed.ok()) {
      answer["error"] = parsed.error().message;
    } else {
      auto text = parsed->render_variables(job["variables"], now);
      answer[text.ok() ? "text" : "error"] = text.ok() ? text->text : text.error().message;
    }
    std::cout << answer.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << "\n";
  }
}
