#include "jinja/value.h"

#include <algorithm>

#include "jinja/value_ops.h"

namespace quire::jinja {
namespace {

int depth_above(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& v : items) depth = std::max(depth, v.depth());
  return depth + 1;
}

std::shared_ptr<Sequence> make_sequence(Budget& budget, std::vector<Value> items) {
  const int depth = depth_above(items);
  budget.check_depth(depth);
  budget.allocate(items.size() * sizeof(Value) + sizeof(Sequence));
  return std::make_shared<Sequence>(std::move(items), depth);
}

constexpr std::size_t kIndexFrom = 12;  // smaller dictionaries are searched entry by entry

}  // namespace

Value Value::undefined(std::string why) {
  return Value(Kind::kUndefined, std::make_shared<String>(Text(std::move(why)), false));
}

const std::string& Value::why_undefined() const {
  static const std::string kUnknown = "the value is undefined";
  return heap_ ? as_string() : kUnknown;
}

Value Value::string(Budget& budget, Text text, bool markup) {
  budget.check_string(text.bytes.size());
  budget.allocate(text.bytes.size() + text.foreign.all().size() * sizeof(ByteRange));
  return string(std::move(text), markup);
}
Value Value::list(Budget& budget, std::vector<Value> items) {
  return Value(Kind::kList, make_sequence(budget, std::move(items)));
}
Value Value::tuple(Budget& budget, std::vector<Value> items) {
  return Value(Kind::kTuple, make_sequence(budget, std::move(items)));
}
Value Value::group(Budget& budget, Value key, Value members) {
  auto sequence = make_sequence(budget, {std::move(key), std::move(members)});
  sequence->is_group = true;
  return Value(Kind::kTuple, std::move(sequence));
}
Value Value::dict(Budget& budget, std::shared_ptr<Dict> dict) {
  int depth = 0;
  for (const auto& [key, value] : dict->entries) depth = std::max({depth, key.depth(), value.depth()});
  dict->depth = depth + 1;
  budget.check_depth(dict->depth);
  return Value(Kind::kDict, std::move(dict));
}
Value Value::range(std::shared_ptr<const Range> range) {
  return Value(Kind::kRange, std::const_pointer_cast<Range>(range));
}
Value Value::view(Budget& budget, std::shared_ptr<DictView> view) {
  budget.check_depth(view->depth);
  return Value(Kind::kDictView, std::move(view));
}
Value Value::iterator(Budget& budget, std::shared_ptr<Iterator> iterator) {
  budget.check_depth(iterator->depth);
  budget.allocate(64);
  return Value(Kind::kIterator, std::move(iterator));
}
Value Value::object(Budget& budget, std::shared_ptr<Object> object) {
  budget.check_depth(object->depth);
  budget.allocate(64);
  return Value(Kind::kObject, std::move(object));
}

const std::vector<Value>& Value::items() const {
  return static_cast<const Sequence*>(heap_.get())->items;
}
bool Value::is_group() const {
  return is(Kind::kTuple) && static_cast<const Sequence*>(heap_.get())->is_group;
}
const Dict& Value::as_dict() const {
  return *static_cast<const Dict*>(heap_.get());
}
const Range& Value::as_range() const {
  return *static_cast<const Range*>(heap_.get());
}
const DictView& Value::as_view() const {
  return *static_cast<const DictView*>(heap_.get());
}
Iterator& Value::as_iterator() const {
  return *static_cast<Iterator*>(heap_.get());
}
Object& Value::as_object() const {
  return *static_cast<Object*>(heap_.get());
}
std::shared_ptr<const Dict> Value::shared_dict() const {
  return std::static_pointer_cast<const Dict>(heap_);
}
std::shared_ptr<Iterator> Value::shared_iterator() const {
  return std::static_pointer_cast<Iterator>(heap_);
}

std::optional<std::size_t> Dict::position(Budget& budget, const Value& key, std::size_t key_hash) const {
  if (index_.empty()) {
    budget.step(1 + entries.size() / 4);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (equal(budget, entries[i].first, key)) return i;
    }
    return std::nullopt;
  }
  const auto [begin, end] = index_.equal_range(key_hash);
  for (auto it = begin; it != end; ++it) {
    if (equal(budget, entries[it->second].first, key)) return it->second;
  }
  return std::nullopt;
}

