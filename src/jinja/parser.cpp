#include "jinja/parser.h"

#include <algorithm>

namespace quire::jinja {

ParsedTemplate parse_template(std::string_view source, const Limits& limits) {
  return Parser(tokenize(source, limits), limits).run();
}

ParsedTemplate Parser::run() {
  result_.body = parse_body({}, "", 0);
  if (!unknown_.empty()) throw unknown_.front();
  return std::move(result_);
}

bool Parser::skip_operator(std::string_view op) {
  if (!at_operator(op)) return false;
  ++at_;
  return true;
}
bool Parser::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  ++at_;
  return true;
}
void Parser::expect_operator(std::string_view op) {
  if (!skip_operator(op)) fail_here("expected '{}', found {}", op, describe(current()));
}
void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_here("expected '{}', found {}", name, describe(current()));
}
void Parser::expect_block_end() {
  if (current().kind != TokenKind::kBlockEnd) fail_here("expected '%}}', found {}", describe(current()));
  ++at_;
}
std::string Parser::take_name() {
  if (current().kind != TokenKind::kName) fail_here("expected a name, found {}", describe(current()));
  return take().text;
}
std::string Parser::describe(const Token& t) const {
  switch (t.kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kText:
      return "text";
    case TokenKind::kString:
      return "a string";
    default:
      return "'" + t.text + "'";
  }
}

Body Parser::parse_body(std::initializer_list<std::string_view> end_tags, std::string_view opened, int opened_line) {
  const Nested nested(*this);
  Body body;
  while (true) {
    switch (current().kind) {
      case TokenKind::kEnd:
        if (end_tags.size() > 0)
          fail_at(opened_line, "'{}' has no end: '{}' is missing", opened, *(end_tags.end() - 1));
        return body;
      case TokenKind::kText: {
        const int at_line = line();
        body.push_back(std::make_unique<TextStmt>(at_line, take().text));
        break;
      }
      case TokenKind::kPrintBegin: {
        auto print = std::make_unique<PrintStmt>(line());
        ++at_;
        print->value = parse_tuple(true, false);
        if (current().kind != TokenKind::kPrintEnd) fail_here("expected '}}}}', found {}", describe(current()));
        ++at_;
        body.push_back(std::move(print));
        break;
      }
      default: {
        ++at_;  // {%
        if (current().kind != TokenKind::kName) fail_here("expected a tag name, found {}", describe(current()));
        const auto closes = [&](std::string_view tag) { return current().text == tag; };
        if (std::any_of(end_tags.begin(), end_tags.end(), closes)) return body;
        body.push_back(parse_statement());
      }
    }
  }
}

std::unique_ptr<Stmt> Parser::parse_statement() {
  const std::string tag = current().text;
  if (tag == "if") return parse_if();
  if (tag == "for") return parse_for();
  if (tag == "set") return parse_set();
  if (tag == "macro") return parse_macro();
  if (tag == "call") return parse_call_block();
  if (tag == "filter") return parse_filter_block();
  if (tag == "with") return parse_with();
  if (tag == "print") return parse_print_tag();
  if (tag == "generation") return parse_generation();
  if (tag == "break" || tag == "continue") return parse_loop_control(tag == "break");
  for (const std::string_view loads : {"include", "import", "from", "extends", "block", "autoescape"}) {
    if (tag == loads) fail_here("'{{% {} %}}' is not supported: a chat template stands alone", tag);
  }
  if (tag.starts_with("end") || tag == "else" || tag == "elif") fail_here("'{}' without a beginning", tag);
  fail_here("unknown tag '{}'", tag);
}

void Parser::end_block(std::string_view end_tag) {
  expect_name(end_tag);
  expect_block_end();
}

Body Parser::parse_scoped_body(std::string_view end_tag, int opened_line) {
  const int outer_loops = std::exchange(loop_depth_, 0);
  const int outer_conditional = std::exchange(conditional_, 0);
  Body body = parse_body({end_tag}, end_tag.substr(3), opened_line);
  loop_depth_ = outer_loops;
  conditional_ = outer_conditional;
  end_block(end_tag);
  return body;
}

std::unique_ptr<Stmt> Parser::parse_if() {
  auto node = std::make_unique<IfStmt>(line());
  ++conditional_;
  do {
    ++at_;  // if, elif
    ExprPtr condition = parse_tuple(false, false);
    expect_block_end();
    Body body = parse_body({"elif", "else", "endif"}, "if", node->line);
    node->branches.emplace_back(std::move(condition), std::move(body));
  } while (at_name("elif"));
  if (skip_name("else")) {
    expect_block_end();
    node->otherwise = parse_body({"endif"}, "if", node->line);
  }
  --conditional_;
  end_block("endif");
  return node;
}

std::unique_ptr<Stmt> Parser::parse_for() {
  auto node = std::make_unique<ForStmt>(line());
  ++at_;
  node->target = parse_target(false, true, "in");
  expect_name("in");
  node->iterable = parse_tuple(false, false, "recursive");
  const int outer_conditional = std::exchange(conditional_, 0);
  if (skip_name("if")) node->filter = parse_expression();
  node->recursive = skip_name("recursive");
  expect_block_end();
  ++loop_depth_;
  node->body = parse_body({"endfor", "else"}, "for", node->line);
  --loop_depth_;
  if (skip_name("else")) {
    expect_block_end();
    node->otherwise = parse_body({"endfor"}, "for", node->line);
  }
  conditional_ = outer_conditional;
  end_block("endfor");
  const auto names_loop = [](const Target& t) { return t.name == "loop"; };
  if (names_loop(node->target) || std::any_of(node->target.items.begin(), node->target.items.end(), names_loop)) {
    fail_at(node->line, "a loop cannot assign to the special variable 'loop'");
  }
  return node;
}

