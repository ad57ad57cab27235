// Tokens -> tree, by recursive descent over the grammar of Jinja's template designer documentation.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "jinja/ast.h"
#include "jinja/lexer.h"

namespace quire::jinja {

struct ParsedTemplate {
  Body body;
  std::set<std::string, std::less<>> names;  // every variable that is read anywhere
};

// Fails with TemplateError.
ParsedTemplate parse_template(std::string_view source, const Limits& limits);

class Parser {
 public:
  Parser(std::vector<Token> tokens, const Limits& limits) : tokens_(std::move(tokens)), limits_(limits) {}
  ParsedTemplate run();

 private:
  // Counts nesting for as long as it lives.
  class Nested {
   public:
    explicit Nested(Parser& p) : depth_(p.depth_) {
      if (++depth_ > p.limits_.max_parse_depth)
        p.fail_here("the template is nested more than {} levels deep", p.limits_.max_parse_depth);
    }
    ~Nested() { --depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    int& depth_;
  };

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  int line() const { return current().line; }
  Token take() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_[at_]; }
  bool at_operator(std::string_view op) const { return is_operator(current(), op); }
  bool at_name(std::string_view name) const { return is_name(current(), name); }
  static bool is_operator(const Token& t, std::string_view op) {
    return t.kind == TokenKind::kOperator && t.text == op;
  }
  static bool is_name(const Token& t, std::string_view name) { return t.kind == TokenKind::kName && t.text == name; }
  bool skip_operator(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_operator(std::string_view op);
  void expect_name(std::string_view name);
  void expect_block_end();
  std::string take_name();
  std::string describe(const Token& t) const;
  template <class... Args>
  [[noreturn]] void fail_here(fmt::format_string<Args...> f, Args&&... args) const {
    fail_at(line(), f, std::forward<Args>(args)...);
  }

  // statements (parser.cpp)
  Body parse_body(std::initializer_list<std::string_view> end_tags, std::string_view opened, int opened_line);
  std::unique_ptr<Stmt> parse_statement();
  std::unique_ptr<Stmt> parse_if();
  std::unique_ptr<Stmt> parse_for();
  std::unique_ptr<Stmt> parse_set();
  std::unique_ptr<Stmt> parse_macro();
  std::unique_ptr<Stmt> parse_call_block();
  std::unique_ptr<Stmt> parse_filter_block();
  std::unique_ptr<Stmt> parse_with();
  std::unique_ptr<Stmt> parse_generation();
  std::unique_ptr<Stmt> parse_print_tag();
  std::unique_ptr<Stmt> parse_loop_control(bool is_break);
  void parse_signature(MacroStmt& macro);
  void parse_macro_body(MacroStmt& macro, std::string_view end_tag);
  Target parse_target(bool with_attributes, bool allow_tuple, std::string_view stop = {});
  Target parse_single_target(bool with_attributes);
  void end_block(std::string_view end_tag);
  ExprPtr parse_block_filter();
  // A body with a scope of its own, in which break, continue and outer conditions do not count.
  Body parse_scoped_body(std::string_view end_tag, int opened_line);

  // expressions (parser_expr.cpp)
  ExprPtr parse_expression(bool with_condition = true);
  ExprPtr parse_tuple(bool with_condition, bool parenthesized, std::string_view stop = {});
  ExprPtr parse_conditional();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_primary();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_filters(ExprPtr node);
  ExprPtr parse_filter_chain(ExprPtr node);  // `name(args) | name ...`, the first bar already taken
  ExprPtr parse_test(ExprPtr node);
  ExprPtr parse_subscript(ExprPtr node);
  ExprPtr parse_call(ExprPtr node);
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_name();
  ExprPtr parse_number();
  CallArguments parse_arguments();
  ExprPtr binary(BinaryOp op, int at_line, ExprPtr left, ExprPtr right);
  bool at_compare(CompareOp& op) const;
  void set_depth(Expr& node, std::initializer_list<const Expr*> children) const;
  void set_depth(Expr& node, const std::vector<ExprPtr>& children, const Expr* extra = nullptr) const;
  void set_depth(Expr& node, const CallArguments& arguments, const Expr* extra) const;

  std::vector<Token> tokens_;
  const Limits& limits_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int loop_depth_ = 0;   // break and continue need one
  int conditional_ = 0;  // inside an if, unknown filters and tests are an error only when reached, as in Jinja
  // Filters and tests that do not exist. An inline `if` forgives those inside it once it is seen to be one.
  std::vector<TemplateError> unknown_;
  std::vector<MacroStmt*> macros_;  // being parsed, outermost first
  ParsedTemplate result_;
};

}  // namespace quire::jinja
