// The parsed template. Nodes are immutable after parsing and shared by all renders.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace quire::jinja {

enum class ExprKind : std::uint8_t {
  kConstant,
  kName,
  kList,
  kTuple,
  kDict,
  kUnary,
  kBinary,
  kLogical,
  kCompare,
  kConcat,
  kConditional,
  kAttribute,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest,
};

struct Expr {
  Expr(ExprKind k, int l) : kind(k), line(l) {}
  virtual ~Expr() = default;
  ExprKind kind;
  int line;
  int depth = 1;  // levels below, itself included; bounded by the parser
};
using ExprPtr = std::unique_ptr<Expr>;

enum class UnaryOp : std::uint8_t { kNot, kNegate, kPositive };
enum class BinaryOp : std::uint8_t { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
enum class CompareOp : std::uint8_t { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

struct ConstantExpr : Expr {
  ConstantExpr(int l, Value v) : Expr(ExprKind::kConstant, l), value(std::move(v)) {}
  Value value;
};
struct NameExpr : Expr {
  NameExpr(int l, std::string n) : Expr(ExprKind::kName, l), name(std::move(n)) {}
  std::string name;
};
struct ListExpr : Expr {  // kList, kTuple, kConcat
  ListExpr(ExprKind k, int l) : Expr(k, l) {}
  std::vector<ExprPtr> items;
};
struct DictExpr : Expr {
  explicit DictExpr(int l) : Expr(ExprKind::kDict, l) {}
  std::vector<std::pair<ExprPtr, ExprPtr>> entries;
};
struct UnaryExpr : Expr {
  UnaryExpr(int l, UnaryOp o) : Expr(ExprKind::kUnary, l), op(o) {}
  UnaryOp op;
  ExprPtr operand;
};
struct BinaryExpr : Expr {
  BinaryExpr(int l, BinaryOp o) : Expr(ExprKind::kBinary, l), op(o) {}
  BinaryOp op;
  ExprPtr left, right;
};
struct LogicalExpr : Expr {
  LogicalExpr(int l, bool a) : Expr(ExprKind::kLogical, l), is_and(a) {}
  bool is_and;
  ExprPtr left, right;
};
struct CompareExpr : Expr {  // a < b <= c: each neighbour pair must hold
  explicit CompareExpr(int l) : Expr(ExprKind::kCompare, l) {}
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};
struct ConditionalExpr : Expr {
  explicit ConditionalExpr(int l) : Expr(ExprKind::kConditional, l) {}
  ExprPtr condition, then, otherwise;  // otherwise may be null: undefined
};
struct AttributeExpr : Expr {
  explicit AttributeExpr(int l) : Expr(ExprKind::kAttribute, l) {}
  ExprPtr object;
  std::string name;
};
struct ItemExpr : Expr {
  explicit ItemExpr(int l) : Expr(ExprKind::kItem, l) {}
  ExprPtr object, key;
};
struct SliceExpr : Expr {
  explicit SliceExpr(int l) : Expr(ExprKind::kSlice, l) {}
  ExprPtr object, start, stop, step;  // the last three may be null
};
struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, double_star;  // *args and **kwargs, or null
};
struct CallExpr : Expr {
  explicit CallExpr(int l) : Expr(ExprKind::kCall, l) {}
  ExprPtr callee;
  CallArguments arguments;
};
struct FilterExpr : Expr {  // also tests: value is name(arguments)
  FilterExpr(ExprKind k, int l) : Expr(k, l) {}
  ExprPtr value;  // null in `{% filter %}` and `{% set x | f %}`: the block's text
  std::string name;
  CallArguments arguments;
};

enum class StmtKind : std::uint8_t {
  kText,
  kPrint,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kScoped,  // {% generation %}: its body in a scope of its own
  kBreak,
  kContinue,
};

struct Stmt {
  Stmt(StmtKind k, int l) : kind(k), line(l) {}
  virtual ~Stmt() = default;
  StmtKind kind;
  int line;
};
using Body = std::vector<std::unique_ptr<Stmt>>;

// Where an assignment goes: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  std::string name;       // empty for a tuple
  std::string attribute;  // of the namespace `name`
  std::vector<Target> items;
  bool is_tuple = false;
};

struct TextStmt : Stmt {
  TextStmt(int l, std::string t) : Stmt(StmtKind::kText, l), text(std::move(t)) {}
  std::string text;
};
struct PrintStmt : Stmt {
  explicit PrintStmt(int l) : Stmt(StmtKind::kPrint, l) {}
  ExprPtr value;
};
struct IfStmt : Stmt {
  explicit IfStmt(int l) : Stmt(StmtKind::kIf, l) {}
  std::vector<std::pair<ExprPtr, Body>> branches;
  Body otherwise;
};
struct ForStmt : Stmt {
  explicit ForStmt(int l) : Stmt(StmtKind::kFor, l) {}
  Target target;
  ExprPtr iterable, filter;  // filter may be null
  bool recursive = false;
  Body body, otherwise;
};
struct SetStmt : Stmt {
  explicit SetStmt(int l) : Stmt(StmtKind::kSet, l) {}
  Target target;
  ExprPtr value;
};
struct BlockStmt : Stmt {  // kSetBlock, kFilterBlock, kScoped
  BlockStmt(StmtKind k, int l) : Stmt(k, l) {}
  Target target;   // kSetBlock
  ExprPtr filter;  // chain of FilterExpr whose innermost value is null; null without filters
  Body body;
};
struct MacroStmt : Stmt {  // also the anonymous macro of a call block
  explicit MacroStmt(int l) : Stmt(StmtKind::kMacro, l) {}
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
  Body body;
};
struct CallBlockStmt : Stmt {
  explicit CallBlockStmt(int l) : Stmt(StmtKind::kCallBlock, l) {}
  std::unique_ptr<CallExpr> call;
  std::unique_ptr<MacroStmt> caller;
};
struct WithStmt : Stmt {
  explicit WithStmt(int l) : Stmt(StmtKind::kWith, l) {}
  std::vector<std::pair<Target, ExprPtr>> assignments;
  Body body;
};

}  // namespace quire::jinja
