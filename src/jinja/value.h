// Values of the template language: Python's, as far as a template can tell. Everything but namespaces,
// iterators and loop variables is immutable and shared; constants of a parsed template are shared between
// threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "jinja/budget.h"

namespace quire::jinja {

class Interpreter;
struct Arguments;

enum class Kind : std::uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kRange,
  kDictView,
  kIterator,
  kObject,
};

// Base of everything on the heap. `depth` counts the levels below; it is bounded when a value is made, so
// that printing, comparing and destroying may recurse.
struct Heap {
  explicit Heap(int d = 0) : depth(d) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;
  virtual ~Heap() = default;
  int depth;
};

struct String final : Heap {
  String(Text t, bool m) : text(std::move(t)), markup(m) {}
  Text text;
  bool markup;  // made by `safe` or `escape`: joining it with plain text escapes the plain text
};

struct Sequence;
struct Dict;
struct Range;
struct DictView;
class Iterator;
class Object;

class Value {
 public:
  Value() = default;  // undefined
  static Value undefined(std::string why);
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool b) {
    Value v(Kind::kBool);
    v.int_ = b ? 1 : 0;
    return v;
  }
  static Value integer(std::int64_t i) {
    Value v(Kind::kInt);
    v.int_ = i;
    return v;
  }
  static Value number(double d) {
    Value v(Kind::kFloat);
    v.float_ = d;
    return v;
  }
  // For text whose size is bounded already; see string(Budget&, ...) for everything computed.
  static Value string(Text text, bool markup = false) {
    return Value(Kind::kString, std::make_shared<String>(std::move(text), markup));
  }
  static Value string(Budget& budget, Text text, bool markup = false);
  static Value list(Budget& budget, std::vector<Value> items);
  static Value tuple(Budget& budget, std::vector<Value> items);
  static Value group(Budget& budget, Value key, Value members);  // a tuple with .grouper and .list
  static Value dict(Budget& budget, std::shared_ptr<Dict> dict);
  static Value range(std::shared_ptr<const Range> range);
  static Value view(Budget& budget, std::shared_ptr<DictView> view);
  static Value iterator(Budget& budget, std::shared_ptr<Iterator> iterator);
  static Value object(Budget& budget, std::shared_ptr<Object> object);

  Kind kind() const { return kind_; }
  bool is(Kind k) const { return kind_ == k; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }  // as Python: bool is an int
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_dict() const { return kind_ == Kind::kDict; }

  // Each requires the kind it names.
  bool as_bool() const { return int_ != 0; }
  std::int64_t as_int() const { return int_; }
  double as_float() const { return kind_ == Kind::kFloat ? float_ : static_cast<double>(int_); }
  const Text& as_text() const { return static_cast<const String*>(heap_.get())->text; }
  // Its bytes, to be looked at. What becomes part of another text is added as as_text(), or a piece of that.
  const std::string& as_string() const { return as_text().bytes; }
  bool is_markup() const { return is_string() && static_cast<const String*>(heap_.get())->markup; }
  const std::vector<Value>& items() const;
  bool is_group() const;
  const Dict& as_dict() const;
  const Range& as_range() const;
  const DictView& as_view() const;
  Iterator& as_iterator() const;
  Object& as_object() const;
  std::shared_ptr<const Dict> shared_dict() const;
  std::shared_ptr<Iterator> shared_iterator() const;
  template <class T>
  std::shared_ptr<T> object_as() const {
    return is(Kind::kObject) ? std::dynamic_pointer_cast<T>(heap_) : nullptr;
  }

  int depth() const { return heap_ ? heap_->depth : 0; }
  const Heap* identity() const { return heap_.get(); }
  const std::string& why_undefined() const;  // "'x' is undefined"

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  Value(Kind kind, std::shared_ptr<Heap> heap) : kind_(kind), heap_(std::move(heap)) {}

  Kind kind_ = Kind::kUndefined;
  union {
    std::int64_t int_ = 0;
    double float_;
  };
  std::shared_ptr<Heap> heap_;
};

struct Sequence final : Heap {
  Sequence(std::vector<Value> i, int d) : Heap(d), items(std::move(i)) {}
  std::vector<Value> items;
  bool is_group = false;
};

// Insertion-ordered, as Python's. Keys must be hashable: scalars, strings, tuples of those.
struct Dict final : Heap {
  std::vector<std::pair<Value, Value>> entries;

  void set(Budget& budget, const Value& key, Value value);
  const Value* find(Budget& budget, const Value& key) const;  // fails on an unhashable key
  const Value* find(std::string_view key) const;

 private:
  std::optional<std::size_t> position(Budget& budget, const Value& key, std::size_t hash) const;
  std::unordered_multimap<std::size_t, std::size_t> index_;  // hash -> entry; made once there are many
};

struct Range final : Heap {
  Range(std::int64_t a, std::int64_t b, std::int64_t c);
  std::int64_t start, stop, step, count;
  std::int64_t at(std::int64_t i) const { return start + i * step; }
};

struct DictView final : Heap {
  enum class Part { kKeys, kValues, kItems };
  DictView(std::shared_ptr<const Dict> d, Part p) : Heap(d->depth + 2), dict(std::move(d)), part(p) {}
  Value at(Budget& budget, std::size_t i) const;
  std::shared_ptr<const Dict> dict;
  Part part;
};

// A Python generator: can be walked once.
class Iterator : public Heap {
 public:
  using Heap::Heap;
  virtual bool next(Budget& budget, Value& out) = 0;
  virtual std::string_view type_name() const { return "generator"; }
};

// Functions, macros, namespaces, loop variables.
class Object : public Heap {
 public:
  using Heap::Heap;
  virtual std::string type_name() const = 0;
  virtual Text repr(Budget& budget) const = 0;
  virtual std::optional<Value> attribute(Interpreter&, std::string_view) { return std::nullopt; }
  virtual bool callable() const { return false; }
  virtual Value call(Interpreter& interpreter, Arguments& arguments);
  virtual std::shared_ptr<Iterator> iterate() { return nullptr; }
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Reads the arguments of a function in the order of its parameters.
class Parameters {
 public:
  Parameters(std::string_view function, Arguments& arguments) : function_(function), arguments_(arguments) {}
  std::optional<Value> next(std::string_view name);
  Value required(std::string_view name);
  Value optional(std::string_view name, Value otherwise);
  bool flag(std::string_view name, bool otherwise);
  std::int64_t integer(std::string_view name, std::int64_t otherwise);
  std::optional<Text> text(std::string_view name);  // a string or none; anything else fails
  bool empty() const { return position_ >= arguments_.positional.size() && taken_named_ == arguments_.named.size(); }
  Arguments rest();   // everything not taken yet
  void done() const;  // fails if anything is left
  std::string_view function() const { return function_; }

 private:
  std::string_view function_;
  Arguments& arguments_;
  std::size_t position_ = 0;
  std::size_t taken_named_ = 0;
  std::vector<bool> used_;
};

}  // namespace quire::jinja
