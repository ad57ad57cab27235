#include "server/protocol/conversation.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <span>

#include "gguf/metadata.h"
#include "server/protocol/content_part.h"
#include "server/random_id.h"

namespace quire::server {
namespace {

constexpr size_t kMaxMessages = 16384, kMaxRole = 64;

bool is_header(std::string_view line, std::string_view name) {
  if (line.size() <= name.size() || line[name.size()] != ':') return false;
  return std::equal(name.begin(), name.end(), line.begin(), [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  });
}

// Takes such lines off the front of a text; whether there was one.
bool drop_headers(std::string& text, std::span<const std::string> names) {
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (std::none_of(names.begin(), names.end(), [&](const std::string& n) { return is_header(line, n); })) break;
    begin = std::min(end + 1, text.size());
  }
  text.erase(0, begin);
  return begin > 0;
}

// One part of a content: its text or its picture, and whether it ends at a mark.
struct Part : PartText {
  PicturePtr picture;
  bool marked = false;
};

ApiResult<bool> read_mark(Fields& f, const std::string& name) {
  Json* control = f.take_object("cache_control");
  if (control == nullptr) return false;
  Fields inner(*control, f.ignored(), name + ".cache_control.");
  std::string kind;
  inner.text("type", kind, kMaxRole);
  inner.ignore("ttl");  // what is kept longest is what was used last
  QUIRE_CHECKED(inner.finish());
  if (kind == "ephemeral") return true;
  return bad_field(name + ".cache_control.type", "invalid_value", "'{}.cache_control.type' must be \"ephemeral\"",
                   name);
}

ApiResult<Part> read_part(Json& p, const std::string& name, bool images, IgnoredFields& ignored) {
  Part part;
  if (images && is_picture(p)) {
    QUIRE_TRY(p, picture_part(p, name));
    part.picture = take_picture(p);
  } else {
    QUIRE_TRY(static_cast<PartText&>(part), read_part_text(p, name, images, ignored));
  }
  Fields f(p, ignored, name + ".");
  QUIRE_TRY(part.marked, read_mark(f, name));
  // What comes with texts that other APIs' models wrote changes nothing.
  for (const char* known :
       {"type", "text", "refusal", "thinking", "reasoning", "annotations", "logprobs", "signature", "citations"})
    f.ignore(known);
  if (part.plain) QUIRE_CHECKED(f.finish());
  return part;
}

struct JoinedParts {
  std::string text, reasoning;
};

ApiStatus add_picture(Part& part, const RequestLimits& limits, Pictures& to, std::string& text) {
  if (to.files.size() >= static_cast<size_t>(limits.max_images))
    return bad_field("messages", "invalid_value", "the request has more than {} pictures (limit max_images)",
                     limits.max_images);
  if (const PictureFile& file = *part.picture; !file.url.empty())
    if (const auto source = limits.media.judge(file.url); !source.ok())
      return bad_field(file.field, "invalid_image_url", "'{}': {}", file.field, source.error().message);
  if (to.word.empty()) to.word = "picture" + random_hex();
  text += to.word_of(to.files.size());
  to.files.push_back(std::move(part.picture));
  return {};
}

// The parts of a content as one text. `marks` receives where marked ones end, `pictures` those there are. `thinks`:
// what is reasoning stands apart.
ApiResult<JoinedParts> join_parts(Json& parts, const std::string& where, std::span<const std::string> headers,
                                  bool thinks, const RequestLimits& limits, std::vector<size_t>& marks,
                                  Pictures& pictures, IgnoredFields& ignored) {
  JoinedParts joined;
  bool first = true, behind_text = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    QUIRE_TRY(Part part, read_part(parts[i], fmt::format("{}[{}]", where, i), limits.images, ignored));
    if (part.picture != nullptr) {
      QUIRE_CHECKED(add_picture(part, limits, pictures, joined.text));
      first = behind_text = false;
      if (part.marked) marks.push_back(joined.text.size());
      continue;
    }
    if (thinks && part.reasoning) {
      joined.reasoning += part.text;
      continue;
    }
    if (first && drop_headers(part.text, headers) && part.text.empty()) continue;
    if (behind_text) joined.text += '\n';
    first = false;
    behind_text = true;
    joined.text += part.text;
    if (part.marked) marks.push_back(joined.text.size());
  }
  return joined;
}

