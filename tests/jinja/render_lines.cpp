// Renders templates for tools/quire_jinja.py: one JSON object {"template", "variables"} per line of standard input, one
// {"text"} or {"error"} per line of standard output. Variables with messages are a conversation, and are rendered as
// the server does. The tool compiles it; CMake does not know it.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "tokenizer/chat_template.h"

namespace {

using nlohmann::ordered_json;
using quire::RenderedPrompt;
using quire::Result;

std::tm golden_date() {  // as in tools/hf_jinja.py
  std::tm now{};
  now.tm_year = 126;
  now.tm_mon = 6;
  now.tm_mday = 14;
  now.tm_hour = 9;
  now.tm_min = 5;
  now.tm_wday = 2;
  now.tm_yday = 194;
  return now;
}

// Takes what render() has arguments for out of the variables; the rest are the request's own.
Result<RenderedPrompt> render_conversation(const quire::ChatTemplate& chat, ordered_json variables) {
  const auto take = [&](const char* name) {
    ordered_json value = variables.value(name, ordered_json());
    variables.erase(name);
    return value;
  };
  const ordered_json messages = take("messages"), tools = take("tools"), prompt = take("add_generation_prompt");
  const ordered_json bos = take("bos_token"), eos = take("eos_token");
  quire::TemplateOptions options{.extra = &variables, .now = golden_date()};
  options.add_generation_prompt = prompt.is_boolean() && prompt.get<bool>();
  if (bos.is_string()) options.bos_token = bos.get<std::string>();
  if (eos.is_string()) options.eos_token = eos.get<std::string>();
  return chat.render(messages, tools, options);
}

}  // namespace

int main() {
  std::string source;
  auto parsed = quire::ChatTemplate::parse(source);
  for (std::string line; std::getline(std::cin, line);) {
    const auto job = ordered_json::parse(line);
    ordered_json answer;
    // Many lines have the template of the one before.
    if (const auto& next = job["template"].get_ref<const std::string&>(); next != source) {
      source = next;
      parsed = quire::ChatTemplate::parse(source);
    }
    if (!parsed.ok()) {
      answer["error"] = parsed.error().message;
    } else {
      const auto& variables = job["variables"];
      auto text = variables.contains("messages") ? render_conversation(*parsed, variables)
                                                 : parsed->render_variables(variables, golden_date());
      answer[text.ok() ? "text" : "error"] = text.ok() ? text->text : text.error().message;
    }
    std::cout << answer.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << "\n";
  }
}
