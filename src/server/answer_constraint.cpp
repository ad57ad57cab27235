#include "server/answer_constraint.h"

#include <algorithm>

#include "constraint/schema_gate.h"
#include "server/request_pool.h"
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
  Builder(const ModelContext& model, const GenerationParams& params, const GrammarAsker& asker)
      : model_(model), params_(params), asker_(asker) {
    made_.vocabulary = model.grammars().vocabulary();
  }

  ApiStatus form() {
    if (!params_.form) return {};
    QUIRE_TRY(const GrammarSpec spec, spec_of_form());
    return compile(spec, params_.form->field, params_.form->strict);
  }

  // The form of an answer, the calls that it must make, or either.
  ApiStatus answer(const ChatRequest& r) {
    if (r.tools == nullptr) return form();
    return params_.form && !r.tool_choice.required ? form_or_calls(r) : calls(r);
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
  ApiResult<GrammarSpec> spec_of_form() {
    const AskedForm& form = *params_.form;
    GrammarSpec spec = form.spec;
    if (spec.kind == GrammarKind::kJsonSchema) {
      QUIRE_TRY(const JsonDocument schema, parse_json_object(spec.text, {.max_bytes = SIZE_MAX}));
      GateOptions options = gate_options();
      if (form.no_additional_properties) options.additional_properties = false;
      QUIRE_TRY(spec.text, gate(*schema, options, form.field, form.strict, notes_));
    }
    kind_ = name_of(spec.kind);
    return spec;
  }

  // The calls that must be, or that strict tools may be.
  ApiStatus calls(const ChatRequest& r) {
    if (!r.tool_choice.required && !any_strict(r)) return {};
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
    return compile({GrammarKind::kStructuralTag, grammar->structural_tag, made_.repeats}, "tools", any_strict(r));
  }

  // Agents send both with every turn: the model calls, or answers in the form.
  ApiStatus form_or_calls(const ChatRequest& r) {
    const AskedForm& form = *params_.form;
    QUIRE_TRY(const GrammarSpec spec, spec_of_form());
    QUIRE_TRY(const std::vector<CallSchema> schemas, schemas_of(r));
    const std::optional<Json> part = part_of(spec);
    std::optional<CallGrammar> grammar;
    if (part)
      grammar = CallGrammars(model_.tool_format(), model_.tokenizer()).or_form(schemas, r.parallel_calls, *part);
    if (!grammar) {
      notes_.push_back(fmt::format("calls of tools: beside '{}' this model makes none", form.field));
      return compile(spec, form.field, form.strict);
    }
    const ApiStatus both =
        compile({GrammarKind::kStructuralTag, grammar->structural_tag}, form.field, form.strict || any_strict(r));
    if (both.ok()) return {};
    // The form's own fault is told in its own words.
    QUIRE_CHECKED(compile(spec, form.field, form.strict));
    return both;
  }

  static bool any_strict(const ChatRequest& r) {
    return std::any_of(r.tools->all().begin(), r.tools->all().end(), [](const Tool& t) { return t.strict; });
  }

  // A form as a part of a structural tag. None: it is one of the older kind, which has no parts.
  static std::optional<Json> part_of(const GrammarSpec& spec) {
    switch (spec.kind) {
      case GrammarKind::kJsonObject:
        return Json{{"type", "json_schema"}, {"json_schema", {{"type", "object"}}}};
      case GrammarKind::kJsonSchema:
        return Json{{"type", "json_schema"}, {"json_schema", Json::parse(spec.text)}};
      case GrammarKind::kRegex:
        return Json{{"type", "regex"}, {"pattern", spec.text}};
      case GrammarKind::kEbnf:
        return Json{{"type", "grammar"}, {"grammar", spec.text}};
      case GrammarKind::kStructuralTag: {
        const ApiResult<JsonDocument> tag = parse_json_object(spec.text, {.max_bytes = SIZE_MAX});
        return tag.ok() && (*tag)->contains("format") ? std::optional((**tag)["format"]) : std::nullopt;
      }
    }
    return std::nullopt;
  }

  GateOptions gate_options() const {
    return {.additional_properties = model_.limits().additional_properties, .stop = asker_.gone};
  }

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
    const RequestPool::Waits waits;
    Result<std::shared_ptr<const Grammar>> grammar = model_.grammars().get(spec, asker_);
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
  const GrammarAsker& asker_;
  Constraint made_;
  std::vector<std::string> notes_;
  const char* kind_ = "tokens";
};

}  // namespace

ApiResult<AnswerConstraint> constrain_text(const ModelContext& model, const GenerationParams& params,
                                           const GrammarAsker& asker) {
  Builder b(model, params, asker);
  QUIRE_CHECKED(b.form());
  QUIRE_CHECKED(b.tokens());
  return b.take(false);
}

ApiResult<AnswerConstraint> constrain_answer(const ModelContext& model, const ChatRequest& request,
                                             bool inside_reasoning, const GrammarAsker& asker) {
  Builder b(model, request.params, asker);
  QUIRE_CHECKED(b.answer(request));
  QUIRE_CHECKED(b.tokens());
  return b.take(inside_reasoning);
}

}  // namespace quire::server