using Members = Json::object_t;

// Keeps the members that `keep` takes, with room for one more. One pass, where erasing them one by one would take
// quadratic time; and values are moved, where a vector of members that grows copies them.
template <class Keep>
void rebuild(Members& members, const Keep& keep) {
  Members kept;
  kept.reserve(members.size() + 1);
  for (const auto& m : members)  // copying keys needs memory: all values are still in their place if there is none
    if (keep(m)) kept.Members::Container::emplace_back(m.first, nullptr);
  auto to = kept.begin();
  for (auto& m : members)
    if (keep(m)) (to++)->second = std::move(m.second);
  members = std::move(kept);
}

// Templates ask whether a member is there. A content stays: many read it without asking.
void drop_nulls(Json& message) {
  const auto kept = [](const auto& m) { return !m.second.is_null() || m.first == "content"; };
  auto& members = message.get_ref<Members&>();
  if (!std::all_of(members.begin(), members.end(), kept)) rebuild(members, kept);
}

ApiStatus check_role(const std::string& role, const std::string& where, const TemplateRoles& roles) {
  if (roles.take(role)) return {};
  return bad_field(where + ".role", "invalid_value", "'{}.role' is {}; this model's chat template knows {}", where,
                   gguf::printable(role), fmt::join(roles.known, ", "));
}

// Clients send the arguments of a call as the text that they were given. Templates print a value as JSON, or go through
// its members; some put the text into their own. A text that is no object is what a model wrote once: a history that
// has it must not be refused for ever.
void shape_arguments(Json& arguments, CallArguments takes) {
  if (arguments.is_null()) arguments = Json::object();
  if (arguments.is_string() && takes.objects) {
    const std::string& text = arguments.get_ref<const std::string&>();
    ApiResult<JsonDocument> parsed =
        text.empty() ? ApiResult<JsonDocument>(JsonDocument(Json::object())) : parse_json(text);
    if (parsed.ok() && (*parsed)->is_object())
      arguments = std::move(**parsed);
    else if (!takes.texts)
      arguments = Json{{"arguments", std::move(arguments)}};
  } else if (!arguments.is_string() && !takes.objects) {
    arguments = dump(arguments);
  }
}

void shape_calls(Json& message, CallArguments takes) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return;
  for (Json& call : *calls) {
    if (!call.is_object()) continue;
    const auto function = call.find("function");
    if (function == call.end() || !function->is_object()) continue;
    if (const auto arguments = function->find("arguments"); arguments != function->end())
      shape_arguments(*arguments, takes);
  }
}

ApiStatus normalise(Json& message, const std::string& where, std::span<const std::string> headers,
                    const RequestLimits& limits, std::vector<size_t>& marks, Pictures& pictures,
                    IgnoredFields& ignored) {
  if (!message.is_object())
    return bad_field(where, "invalid_type", "'{}' must be an object, not {}", where, json_kind(message));
  drop_nulls(message);
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string() || role->get_ref<const std::string&>().empty() ||
      role->get_ref<const std::string&>().size() > kMaxRole)
    return bad_field(where + ".role", "invalid_type", "'{}.role' must be a string of 1 to {} bytes", where, kMaxRole);
  if (*role == "developer") *role = "system";
  QUIRE_CHECKED(check_role(role->get_ref<const std::string&>(), where, limits.roles));
  if (*role != "system") headers = {};
  shape_calls(message, limits.call_arguments);
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    // An assistant's turn may consist of calls alone, and a tool may have nothing to say.
    if (*role == "assistant") return {};
    if (*role == "tool" && content != message.end()) {
      *content = "";
      return {};
    }
    return bad_field(where + ".content", "missing_parameter", "'{}.content' is missing", where);
  }
  if (content->is_array()) {
    QUIRE_TRY(JoinedParts joined, join_parts(*content, where + ".content", headers, *role == "assistant", limits, marks,
                                             pictures, ignored));
    dismantle(*content);
    *content = std::move(joined.text);
    if (joined.reasoning.empty() || message.contains("reasoning_content")) return {};
    rebuild(message.get_ref<Members&>(), [](const auto&) { return true; });  // makes room: `content` is no more
    message["reasoning_content"] = std::move(joined.reasoning);
  } else if (content->is_string()) {
    drop_headers(content->get_ref<std::string&>(), headers);
  } else {
    return bad_field(where + ".content", "invalid_type", "'{}.content' must be a string or an array of parts, not {}",
                     where, json_kind(*content));
  }
  return {};
}

