#include "server/protocol/constraint.h"

#include "constraint/choices.h"

namespace quire::server {
namespace {

class ConstraintReader {
 public:
  ConstraintReader(Fields& f, size_t max_bytes) : f_(f), max_bytes_(max_bytes) {}

  std::optional<AskedForm> read() {
    response_format();
    structured_outputs();
    // vLLM's older names, SGLang's, and llama.cpp's.
    for (const char* name : {"guided_json", "json_schema"}) schema(f_.qualified(name), f_.take(name), false);
    for (const char* name : {"guided_regex", "regex"}) text(GrammarKind::kRegex, f_.qualified(name), f_.take(name));
    choice(f_.qualified("guided_choice"), f_.take("guided_choice"));
    for (const char* name : {"guided_grammar", "ebnf"}) text(GrammarKind::kEbnf, f_.qualified(name), f_.take(name));
    // llama.cpp's clients send an empty one where they want none.
    if (const Json* grammar = f_.take("grammar"); grammar != nullptr && *grammar != "")
      text(GrammarKind::kEbnf, f_.qualified("grammar"), grammar);
    structural_tag("structural_tag", f_.take("structural_tag"));
    if (const Json* object = f_.take("guided_json_object"); object != nullptr && *object == true)
      set(GrammarKind::kJsonObject, "", "guided_json_object");
    f_.ignore("guided_decoding_backend");
    f_.unserved("guided_whitespace_pattern", "white space is as JSON has it");
    return std::move(form_);
  }

 private:
  void set(GrammarKind kind, std::string text, const std::string& field, bool strict = false) {
    if (form_)
      return f_.fail(
          bad_field(field, "invalid_value", "'{}' and '{}' exclude each other: give one of them", form_->field, field));
    if (text.size() > max_bytes_)
      return f_.fail(bad_field(field, "invalid_value",
                               "'{}' has {} bytes; at most {} are allowed (limit max_schema_bytes)", field, text.size(),
                               max_bytes_));
    AskedForm& form = form_.emplace();
    form.spec.kind = kind;
    form.spec.text = std::move(text);
    form.strict = strict;
    form.field = field;
  }

  void wrong(const std::string& field, std::string_view expected, const Json& found) {
    f_.fail(bad_field(field, "invalid_type", "'{}' must be {}, not {}", field, expected, json_kind(found)));
  }

  // An object, or its text.
  void schema(const std::string& field, const Json* value, bool strict) {
    if (value == nullptr || value->is_null()) return;
    if (!value->is_string()) {
      if (!value->is_object() && !value->is_boolean()) return wrong(field, "a JSON schema", *value);
      return set(GrammarKind::kJsonSchema, dump(*value), field, strict);
    }
    ApiResult<JsonDocument> parsed = parse_json_object(value->get_ref<const std::string&>());
    if (!parsed.ok())
      return f_.fail(bad_field(field, "invalid_value", "'{}' is no JSON schema: {}", field, parsed.error().message));
    set(GrammarKind::kJsonSchema, dump(**parsed), field, strict);
  }

  void text(GrammarKind kind, const std::string& field, const Json* value) {
    if (value == nullptr || value->is_null()) return;
    if (!value->is_string()) return wrong(field, "a string", *value);
    if (value->get_ref<const std::string&>().empty())
      return f_.fail(bad_field(field, "invalid_value",
                               "'{}' is empty, so that no answer could have a character: leave it out for answers of "
                               "any form",
                               field));
    set(kind, value->get<std::string>(), field);
  }

  void choice(const std::string& field, const Json* value) {
    if (value == nullptr || value->is_null()) return;
    if (!value->is_array() || value->empty()) return wrong(field, "an array of strings that is not empty", *value);
    std::vector<std::string> choices;
    for (const Json& one : *value) {
      if (!one.is_string() || one.get_ref<const std::string&>().empty())
        return wrong(field, "an array of strings that are not empty", one);
      choices.push_back(one.get<std::string>());
    }
    set(GrammarKind::kEbnf, "root ::= " + choice_expression(std::move(choices)), field);
  }

