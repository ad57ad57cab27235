// Expressions, loosest binding first: if-else, or, and, not, comparisons, + -, ~, * / // %, **, unary,
// postfix, filters.
#include <algorithm>
#include <charconv>

#include "jinja/builtins.h"
#include "jinja/parser.h"
#include "jinja/value_ops.h"

namespace quire::jinja {

// Chains such as a + b + c + ... grow downwards without recursion in the parser, yet evaluating them
// recurses.
void Parser::set_depth(Expr& node, std::initializer_list<const Expr*> children) const {
  int below = 0;
  for (const Expr* child : children) below = std::max(below, child ? child->depth : 0);
  node.depth = below + 1;
  if (node.depth > limits_.max_parse_depth) {
    fail_at(node.line, "the expression is nested more than {} levels deep", limits_.max_parse_depth);
  }
}
void Parser::set_depth(Expr& node, const std::vector<ExprPtr>& children, const Expr* extra) const {
  const Expr* deepest = extra;
  for (const ExprPtr& child : children) {
    if (!deepest || child->depth > deepest->depth) deepest = child.get();
  }
  set_depth(node, {deepest});
}
void Parser::set_depth(Expr& node, const CallArguments& arguments, const Expr* extra) const {
  set_depth(node, arguments.positional, extra);
  int depth = node.depth;
  for (const auto& [name, value] : arguments.named) {
    set_depth(node, {value.get()});
    depth = std::max(depth, node.depth);
  }
  set_depth(node, {arguments.star.get(), arguments.double_star.get()});
  node.depth = std::max(depth, node.depth);
}

ExprPtr Parser::parse_expression(bool with_condition) {
  const Nested nested(*this);
  return with_condition ? parse_conditional() : parse_or();
}

// One expression, or several with commas between them. `()` is a tuple only between parentheses.
ExprPtr Parser::parse_tuple(bool with_condition, bool parenthesized, std::string_view stop) {
  const int at_line = line();
  std::vector<ExprPtr> items;
  bool comma = false;
  while (true) {
    const TokenKind kind = current().kind;
    if (kind == TokenKind::kPrintEnd || kind == TokenKind::kBlockEnd || at_operator(")") || kind == TokenKind::kEnd)
      break;
    if (!stop.empty() && at_name(stop)) break;
    items.push_back(parse_expression(with_condition));
    if (!at_operator(",")) break;
    ++at_;
    comma = true;
  }
  if (!comma && items.size() == 1) return std::move(items[0]);
  if (items.empty() && !parenthesized) fail_here("expected an expression, found {}", describe(current()));
  auto tuple = std::make_unique<ListExpr>(ExprKind::kTuple, at_line);
  tuple->items = std::move(items);
  set_depth(*tuple, tuple->items);
  return tuple;
}

ExprPtr Parser::parse_conditional() {
  const std::size_t unknown_before = unknown_.size();
  ExprPtr value = parse_or();
  while (at_name("if")) {
    auto node = std::make_unique<ConditionalExpr>(line());
    ++at_;
    node->condition = parse_or();
    if (skip_name("else")) {
      const Nested nested(*this);
      node->otherwise = parse_conditional();
    }
    node->then = std::move(value);
    unknown_.resize(unknown_before);
    set_depth(*node, {node->condition.get(), node->then.get(), node->otherwise.get()});
    value = std::move(node);
  }
  return value;
}

ExprPtr Parser::parse_or() {
  ExprPtr left = parse_and();
  while (at_name("or")) {
    auto node = std::make_unique<LogicalExpr>(line(), false);
    ++at_;
    node->left = std::move(left);
    node->right = parse_and();
    set_depth(*node, {node->left.get(), node->right.get()});
    left = std::move(node);
  }
  return left;
}

ExprPtr Parser::parse_and() {
  ExprPtr left = parse_not();
  while (at_name("and")) {
    auto node = std::make_unique<LogicalExpr>(line(), true);
    ++at_;
    node->left = std::move(left);
    node->right = parse_not();
    set_depth(*node, {node->left.get(), node->right.get()});
    left = std::move(node);
  }
  return left;
}

ExprPtr Parser::parse_not() {
  if (!at_name("not")) return parse_compare();
  const Nested nested(*this);
  auto node = std::make_unique<UnaryExpr>(line(), UnaryOp::kNot);
  ++at_;
  node->operand = parse_not();
  set_depth(*node, {node->operand.get()});
  return node;
}

bool Parser::at_compare(CompareOp& op) const {
  static constexpr std::pair<std::string_view, CompareOp> kOperators[] = {
      {"==", CompareOp::kEqual},     {"!=", CompareOp::kNotEqual}, {"<", CompareOp::kLess},
      {"<=", CompareOp::kLessEqual}, {">", CompareOp::kGreater},   {">=", CompareOp::kGreaterEqual}};
  for (const auto& [text, known] : kOperators) {
    if (at_operator(text)) {
      op = known;
      return true;
    }
  }
  op = at_name("in") ? CompareOp::kIn : CompareOp::kNotIn;
  return at_name("in") || (at_name("not") && is_name(ahead(), "in"));
}

ExprPtr Parser::parse_compare() {
  const int at_line = line();
  ExprPtr first = parse_sum();
  CompareOp op{};
  if (!at_compare(op)) return first;
  auto node = std::make_unique<CompareExpr>(at_line);
  node->first = std::move(first);
  int depth = 0;
  while (at_compare(op)) {
    at_ += op == CompareOp::kNotIn ? 2 : 1;
    ExprPtr right = parse_sum();
    set_depth(*node, {node->first.get(), right.get()});
    depth = std::max(depth, node->depth);
    node->rest.emplace_back(op, std::move(right));
  }
  node->depth = depth;
  return node;
}

ExprPtr Parser::binary(BinaryOp op, int at_line, ExprPtr left, ExprPtr right) {
  auto node = std::make_unique<BinaryExpr>(at_line, op);
  node->left = std::move(left);
  node->right = std::move(right);
  set_depth(*node, {node->left.get(), node->right.get()});
  return node;
}

ExprPtr Parser::parse_sum() {
  ExprPtr left = parse_concat();
  while (at_operator("+") || at_operator("-")) {
    const int at_line = line();
    const BinaryOp op = take().text == "+" ? BinaryOp::kAdd : BinaryOp::kSubtract;
    left = binary(op, at_line, std::move(left), parse_concat());
  }
  return left;
}

ExprPtr Parser::parse_concat() {
  ExprPtr first = parse_product();
  if (!at_operator("~")) return first;
  auto node = std::make_unique<ListExpr>(ExprKind::kConcat, line());
  node->items.push_back(std::move(first));
  while (skip_operator("~")) node->items.push_back(parse_product());
  set_depth(*node, node->items);
  return node;
}

ExprPtr Parser::parse_product() {
  ExprPtr left = parse_power();
  while (true) {
    const int at_line = line();
    BinaryOp op{};
    if (at_operator("*")) {
      op = BinaryOp::kMultiply;
    } else if (at_operator("/")) {
      op = BinaryOp::kDivide;
    } else if (at_operator("//")) {
      op = BinaryOp::kFloorDivide;
    } else if (at_operator("%")) {
      op = BinaryOp::kModulo;
    } else {
      return left;
    }
    ++at_;
    left = binary(op, at_line, std::move(left), parse_power());
  }
}

ExprPtr Parser::parse_power() {  // groups to the left, unlike Python's
  ExprPtr left = parse_unary(true);
  while (at_operator("**")) {
    const int at_line = line();
    ++at_;
    left = binary(BinaryOp::kPower, at_line, std::move(left), parse_unary(true));
  }
  return left;
}

ExprPtr Parser::parse_unary(bool with_filters) {
  ExprPtr node;
  if (at_operator("-") || at_operator("+")) {
    const Nested nested(*this);
    auto unary = std::make_unique<UnaryExpr>(line(), at_operator("-") ? UnaryOp::kNegate : UnaryOp::kPositive);
    ++at_;
    unary->operand = parse_unary(false);
    set_depth(*unary, {unary->operand.get()});
    node = std::move(unary);
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filters ? parse_filters(std::move(node)) : std::move(node);
}

ExprPtr Parser::parse_primary() {
  const int at_line = line();
  switch (current().kind) {
    case TokenKind::kName:
      return parse_name();
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return parse_number();
    case TokenKind::kString: {
      std::string text = take().text;
      while (current().kind == TokenKind::kString) text += take().text;
      return std::make_unique<ConstantExpr>(at_line, Value::string(Text(std::move(text))));
    }
    default:
      break;
  }
  if (skip_operator("(")) {
    const Nested nested(*this);
    ExprPtr node = parse_tuple(true, true);
    expect_operator(")");
    return node;
  }
  if (at_operator("[")) return parse_list();
  if (at_operator("{")) return parse_dict();
  fail_here("expected an expression, found {}", describe(current()));
}

ExprPtr Parser::parse_name() {
  const int at_line = line();
  std::string name = take().text;
  if (name == "true" || name == "True") return std::make_unique<ConstantExpr>(at_line, Value::boolean(true));
  if (name == "false" || name == "False") return std::make_unique<ConstantExpr>(at_line, Value::boolean(false));
  if (name == "none" || name == "None") return std::make_unique<ConstantExpr>(at_line, Value::none());
  for (MacroStmt* macro : macros_) {
    macro->uses_varargs |= name == "varargs";
    macro->uses_kwargs |= name == "kwargs";
    macro->uses_caller |= name == "caller";
  }
  result_.names.insert(name);
  return std::make_unique<NameExpr>(at_line, std::move(name));
}

ExprPtr Parser::parse_number() {
  const Token token = take();
  if (token.kind == TokenKind::kFloat) {
    const auto value = parse_float(token.text);
    if (!value) fail_at(token.line, "'{}' is not a number", token.text);
    return std::make_unique<ConstantExpr>(token.line, Value::number(*value));
  }
  std::optional<std::int64_t> value;
  try {
    value = parse_int(token.text, 0);
  } catch (const TemplateError& e) {
    fail_at(token.line, "{}", e.message);
  }
  if (!value) fail_at(token.line, "'{}' is not an integer", token.text);
  return std::make_unique<ConstantExpr>(token.line, Value::integer(*value));
}

ExprPtr Parser::parse_list() {
  const Nested nested(*this);
  auto node = std::make_unique<ListExpr>(ExprKind::kList, line());
  ++at_;
  while (!at_operator("]")) {
    if (!node->items.empty()) expect_operator(",");
    if (at_operator("]")) break;
    node->items.push_back(parse_expression());
  }
  ++at_;
  set_depth(*node, node->items);
  return node;
}

ExprPtr Parser::parse_dict() {
  const Nested nested(*this);
  auto node = std::make_unique<DictExpr>(line());
  ++at_;
  int depth = 1;
  while (!at_operator("}")) {
    if (!node->entries.empty()) expect_operator(",");
    if (at_operator("}")) break;
    ExprPtr key = parse_expression();
    expect_operator(":");
    ExprPtr value = parse_expression();
    set_depth(*node, {key.get(), value.get()});
    depth = std::max(depth, node->depth);
    node->entries.emplace_back(std::move(key), std::move(value));
  }
  ++at_;
  node->depth = depth;
  return node;
}

ExprPtr Parser::parse_postfix(ExprPtr node) {
  while (true) {
    if (at_operator(".") || at_operator("[")) {
      node = parse_subscript(std::move(node));
    } else if (at_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr Parser::parse_filters(ExprPtr node) {
  while (true) {
    if (skip_operator("|")) {
      node = parse_filter_chain(std::move(node));
    } else if (skip_name("is")) {
      node = parse_test(std::move(node));
    } else if (at_operator("(")) {  // calls the result of a filter or test
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr Parser::parse_filter_chain(ExprPtr node) {
  do {
    auto filter = std::make_unique<FilterExpr>(ExprKind::kFilter, line());
    filter->name = take_name();
    while (skip_operator(".")) filter->name += "." + take_name();
    if (conditional_ == 0 && !find_filter(filter->name))
      unknown_.push_back({fmt::format("no filter named '{}'", filter->name), filter->line});
    if (at_operator("(")) filter->arguments = parse_arguments();
    filter->value = std::move(node);
    set_depth(*filter, filter->arguments, filter->value.get());
    node = std::move(filter);
  } while (skip_operator("|"));
  return node;
}

ExprPtr Parser::parse_test(ExprPtr node) {
  const int at_line = line();
  const bool negated = skip_name("not");
  auto test = std::make_unique<FilterExpr>(ExprKind::kTest, at_line);
  test->name = take_name();
  while (skip_operator(".")) test->name += "." + take_name();
  if (conditional_ == 0 && !find_test(test->name))
    unknown_.push_back({fmt::format("no test named '{}'", test->name), at_line});
  const TokenKind kind = current().kind;
  const bool operand = kind == TokenKind::kString || kind == TokenKind::kInteger || kind == TokenKind::kFloat ||
                       at_operator("[") || at_operator("{") ||
                       (kind == TokenKind::kName && !at_name("else") && !at_name("or") && !at_name("and"));
  if (at_operator("(")) {
    test->arguments = parse_arguments();
  } else if (operand) {
    if (at_name("is")) fail_here("tests cannot be chained with 'is'");
    test->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  test->value = std::move(node);
  set_depth(*test, test->arguments, test->value.get());
  if (!negated) return test;
  auto inverted = std::make_unique<UnaryExpr>(at_line, UnaryOp::kNot);
  inverted->operand = std::move(test);
  set_depth(*inverted, {inverted->operand.get()});
  return inverted;
}

ExprPtr Parser::parse_subscript(ExprPtr node) {
  const int at_line = line();
  if (skip_operator(".")) {
    if (current().kind == TokenKind::kName) {
      auto attribute = std::make_unique<AttributeExpr>(at_line);
      attribute->name = take().text;
      attribute->object = std::move(node);
      set_depth(*attribute, {attribute->object.get()});
      return attribute;
    }
    if (current().kind != TokenKind::kInteger)
      fail_here("expected a name or number after '.', found {}", describe(current()));
    auto item = std::make_unique<ItemExpr>(at_line);
    item->object = std::move(node);
    item->key = parse_number();
    set_depth(*item, {item->object.get()});
    return item;
  }
  ++at_;  // [
  const Nested nested(*this);
  ExprPtr start, stop, step;
  bool is_slice = false;
  if (!at_operator(":")) start = parse_expression();
  if (skip_operator(":")) {
    is_slice = true;
    const auto part = [&] {
      return at_operator("]") || at_operator(",") || at_operator(":") ? nullptr : parse_expression();
    };
    stop = part();
    if (skip_operator(":")) step = part();
  }
  if (is_slice) {
    expect_operator("]");
    auto slice_node = std::make_unique<SliceExpr>(at_line);
    slice_node->object = std::move(node);
    slice_node->start = std::move(start);
    slice_node->stop = std::move(stop);
    slice_node->step = std::move(step);
    set_depth(*slice_node,
              {slice_node->object.get(), slice_node->start.get(), slice_node->stop.get(), slice_node->step.get()});
    return slice_node;
  }
  if (at_operator(",")) {  // x[a, b]: the key is a tuple
    auto tuple = std::make_unique<ListExpr>(ExprKind::kTuple, at_line);
    tuple->items.push_back(std::move(start));
    while (skip_operator(",")) tuple->items.push_back(parse_expression());
    set_depth(*tuple, tuple->items);
    start = std::move(tuple);
  }
  expect_operator("]");
  auto item = std::make_unique<ItemExpr>(at_line);
  item->object = std::move(node);
  item->key = std::move(start);
  set_depth(*item, {item->object.get(), item->key.get()});
  return item;
}

ExprPtr Parser::parse_call(ExprPtr node) {
  auto call = std::make_unique<CallExpr>(line());
  call->arguments = parse_arguments();
  call->callee = std::move(node);
  set_depth(*call, call->arguments, call->callee.get());
  return call;
}

CallArguments Parser::parse_arguments() {
  const Nested nested(*this);
  CallArguments out;
  expect_operator("(");
  bool first = true;
  while (!at_operator(")")) {
    if (!first) {
      expect_operator(",");
      if (at_operator(")")) break;
    }
    first = false;
    if (skip_operator("*")) {
      if (out.star || out.double_star) fail_here("invalid order of call arguments");
      out.star = parse_expression();
    } else if (skip_operator("**")) {
      if (out.double_star) fail_here("invalid order of call arguments");
      out.double_star = parse_expression();
    } else if (current().kind == TokenKind::kName && is_operator(ahead(), "=")) {
      if (out.double_star) fail_here("invalid order of call arguments");
      std::string name = take().text;
      ++at_;
      for (const auto& [other, value] : out.named) {
        if (other == name) fail_here("keyword argument '{}' is repeated", name);
      }
      ExprPtr value = parse_expression();
      out.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (out.star || out.double_star || !out.named.empty()) fail_here("invalid order of call arguments");
      out.positional.push_back(parse_expression());
    }
  }
  ++at_;
  return out;
}

}  // namespace quire::jinja
