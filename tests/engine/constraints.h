// Constraints of every kind for a model.
#pragma once

#include "constraint/constrained_output.h"
#include "support/golden.h"

namespace quire::test {

inline std::shared_ptr<const Grammar> grammar_of(const ModelPtr& model, GrammarSpec spec) {
  struct Compiler {
    std::shared_ptr<const Vocabulary> vocabulary;
    std::shared_ptr<GrammarCompiler> compiler;
  };
  static std::map<const LoadedModel*, std::shared_ptr<GrammarCompiler>> compilers;
  std::shared_ptr<GrammarCompiler>& compiler = compilers[model.get()];
  if (compiler == nullptr)
    compiler = make_grammar_compiler(vocabulary_of(*model->tokenizer, model->model->config().vocab));
  std::shared_ptr<const Grammar> grammar = compiler->compile(spec, {}).value();
  grammar->prepare([] { return false; });
  return grammar;
}

inline std::shared_ptr<const Constraint> constraint_of(const ModelPtr& model, GrammarSpec spec, std::string after = "",
                                                       bool repeats = false) {
  Constraint c;
  c.vocabulary = std::make_shared<const Vocabulary>(vocabulary_of(*model->tokenizer, model->model->config().vocab));
  spec.ends_itself = repeats;
  c.grammar = grammar_of(model, std::move(spec));
  c.after = std::move(after);
  c.repeats = repeats;
  return std::make_shared<const Constraint>(std::move(c));
}

inline constexpr const char* kPersonSchema =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":8},"age":{"type":"integer"},)"
    R"("kind":{"enum":["a long constant","another one"]}},"required":["name","age","kind"],"additionalProperties":false})";

inline std::vector<std::shared_ptr<const Constraint>> all_constraints(const ModelPtr& model) {
  std::vector<std::shared_ptr<const Constraint>> all = {
      constraint_of(model, {GrammarKind::kJsonObject, ""}),
      constraint_of(model, {GrammarKind::kJsonSchema, kPersonSchema}),
      constraint_of(model, {GrammarKind::kRegex, "(ab|cd){2,9}[0-9]+"}),
      constraint_of(model, {GrammarKind::kEbnf, "root ::= \"the \" (\"cat\" | \"dog\") \" sat on \" [a-z]{3,40}"}),
      constraint_of(model, {GrammarKind::kRegex, "[a-z]{5}!"}, "e", true),
      constraint_of(model, {GrammarKind::kJsonObject, ""}, "a"),
  };
  const int64_t vocab = model->model->config().vocab;
  Constraint tokens;
  tokens.allowed.resize(static_cast<size_t>(mask_words(vocab)));
  for (int64_t id = 20; id < vocab; id += 2) tokens.allowed[static_cast<size_t>(id / 32)] |= 1u << (id % 32);
  all.push_back(std::make_shared<const Constraint>(tokens));
  tokens.allowed.clear();
  for (TokenId id = 40; id < 100; ++id) tokens.bad_words.push_back({id});
  for (TokenId id = 100; id < vocab - 8; ++id) tokens.bad_words.push_back({id, id});
  all.push_back(std::make_shared<const Constraint>(tokens));
  return all;
}

}  // namespace quire::test