  void structural_tag(const std::string& field, const Json* value) {
    if (value == nullptr || value->is_null()) return;
    if (value->is_string()) return text(GrammarKind::kStructuralTag, field, value);
    if (!value->is_object()) return wrong(field, "an object, or its text", *value);
    set(GrammarKind::kStructuralTag, dump(*value), field);
  }

  void response_format() {
    Json* format = f_.take_object("response_format");
    if (format == nullptr) return;
    const auto type = format->find("type");
    const std::string kind = type != format->end() && type->is_string() ? type->get<std::string>() : "";
    const std::string field = f_.qualified("response_format");
    if (kind == "text") return;
    if (kind == "json_object") {
      // llama.cpp's: with a schema.
      const auto inner = format->find("schema");
      if (inner == format->end() || inner->is_null()) return set(GrammarKind::kJsonObject, "", field);
      return schema(field + ".schema", &*inner, false);
    }
    if (kind == "structural_tag") return structural_tag(field, format);
    if (kind == "grammar" || kind == "regex") {
      const auto inner = format->find(kind);
      return text(kind == "regex" ? GrammarKind::kRegex : GrammarKind::kEbnf, field + "." + kind,
                  inner == format->end() ? nullptr : &*inner);
    }
    if (kind != "json_schema")
      return f_.fail(bad_field(field + ".type", "invalid_value",
                               "'{}.type' must be \"text\", \"json_object\", \"json_schema\" or \"structural_tag\"",
                               field));
    const auto outer = format->find("json_schema");
    if (outer == format->end() || !outer->is_object())
      return f_.fail(
          bad_field(field + ".json_schema", "missing_parameter", "'{}.json_schema' must be an object", field));
    const auto inner = outer->find("schema");
    if (inner == outer->end() || inner->is_null())
      return f_.fail(
          bad_field(field + ".json_schema.schema", "missing_parameter", "'{}.json_schema.schema' is missing", field));
    const bool strict = outer->contains("strict") && (*outer)["strict"] == true;
    schema(field + ".json_schema.schema", &*inner, strict);
  }

  void structured_outputs() {
    Json* outputs = f_.take_object("structured_outputs");
    if (outputs == nullptr) return;
    Fields inner(*outputs, f_.ignored(), "structured_outputs.");
    schema("structured_outputs.json", inner.take("json"), false);
    text(GrammarKind::kRegex, "structured_outputs.regex", inner.take("regex"));
    choice("structured_outputs.choice", inner.take("choice"));
    text(GrammarKind::kEbnf, "structured_outputs.grammar", inner.take("grammar"));
    structural_tag("structured_outputs.structural_tag", inner.take("structural_tag"));
    if (const Json* object = inner.take("json_object"); object != nullptr && *object == true)
      set(GrammarKind::kJsonObject, "", "structured_outputs.json_object");
    inner.ignore("_backend");
    if (const Json* closed = inner.take("disable_additional_properties"); closed != nullptr && !closed->is_null()) {
      if (!closed->is_boolean()) return wrong("structured_outputs.disable_additional_properties", "a boolean", *closed);
      if (form_) form_->no_additional_properties = *closed == true;
    }
    for (const char* name : {"disable_fallback", "disable_any_whitespace"})
      inner.unserved(name, "grammars have no such switch here", {false});
    inner.unserved("whitespace_pattern", "white space is as JSON has it");
    if (ApiStatus s = inner.finish(); !s.ok()) f_.fail(s.take_error());
  }

  Fields& f_;
  size_t max_bytes_;
  std::optional<AskedForm> form_;
};

}  // namespace

std::optional<AskedForm> read_form(Fields& f, size_t max_bytes) {
  return ConstraintReader(f, max_bytes).read();
}

}  // namespace quire::server
