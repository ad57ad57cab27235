#include "server/tools/call_grammar.h"

#include <algorithm>

namespace quire::server {
namespace {

// How a format of plain text writes one call.
struct Writing {
  std::string begin, between, end;  // begin NAME between ARGUMENTS end
  bool xml = false;                 // the arguments are <parameter=KEY>VALUE</parameter>
  std::string trigger;              // what `begin` begins with, and no other text of the model's
};

Writing writing_of(const ToolFormat& format) {
  if (format.name == "qwen3_xml")
    return {"<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", true, "<tool_call>"};
  if (format.name == "llama3_json") return {R"({"name": ")", R"(", "parameters": )", "}", false, ""};
  return {"<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>", false, "<tool_call>"};
}

// XGrammar's structural tags, as far as calls need them.
Json text(std::string_view value) {
  return {{"type", "const_string"}, {"value", value}};
}
Json sequence(Json parts) {
  return {{"type", "sequence"}, {"elements", std::move(parts)}};
}
Json either(Json parts) {
  return parts.size() == 1 ? std::move(parts.front()) : Json{{"type", "or"}, {"elements", std::move(parts)}};
}
Json any_number_of(Json part) {
  return {{"type", "star"}, {"content", std::move(part)}};
}
Json arguments(const CallSchema& call) {
  return {{"type", "json_schema"}, {"json_schema", Json::parse(call.schema)}};
}
CallGrammar grammar_of(const Json& format, std::string after) {
  return {dump({{"type", "structural_tag"}, {"format", format}}), std::move(after)};
}

Json tag(const Writing& w, const CallSchema& call, size_t skip) {
  Json content = arguments(call);
  if (w.xml) content["style"] = "qwen_xml";
  return {{"type", "tag"},
          {"begin", (w.begin + call.tool->name + w.between).substr(skip)},
          {"content", std::move(content)},
          {"end", w.end}};
}

// Names stand in JSON or in a tag as they are.
bool is_plain(const std::string& name) {
  return std::none_of(name.begin(), name.end(), [](char c) {
    return c == '"' || c == '\\' || c == '<' || c == '>' || c == '[' || c == '{' ||
           static_cast<unsigned char>(c) <= 0x20;
  });
}

template <class Make>
Json of_each(std::span<const CallSchema> tools, const Make& make) {
  Json all = Json::array();
  for (const CallSchema& call : tools)
    if (is_plain(call.tool->name)) all.push_back(make(call));
  return all;
}

Json one_or_more(Json tags, std::string_view separator, bool only_one) {
  return {{"type", "tags_with_separator"},
          {"tags", std::move(tags)},
          {"separator", separator},
          {"at_least_one", true},
          {"stop_after_first", only_one}};
}

}  // namespace

// By their texts, as parts of a structural tag; null: the model does not have them all.
std::optional<Json> CallGrammars::control_tokens(std::span<const std::string_view> texts, Json& by_text) const {
  Json ids = Json::array();
  for (const std::string_view t : texts) {
    const std::optional<TokenId> id = tokenizer_.find_token(t);
    if (!id) return std::nullopt;
    by_text[std::string(t)] = {{"type", "token"}, {"token", *id}};
    ids.push_back(*id);
  }
  // What a part of free text must not have: these, and what would end the answer.
  for (const TokenId end : tokenizer_.eog_tokens())
    if (std::find(ids.begin(), ids.end(), end) == ids.end()) ids.push_back(end);
  return Json{{"type", "any_tokens"}, {"exclude_tokens", std::move(ids)}};
}

// [TOOL_CALLS]NAME[ARGS]{...}[TOOL_CALLS]NAME[ARGS]{...} where there is such a token, else
// [TOOL_CALLS][{"name": NAME, "arguments": {...}}, ...].
std::optional<Json> CallGrammars::mistral(std::span<const CallSchema> tools, bool required, bool parallel) const {
  constexpr std::string_view kCalls[] = {"[TOOL_CALLS]"}, kBoth[] = {"[TOOL_CALLS]", "[ARGS]"};
  Json token;
  const bool lists = !tokenizer_.find_token(kBoth[1]);
  const std::optional<Json> words = lists ? control_tokens(kCalls, token) : control_tokens(kBoth, token);
  if (!words) return std::nullopt;
  Json calls;
  if (lists) {
    const Writing w{R"({"name": ")", R"(", "arguments": )", "}", false, ""};
    Json all = of_each(tools, [&](const CallSchema& call) { return tag(w, call, 0); });
    if (all.empty()) return std::nullopt;
    calls = sequence({token["[TOOL_CALLS]"], text("["), one_or_more(std::move(all), ", ", !parallel), text("]")});
    return required ? calls : sequence({*words, {{"type", "optional"}, {"content", calls}}});
  }
  Json all = of_each(tools, [&](const CallSchema& call) {
    return sequence({token["[TOOL_CALLS]"], text(call.tool->name), token["[ARGS]"], arguments(call)});
  });
  if (all.empty()) return std::nullopt;
  const Json call = either(std::move(all));
  if (!required) return sequence({*words, any_number_of(call)});
  return parallel ? sequence({call, any_number_of(call)}) : call;
}

// Messages, of which the first one's <|start|>assistant is the prompt's: reasoning and text are free, and a call is
// <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}, which ends the answer.
std::optional<Json> CallGrammars::harmony(std::span<const CallSchema> tools, Otherwise otherwise,
                                          const Json& form) const {
  constexpr std::string_view kTexts[] = {"<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|start|>"};
  Json token;
  const std::optional<Json> words = control_tokens(kTexts, token);
  if (!words) return std::nullopt;
  Json all = of_each(tools, [&](const CallSchema& call) {
    return sequence({text("commentary to=functions." + call.tool->name + " "), token["<|constrain|>"], text("json"),
                     token["<|message|>"], arguments(call)});
  });
  if (all.empty()) return std::nullopt;
  const auto message = [&](std::string_view channel) {
    return sequence({text(channel), token["<|message|>"], *words});
  };
  const Json next = sequence({token["<|end|>"], token["<|start|>"], text("assistant")});
  Json before = Json::array({message("analysis"), message("commentary")});
  const Json earlier = any_number_of(sequence({token["<|channel|>"], either(before), next}));
  if (otherwise == Otherwise::kForm) all.push_back(sequence({text("final"), token["<|message|>"], form}));
  if (otherwise == Otherwise::kAnything) {
    all.push_back(message("final"));
    for (Json& m : before) all.push_back(std::move(m));
  }
  return sequence({earlier, token["<|channel|>"], either(std::move(all))});
}

// Of formats of plain text: calls, and nothing between them but a line break.
std::optional<Json> CallGrammars::texts(std::span<const CallSchema> tools, bool parallel) const {
  const Writing w = writing_of(format_);
  Json all = of_each(tools, [&](const CallSchema& call) { return tag(w, call, 0); });
  if (all.empty()) return std::nullopt;
  return one_or_more(std::move(all), "\n", !parallel || w.trigger.empty());
}

std::optional<CallGrammar> CallGrammars::required(std::span<const CallSchema> tools, bool parallel) const {
  const std::optional<Json> all = format_.harmony             ? harmony(tools, Otherwise::kCannotBe, {})
                                  : format_.name == "mistral" ? mistral(tools, true, parallel)
                                                              : texts(tools, parallel);
  return all ? std::optional(grammar_of(*all, "")) : std::nullopt;
}

std::optional<CallGrammar> CallGrammars::or_form(std::span<const CallSchema> tools, bool parallel,
                                                 const Json& form) const {
  if (format_.harmony) {  // an answer without a call stands in a message of its own
    const std::optional<Json> all = harmony(tools, Otherwise::kForm, form);
    return all ? std::optional(grammar_of(*all, "")) : std::nullopt;
  }
  const std::optional<Json> calls = format_.name == "mistral" ? mistral(tools, true, parallel) : texts(tools, parallel);
  return calls ? std::optional(grammar_of(either(Json::array({*calls, form})), "")) : std::nullopt;
}

std::optional<CallGrammar> CallGrammars::free(std::span<const CallSchema> tools) const {
  if (format_.harmony || format_.name == "mistral") {
    const std::optional<Json> all =
        format_.harmony ? harmony(tools, Otherwise::kAnything, {}) : mistral(tools, false, true);
    return all ? std::optional(grammar_of(*all, "")) : std::nullopt;
  }
  const Writing w = writing_of(format_);
  if (w.trigger.empty()) return std::nullopt;
  Json all = of_each(tools, [&](const CallSchema& call) { return tag(w, call, w.trigger.size()); });
  if (all.empty()) return std::nullopt;
  return grammar_of(either(std::move(all)), w.trigger);
}

}  // namespace quire::server