ExprPtr Parser::parse_block_filter() {
  const int outer_conditional = std::exchange(conditional_, 0);
  ExprPtr filter = parse_filter_chain(nullptr);
  conditional_ = outer_conditional;
  return filter;
}

std::unique_ptr<Stmt> Parser::parse_set() {
  const int at_line = line();
  ++at_;
  Target target = parse_target(true, true);
  if (skip_operator("=")) {
    auto node = std::make_unique<SetStmt>(at_line);
    node->target = std::move(target);
    node->value = parse_tuple(true, false);
    expect_block_end();
    return node;
  }
  if (target.is_tuple) fail_here("expected '=', found {}", describe(current()));
  auto node = std::make_unique<BlockStmt>(StmtKind::kSetBlock, at_line);
  node->target = std::move(target);
  if (skip_operator("|")) node->filter = parse_block_filter();
  expect_block_end();
  node->body = parse_scoped_body("endset", at_line);
  return node;
}

void Parser::parse_signature(MacroStmt& macro) {
  expect_operator("(");
  while (!at_operator(")")) {
    if (!macro.parameters.empty()) expect_operator(",");
    if (at_operator(")")) fail_here("expected a name, found ')'");
    const Target parameter = parse_single_target(false);
    if (std::find(macro.parameters.begin(), macro.parameters.end(), parameter.name) != macro.parameters.end()) {
      fail_here("duplicate parameter '{}'", parameter.name);
    }
    macro.parameters.push_back(parameter.name);
    if (skip_operator("=")) {
      macro.defaults.push_back(parse_expression());
    } else if (!macro.defaults.empty()) {
      fail_here("parameter '{}' without a default follows one with a default", parameter.name);
    }
  }
  ++at_;
}

void Parser::parse_macro_body(MacroStmt& macro, std::string_view end_tag) {
  expect_block_end();
  macros_.push_back(&macro);
  macro.body = parse_scoped_body(end_tag, macro.line);
  macros_.pop_back();
}

std::unique_ptr<Stmt> Parser::parse_macro() {
  auto node = std::make_unique<MacroStmt>(line());
  ++at_;
  node->name = parse_single_target(false).name;
  parse_signature(*node);
  parse_macro_body(*node, "endmacro");
  return node;
}

std::unique_ptr<Stmt> Parser::parse_call_block() {
  auto node = std::make_unique<CallBlockStmt>(line());
  ++at_;
  node->caller = std::make_unique<MacroStmt>(node->line);
  if (at_operator("(")) parse_signature(*node->caller);
  ExprPtr call = parse_expression();
  if (call->kind != ExprKind::kCall) fail_here("expected a call after '{{% call %}}'");
  node->call.reset(static_cast<CallExpr*>(call.release()));
  parse_macro_body(*node->caller, "endcall");
  return node;
}

std::unique_ptr<Stmt> Parser::parse_filter_block() {
  auto node = std::make_unique<BlockStmt>(StmtKind::kFilterBlock, line());
  ++at_;
  node->filter = parse_block_filter();
  expect_block_end();
  node->body = parse_scoped_body("endfilter", node->line);
  return node;
}

std::unique_ptr<Stmt> Parser::parse_generation() {
  auto node = std::make_unique<BlockStmt>(StmtKind::kScoped, line());
  ++at_;
  expect_block_end();
  node->body = parse_scoped_body("endgeneration", node->line);
  return node;
}

std::unique_ptr<Stmt> Parser::parse_with() {
  auto node = std::make_unique<WithStmt>(line());
  ++at_;
  while (current().kind != TokenKind::kBlockEnd) {
    if (!node->assignments.empty()) expect_operator(",");
    Target target = parse_target(false, false);
    expect_operator("=");
    node->assignments.emplace_back(std::move(target), parse_expression());
  }
  ++at_;
  const int outer_conditional = std::exchange(conditional_, 0);
  node->body = parse_body({"endwith"}, "with", node->line);
  conditional_ = outer_conditional;
  end_block("endwith");
  return node;
}

std::unique_ptr<Stmt> Parser::parse_print_tag() {
  auto node = std::make_unique<PrintStmt>(line());
  ++at_;
  node->value = parse_tuple(true, false);
  expect_block_end();
  return node;
}

std::unique_ptr<Stmt> Parser::parse_loop_control(bool is_break) {
  if (loop_depth_ == 0) fail_here("'{}' outside of a loop", current().text);
  auto node = std::make_unique<Stmt>(is_break ? StmtKind::kBreak : StmtKind::kContinue, line());
  ++at_;
  expect_block_end();
  return node;
}

Target Parser::parse_single_target(bool with_attributes) {
  Target target;
  target.name = take_name();
  for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
    if (target.name == constant) fail_here("cannot assign to '{}'", constant);
  }
  if (with_attributes && skip_operator(".")) {
    target.attribute = take_name();
    result_.names.insert(target.name);
  }
  return target;
}

Target Parser::parse_target(bool with_attributes, bool allow_tuple, std::string_view stop) {
  const Nested nested(*this);
  const auto one = [&]() -> Target {
    if (!allow_tuple || !skip_operator("(")) return parse_single_target(with_attributes);
    Target inner = parse_target(with_attributes, true);
    expect_operator(")");
    return inner;
  };
  Target first = one();
  if (!allow_tuple || !at_operator(",")) return first;
  Target tuple;
  tuple.is_tuple = true;
  tuple.items.push_back(std::move(first));
  while (skip_operator(",")) {
    if (current().kind != TokenKind::kName && !at_operator("(")) break;
    if (!stop.empty() && at_name(stop)) break;
    tuple.items.push_back(one());
  }
  return tuple;
}

}  // namespace quire::jinja
