#include "tokenizer/chat_template.h"

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <span>

#include "jinja/interpreter.h"
#include "jinja/json.h"

namespace quire {

using nlohmann::ordered_json;

struct ChatTemplate::Parsed {
  jinja::Limits limits;
  jinja::ParsedTemplate tree;
  std::vector<std::string> words;  // names that the source has between quotes, such as roles
};

namespace {

constexpr std::string_view kUsualRoles[] = {"system", "user",     "assistant", "tool",
                                            "model",  "function", "developer", "ipython"};

// The first 32 names of lower-case letters and underscores that stand between quotes.
std::vector<std::string> quoted_words(std::string_view source) {
  constexpr std::size_t kMost = 32, kLongest = 32;
  std::vector<std::string> words;
  for (std::size_t at = 0; at < source.size() && words.size() < kMost; ++at) {
    if (source[at] != '\'' && source[at] != '"') continue;
    std::size_t end = at + 1;
    while (end < source.size() && (source[end] == '_' || (source[end] >= 'a' && source[end] <= 'z'))) ++end;
    std::string word(source.substr(at + 1, end - at - 1));
    const bool whole = end < source.size() && source[end] == source[at];
    if (whole && !word.empty() && word.size() <= kLongest && std::find(words.begin(), words.end(), word) == words.end())
      words.push_back(std::move(word));
  }
  return words;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, const jinja::Limits& limits) {
  auto parsed = std::make_shared<Parsed>();
  parsed->limits = limits;
  try {
    parsed->tree = jinja::parse_template(source, limits);
    parsed->words = quoted_words(source);
  } catch (const jinja::TemplateError& e) {
    return file_error("chat template, line {}: {}", e.line, e.message);
  }
  return ChatTemplate(std::move(parsed));
}

namespace {

using jinja::Origin;

struct Variable {
  std::string_view name;
  const ordered_json* value;
  Origin origin = Origin::kOutside;
  bool messages = false;
};

bool is_usual_role(const ordered_json& role) {
  return role.is_string() && std::find(std::begin(kUsualRoles), std::end(kUsualRoles),
                                       role.get_ref<const std::string&>()) != std::end(kUsualRoles);
}

// Everything in a message is from outside but a role of the usual ones: "<|" + message.role + "|>" is a control token.
jinja::Value message_value(jinja::Budget& budget, const ordered_json& message) {
  if (!message.is_object()) return jinja::from_json(budget, message, Origin::kOutside, 1);
  const auto dict = std::make_shared<jinja::Dict>();
  for (const auto& [key, value] : message.items()) {
    const bool own = key == "role" && is_usual_role(value);
    dict->set(budget, jinja::Value::string(budget, jinja::Text::from_outside(key)),
              jinja::from_json(budget, value, own ? Origin::kOwn : Origin::kOutside, 2));
  }
  return jinja::Value::dict(budget, dict);
}

jinja::Value variable_value(jinja::Budget& budget, const Variable& v) {
  if (!v.messages || !v.value->is_array()) return jinja::from_json(budget, *v.value, v.origin);
  std::vector<jinja::Value> messages;
  messages.reserve(v.value->size());
  for (const ordered_json& message : *v.value) messages.push_back(message_value(budget, message));
  return jinja::Value::list(budget, std::move(messages));
}

Result<RenderedPrompt> run(const jinja::ParsedTemplate& tree, const jinja::Limits& limits,
                           std::span<const Variable> variables, const std::optional<std::tm>& now) {
  jinja::Interpreter interpreter(limits, now);
  try {
    std::vector<std::pair<std::string_view, jinja::Value>> values;
    for (const Variable& v : variables) values.emplace_back(v.name, variable_value(interpreter.budget(), v));
    jinja::Text text = interpreter.render(tree, std::move(values));
    return RenderedPrompt{std::move(text.bytes), text.foreign.all()};
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

Result<RenderedPrompt> ChatTemplate::render_variables(const ordered_json& variables,
                                                      const std::optional<std::tm>& now) const {
  std::vector<Variable> list;
  if (!variables.is_object()) return request_error("chat template variables must be a JSON object");
  for (const auto& [name, value] : variables.items()) list.push_back({name, &value});
  return run(parsed_->tree, parsed_->limits, list, now);
}

Result<RenderedPrompt> ChatTemplate::render(const ordered_json& messages, const ordered_json& tools,
                                            const TemplateOptions& options) const {
  const ordered_json none, generation = options.add_generation_prompt;
  const ordered_json bos = options.bos_token.value_or(""), eos = options.eos_token.value_or("");
  std::vector<Variable> list;
  if (options.extra && !options.extra->is_null()) {
    if (!options.extra->is_object()) return request_error("extra chat template variables must be a JSON object");
    for (const auto& [name, value] : options.extra->items()) list.push_back({name, &value});  // found first
  }
  list.push_back({.name = "messages", .value = &messages, .messages = true});
  list.push_back({"tools", &tools});
  list.push_back({"documents", &none});
  list.push_back({"add_generation_prompt", &generation});
  if (options.bos_token) list.push_back({"bos_token", &bos, Origin::kOwn});
  if (options.eos_token) list.push_back({"eos_token", &eos, Origin::kOwn});
  return run(parsed_->tree, parsed_->limits, list, options.now);
}

TemplateRoles ChatTemplate::roles() const {
  constexpr char kMarker[] = "quire-asks-for-this-text";
  const auto message = [](std::string_view role, std::string_view content) {
    return ordered_json{{"role", role}, {"content", content}};
  };
  ordered_json call = message("assistant", "");
  call["tool_calls"] = {{{"id", "abcdefghi"},
                         {"type", "function"},
                         {"function", {{"name", "f"}, {"arguments", ordered_json::object()}}}}};
  const ordered_json system = message("system", "s"), user = message("user", "u"), answer = message("assistant", "a");
  const std::vector<ordered_json> beginnings[] = {{}, {user}, {system}, {user, answer}, {system, user}, {user, call}};
  jinja::Limits limits = parsed_->limits;
  limits.max_steps = std::min<std::uint64_t>(limits.max_steps, 100'000);  // templates come from strangers
  const ordered_json generation = false, empty = "";
  std::tm date{};
  date.tm_mday = 1;
  const auto takes = [&](std::string_view role) {
    return std::any_of(std::begin(beginnings), std::end(beginnings), [&](const auto& beginning) {
      ordered_json messages = beginning;
      ordered_json last = message(role, kMarker);
      last["tool_call_id"] = "abcdefghi";
      last["name"] = "f";
      messages.push_back(std::move(last));
      const std::vector<Variable> variables = {{.name = "messages", .value = &messages, .messages = true},
                                               {"add_generation_prompt", &generation},
                                               {"bos_token", &empty, Origin::kOwn},
                                               {"eos_token", &empty, Origin::kOwn}};
      const Result<RenderedPrompt> prompt = run(parsed_->tree, limits, variables, date);
      return prompt.ok() && prompt->text.find(kMarker) != std::string::npos;
    });
  };
  TemplateRoles roles;
  if (takes("somebody") || !takes("user")) return roles;
  roles.any = false;
  const std::vector<std::string>& words = parsed_->words;
  for (const std::string_view role : kUsualRoles)
    if (std::find(words.begin(), words.end(), role) != words.end() || takes(role)) roles.known.emplace_back(role);
  for (const std::string& word : words)
    if (!roles.take(word) && takes(word)) roles.known.push_back(word);
  return roles;
}

bool ChatTemplate::references(std::string_view name) const {
  return parsed_->tree.names.find(name) != parsed_->tree.names.end();
}

}  // namespace quire