// "reasoning_effort" is the variable of that name, or switches thinking on and off where a template has no more than
// such a switch. What 'chat_template_kwargs' says of the variable wins.
void read_effort(Fields& f, const std::string& variable, Json& variables) {
  if (variable.empty()) return f.unserved("reasoning_effort", "this model's chat template has no switch for it");
  std::string effort;
  f.text("reasoning_effort", effort, kMaxRole);
  if (effort.empty() || f.failed()) return;
  if (variables.contains(variable)) return;
  if (variables.is_object()) rebuild(variables.get_ref<Members&>(), [](const auto&) { return true; });
  if (variable == "reasoning_effort")
    variables[variable] = effort;
  else
    variables[variable] = effort != "none";
}

// Whether the prompt ends with the beginning of an answer, or within the last message.
void read_ending(Fields& f, const Json& last, Conversation& c) {
  std::optional<bool> asked;
  if (f.take("add_generation_prompt") != nullptr) f.boolean("add_generation_prompt", asked.emplace(true));
  f.boolean("continue_final_message", c.continue_final);
  c.add_generation_prompt = asked.value_or(!c.continue_final);
  if (!c.continue_final || f.failed()) return;
  if (c.add_generation_prompt)
    return f.fail(bad_field("continue_final_message", "invalid_value",
                            "'continue_final_message' and 'add_generation_prompt' exclude each other"));
  const auto content = last.find("content");
  if (content == last.end() || !content->is_string() ||
      content->get_ref<const std::string&>().find_first_not_of(" \t\r\n") == std::string::npos)
    f.fail(bad_field("continue_final_message", "invalid_value",
                     "'continue_final_message' needs a last message with a content to go on with"));
}

}  // namespace

std::string Pictures::word_of(size_t i) const {
  return fmt::format("{}{:0{}}", word, i, kDigits);
}

void read_conversation(Fields& f, const RequestLimits& limits, Conversation& c) {
  Json* messages = f.take("messages");
  if (f.failed()) return;
  if (messages == nullptr) return f.fail(bad_field("messages", "missing_parameter", "'messages' is missing"));
  if (!messages->is_array())
    return f.fail(bad_field("messages", "invalid_type", "'messages' must be an array, not {}", json_kind(*messages)));
  if (messages->empty() || messages->size() > kMaxMessages)
    return f.fail(bad_field("messages", "invalid_value", "'messages' has {} entries; 1 to {} are allowed",
                            messages->size(), kMaxMessages));
  c.messages = JsonDocument(std::move(*messages));
  Json& all = *c.messages;
  std::vector<size_t> marks;
  for (size_t i = 0; i < all.size(); ++i) {
    // What stands before everything else is what would make all of it another prompt.
    const std::span<const std::string> headers =
        i == 0 ? std::span(limits.system_headers) : std::span<const std::string>();
    marks.clear();
    ApiStatus read = normalise(all[i], fmt::format("messages[{}]", i), headers, limits, marks, c.pictures, f.ignored());
    if (!read.ok()) return f.fail(read.take_error());
    for (const size_t at : marks) c.marks.push_back({i, at});
  }
  if (c.marks.size() > kMaxCacheMarks)
    return f.fail(bad_field("messages", "invalid_value",
                            "'messages' has {} parts with 'cache_control'; at most {} are allowed", c.marks.size(),
                            kMaxCacheMarks));
  read_ending(f, all.back(), c);
  if (Json* extra = f.take_object("chat_template_kwargs")) {
    for (const char* own : {"messages", "tools", "add_generation_prompt"})
      if (extra->contains(own))
        return f.fail(
            bad_field("chat_template_kwargs", "invalid_value", "'chat_template_kwargs' must not hold '{}'", own));
    c.template_variables = JsonDocument(std::move(*extra));
  }
  read_effort(f, limits.effort_variable, *c.template_variables);
}

}  // namespace quire::server
