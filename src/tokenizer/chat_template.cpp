#include "tokenizer/chat_template.h"

#include <new>
#include <nlohmann/json.hpp>

#include "jinja/interpreter.h"
#include "jinja/json.h"

namespace quire {

using nlohmann::ordered_json;

struct ChatTemplate::Parsed {
  jinja::Limits limits;
  jinja::ParsedTemplate tree;
};

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, const jinja::Limits& limits) {
  auto parsed = std::make_shared<Parsed>();
  parsed->limits = limits;
  try {
    parsed->tree = jinja::parse_template(source, limits);
  } catch (const jinja::TemplateError& e) {
    return file_error("chat template, line {}: {}", e.line, e.message);
  }
  return ChatTemplate(std::move(parsed));
}

namespace {

using Variables = std::vector<std::pair<std::string_view, const ordered_json*>>;

Result<std::string> run(const jinja::ParsedTemplate& tree, const jinja::Limits& limits,
                        const Variables& variables, const std::optional<std::tm>& now) {
  jinja::Interpreter interpreter(limits, now);
  try {
    std::vector<std::pair<std::string_view, jinja::Value>> values;
    for (const auto& [name, json] : variables) {
      values.emplace_back(name, jinja::from_json(interpreter.budget(), *json));
    }
    return interpreter.render(tree, std::move(values));
  } catch (const jinja::TemplateError& e) {
    const int line = e.line > 0 ? e.line : interpreter.line();
    if (e.by_template)
      return request_error("the chat template refuses the conversation (line {}): {}", line, e.message);
    if (line == 0) return request_error("chat template variables: {}", e.message);
    return request_error("chat template, line {}: {}", line, e.message);
  } catch (const std::bad_alloc&) {
    return capacity_error("chat template, line {}: out of memory", interpreter.line());
  }
}

}  // namespace

Result<std::string> ChatTemplate::render_variables(const ordered_json& variables,
                                                   const std::optional<std::tm>& now) const {
  Variables list;
  if (!variables.is_object()) return request_error("chat template variables must be a JSON object");
  for (const auto& [name, value] : variables.items()) list.emplace_back(name, &value);
  return run(parsed_->tree, parsed_->limits, list, now);
}

Result<std::string> ChatTemplate::render(const ordered_json& messages, const ordered_json& tools,
                                         const TemplateOptions& options) const {
  const ordered_json none, generation = options.add_generation_prompt;
  const ordered_json bos = options.bos_token.value_or(""), eos = options.eos_token.value_or("");
  Variables list;
  if (options.extra && !options.extra->is_null()) {
    if (!options.extra->is_object())
      return request_error("extra chat template variables must be a JSON object");
    for (const auto& [name, value] : options.extra->items()) list.emplace_back(name, &value);  // found first
  }
  list.emplace_back("messages", &messages);
  list.emplace_back("tools", &tools);
  list.emplace_back("documents", &none);
  list.emplace_back("add_generation_prompt", &generation);
  if (options.bos_token) list.emplace_back("bos_token", &bos);
  if (options.eos_token) list.emplace_back("eos_token", &eos);
  return run(parsed_->tree, parsed_->limits, list, options.now);
}

bool ChatTemplate::references(std::string_view name) const {
  return parsed_->tree.names.find(name) != parsed_->tree.names.end();
}

}  // namespace quire