void Dict::set(Budget& budget, const Value& key, Value value) {
  const std::size_t key_hash = hash(budget, key);
  if (const auto at = position(budget, key, key_hash)) {
    entries[*at].second = std::move(value);
    return;
  }
  budget.allocate(sizeof(entries[0]) + 16);
  entries.emplace_back(key, std::move(value));
  if (!index_.empty()) {
    index_.emplace(key_hash, entries.size() - 1);
  } else if (entries.size() >= kIndexFrom) {
    for (std::size_t i = 0; i < entries.size(); ++i) index_.emplace(hash(budget, entries[i].first), i);
  }
}

const Value* Dict::find(Budget& budget, const Value& key) const {
  const auto at = position(budget, key, hash(budget, key));
  return at ? &entries[*at].second : nullptr;
}

const Value* Dict::find(std::string_view key) const {
  if (index_.empty()) {
    for (const auto& [k, v] : entries) {
      if (k.is_string() && k.as_string() == key) return &v;
    }
    return nullptr;
  }
  const auto [begin, end] = index_.equal_range(std::hash<std::string_view>{}(key));
  for (auto it = begin; it != end; ++it) {
    const auto& [k, v] = entries[it->second];
    if (k.is_string() && k.as_string() == key) return &v;
  }
  return nullptr;
}

Range::Range(std::int64_t a, std::int64_t b, std::int64_t c) : start(a), stop(b), step(c), count(0) {
  // __int128: the distance between two 64-bit ends does not fit 64 bits.
  const __int128 distance = step > 0 ? static_cast<__int128>(b) - a : static_cast<__int128>(a) - b;
  const __int128 stride = step > 0 ? static_cast<__int128>(step) : -static_cast<__int128>(step);
  if (distance > 0) {
    const __int128 n = (distance + stride - 1) / stride;
    count = n > INT64_MAX ? INT64_MAX : static_cast<std::int64_t>(n);
  }
}

Value DictView::at(Budget& budget, std::size_t i) const {
  const auto& [key, value] = dict->entries[i];
  if (part == Part::kKeys) return key;
  if (part == Part::kValues) return value;
  return Value::tuple(budget, {key, value});
}

Value Object::call(Interpreter&, Arguments&) {
  fail("'{}' object is not callable", type_name());
}

std::optional<Value> Parameters::next(std::string_view name) {
  used_.resize(arguments_.named.size());
  std::optional<Value> found;
  for (std::size_t i = 0; i < arguments_.named.size(); ++i) {
    if (!used_[i] && arguments_.named[i].first == name) {
      found = arguments_.named[i].second;
      used_[i] = true;
      ++taken_named_;
      break;
    }
  }
  if (position_ < arguments_.positional.size()) {
    if (found) fail("{} got multiple values for argument '{}'", function_, name);
    return arguments_.positional[position_++];
  }
  return found;
}

Value Parameters::required(std::string_view name) {
  auto v = next(name);
  if (!v) fail("{} is missing its argument '{}'", function_, name);
  return *std::move(v);
}

Value Parameters::optional(std::string_view name, Value otherwise) {
  auto v = next(name);
  return v ? *std::move(v) : std::move(otherwise);
}

bool Parameters::flag(std::string_view name, bool otherwise) {
  auto v = next(name);
  return v ? truth(*v) : otherwise;
}

std::int64_t Parameters::integer(std::string_view name, std::int64_t otherwise) {
  auto v = next(name);
  if (!v) return otherwise;
  if (!v->is_integral()) fail("{}: argument '{}' must be an integer, not {}", function_, name, type_name(*v));
  return v->as_int();
}

std::optional<Text> Parameters::text(std::string_view name) {
  auto v = next(name);
  if (!v || v->is_none()) return std::nullopt;
  if (!v->is_string()) fail("{}: argument '{}' must be a string, not {}", function_, name, type_name(*v));
  return v->as_text();
}

Arguments Parameters::rest() {
  Arguments out;
  used_.resize(arguments_.named.size());
  for (; position_ < arguments_.positional.size(); ++position_) {
    out.positional.push_back(arguments_.positional[position_]);
  }
  for (std::size_t i = 0; i < arguments_.named.size(); ++i) {
    if (!used_[i]) out.named.push_back(arguments_.named[i]);
    used_[i] = true;
  }
  taken_named_ = arguments_.named.size();
  return out;
}

void Parameters::done() const {
  if (position_ < arguments_.positional.size()) {
    fail("{} takes {} argument(s), but {} were given", function_, position_, arguments_.positional.size());
  }
  for (std::size_t i = 0; i < arguments_.named.size(); ++i) {
    if (i >= used_.size() || !used_[i]) {
      fail("{} got an unexpected keyword argument '{}'", function_, arguments_.named[i].first);
    }
  }
}

}  // namespace quire::jinja
