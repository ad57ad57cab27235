#include "server/answer_constraint.h"

#include "constraint/schema_gate.h"
#include "server/tools/call_grammar.h"

namespace quire::server {
namespace {

constexpr std::string_view kEndOfReasoning = "</think>";

ApiError about(const std::string& field, const Error& error) {
  if (error.fault != Fault::kRequest) return to_api_error(error);
  return bad_field(field, "invalid_value", "'{}': {}", field, error.message);
}

// A schema as it is compiled; what it does not hold to is an error (strict), or added to the notes.
ApiResult<std::string> gate(const Json& schema, const GateOptions& options, const std::string& field, bool strict,
                            std::vector<std::string>& notes) {
  Result<GatedSchema> gated = gate_schema(schema, options);
  if (!gated.ok()) return about(field, gated.error());
  if (strict && !gated->unenforced.empty())
    return bad_field(field, "unsupported_schema",
                     "'{}' cannot be enforced as \"strict\" demands: {}; leave it out, or ask without \"strict\"",
                     field, fmt::join(gated->unenforced, "; "));
  for (const std::string& note : gated->unenforced) notes.push_back(note);
  for (const std::string& format : gated->shapes)
    notes.push_back(fmt::format("'format' {} is checked by its shape", format));
  return std::move(gated->text);
}

const char* name_of(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJsonObject:
      return "json_object";
    case GrammarKind::kJsonSchema:
      return "json_schema";
    case GrammarKind::kRegex:
      return "regex";
    case GrammarKind::kEbnf:
      return "grammar";
    case GrammarKind::kStructuralTag:
      return "structural_tag";
  }
  return "";
}

class Builder {
 public:
  Builder(const ModelContext& model, const GenerationParams& params) : model_(model), params_(params) {
    made_.vocabulary = model.grammars().vocabulary();
  }

  ApiStatus form() {
    if (!params_.form) return {};
    const AskedForm& form = *params_.form;
    GrammarSpec spec = form.spec;
    if (spec.kind == GrammarKind::kJsonSchema) {
      QUIRE_TRY(const JsonDocument schema, parse_json_object(spec.text, {.max_bytes = SIZE_MAX}));
      GateOptions options = gate_options();
      if (form.no_additional_properties) options.additional_properties = false;
      QUIRE_TRY(spec.text, gate(*schema, options, form.field, form.strict, notes_));
    }
    kind_ = name_of(spec.kind);
    return compile(spec, form.field, form.strict);
  }

  // The calls that must be, or that strict tools may be.
  ApiStatus calls(const ChatRequest& r) {
    if (r.tools == nullptr) return {};
    bool any_strict = false;
    for (const Tool& tool : r.tools->all()) any_strict |= tool.strict;
    if (!r.tool_choice.required && !any_strict) return {};
    if (params_.form && r.tool_choice.required)
      return bad_field(params_.form->field, "invalid_value", "'{}' excludes a 'tool_choice' that asks for a call",
                       params_.form->field);
    if (params_.form) return {};  // the answer has that form, so it is no call
    QUIRE_TRY(const std::vector<CallSchema> schemas, schemas_of(r));
    const CallGrammars formats(model_.tool_format(), model_.tokenizer());
    const std::optional<CallGrammar> grammar =
        r.tool_choice.required ? formats.required(schemas, r.parallel_calls) : formats.free(schemas);
    if (!grammar)
      return bad_field(r.tool_choice.required ? "tool_choice" : "tools", "unsupported_parameter",
                       "this server cannot hold calls in the format {} to a grammar: use \"auto\" without \"strict\"",
                       model_.tool_format().name);
    made_.after = grammar->after;
    made_.repeats = !grammar->after.empty();
    kind_ = "tools";
    return compile({GrammarKind::kStructuralTag, grammar->structural_tag, made_.repeats}, "tools", any_strict);
  }

  ApiStatus tokens() {
    if (!params_.allowed_tokens.empty()) {
      made_.allowed.resize(static_cast<size_t>(mask_words(std::ssize(made_.vocabulary->bytes))));
      for (const TokenId t : params_.allowed_tokens) made_.allowed[static_cast<size_t>(t / 32)] |= 1u << (t % 32);
    }
    // A word is spelt in another way where it follows a space.
    for (const std::string& word : params_.bad_words)
      for (const std::string& spelt : {word, " " + word}) {
        std::vector<TokenId> ids =
            model_.tokenizer().encode(spelt, {.add_special = false, .parse_special = false, .continues = true});
        if (!ids.empty() && std::find(made_.bad_words.begin(), made_.bad_words.end(), ids) == made_.bad_words.end())
          made_.bad_words.push_back(std::move(ids));
      }
    return {};
  }

  AnswerConstraint take(bool inside_reasoning) {
    if (made_.empty()) return {};
    if (inside_reasoning && made_.grammar != nullptr) made_.not_before = kEndOfReasoning;
    return {std::make_shared<const Constraint>(std::move(made_)), std::move(notes_), kind_};
  }

 private:
  GateOptions gate_options() const { return {.additional_properties = model_.limits().additional_properties}; }

  ApiResult<std::vector<CallSchema>> schemas_of(const ChatRequest& r) {
    std::vector<CallSchema> schemas;
    for (const Tool& tool : r.tools->all()) {
      if (!r.tool_choice.name.empty() && tool.name != r.tool_choice.name) continue;
      CallSchema& call = schemas.emplace_back(CallSchema{&tool, R"({"type":"object"})"});
      if (!tool.parameters.is_object() || tool.parameters.empty()) continue;
      Json schema = tool.parameters;
      if (!schema.contains("type")) schema["type"] = "object";
      // A tool that is not strict has any arguments rather than fail the request.
      std::vector<std::string> notes;
      ApiResult<std::string> text = gate(schema, gate_options(), "tools", tool.strict, notes);
      if (text.ok())
        call.schema = std::move(*text);
      else if (tool.strict)
        return text.take_error();
      else
        notes.push_back(fmt::format("its schema ({})", text.error().message));
      for (const std::string& note : notes) notes_.push_back(fmt::format("{}: {}", tool.name, note));
    }
    return schemas;
  }

  ApiStatus compile(const GrammarSpec& spec, const std::string& field, bool strict) {
    Result<std::shared_ptr<const Grammar>> grammar = model_.grammars().get(spec);
    if (!grammar.ok()) return about(field, grammar.error());
    made_.grammar = std::move(*grammar);
    const std::vector<std::string>& left_out = made_.grammar->unenforced();
    if (strict && !left_out.empty())
      return bad_field(field, "unsupported_schema", "'{}' cannot be enforced as \"strict\" demands: {}", field,
                       fmt::join(left_out, "; "));
    notes_.insert(notes_.end(), left_out.begin(), left_out.end());
    return {};
  }

  const ModelContext& model_;
  const GenerationParams& params_;
  Constraint made_;
  std::vector<std::string> notes_;
  const char* kind_ = "tokens";
};

}  // namespace

ApiResult<AnswerConstraint> constrain_text(const ModelContext& model, const GenerationParams& params) {
  Builder b(model, params);
  QUIRE_CHECKED(b.form());
  QUIRE_CHECKED(b.tokens());
  return b.take(false);
}

ApiResult<AnswerConstraint> constrain_answer(const ModelContext& model, const ChatRequest& request,
                                             bool inside_reasoning) {
  Builder b(model, request.params);
  QUIRE_CHECKED(b.form());
  QUIRE_CHECKED(b.calls(request));
  QUIRE_CHECKED(b.tokens());
  return b.take(inside_reasoning);
}

}  // namespace quire::server
