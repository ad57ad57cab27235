// Walking over values, and slices of them.
#include <algorithm>

#include "jinja/utf8.h"
#include "jinja/value_ops.h"

namespace quire::jinja {
namespace {

// Elements 0 .. count-1 of something indexable, forwards or backwards.
template <class At>
class IndexIterator final : public Iterator {
 public:
  IndexIterator(int depth_below, std::size_t count, bool backwards, At at)
      : Iterator(depth_below + 1), count_(count), backwards_(backwards), at_(std::move(at)) {}
  bool next(Budget& budget, Value& out) override {
    if (index_ >= count_) return false;
    budget.step();
    out = at_(budget, backwards_ ? count_ - 1 - index_ : index_);
    ++index_;
    return true;
  }
  std::string_view type_name() const override { return "iterator"; }

 private:
  std::size_t index_ = 0, count_;
  bool backwards_;
  At at_;
};

template <class At>
std::shared_ptr<Iterator> index_iterator(int depth, std::size_t count, bool backwards, At at) {
  return std::make_shared<IndexIterator<At>>(depth, count, backwards, std::move(at));
}

class CharIterator final : public Iterator {
 public:
  explicit CharIterator(Value text) : Iterator(1), text_(std::move(text)) {}
  bool next(Budget& budget, Value& out) override {
    const std::string& text = text_.as_string();
    if (at_ >= text.size()) return false;
    budget.step();
    const std::size_t size = utf8::decode(text, at_).size;
    out = Value::string(text_.as_text().piece(std::string_view(text).substr(at_, size)));
    at_ += size;
    return true;
  }

 private:
  Value text_;
  std::size_t at_ = 0;
};

std::shared_ptr<Iterator> walk(Budget& budget, const Value& v, bool backwards) {
  const int depth = v.depth();
  switch (v.kind()) {
    case Kind::kUndefined:
      return iterate_vector(budget, {});
    case Kind::kList:
    case Kind::kTuple:
      return index_iterator(depth, v.items().size(), backwards, [v](Budget&, std::size_t i) { return v.items()[i]; });
    case Kind::kDict:
      return index_iterator(depth, v.as_dict().entries.size(), backwards,
                            [v](Budget&, std::size_t i) { return v.as_dict().entries[i].first; });
    case Kind::kDictView:
      return index_iterator(depth, v.as_view().dict->entries.size(), backwards,
                            [v](Budget& b, std::size_t i) { return v.as_view().at(b, i); });
    case Kind::kRange:
      return index_iterator(
          depth, static_cast<std::size_t>(v.as_range().count), backwards,
          [v](Budget&, std::size_t i) { return Value::integer(v.as_range().at(static_cast<std::int64_t>(i))); });
    default:
      return nullptr;
  }
}

}  // namespace

bool is_iterable(const Value& v) {
  if (v.is(Kind::kObject)) return v.as_object().iterate() != nullptr;
  return v.is(Kind::kIterator) || is_sized(v);
}

std::shared_ptr<Iterator> iterate(Budget& budget, const Value& v) {
  budget.step();
  if (v.is_string()) return std::make_shared<CharIterator>(v);
  if (v.is(Kind::kIterator)) return v.shared_iterator();
  if (v.is(Kind::kObject)) {
    if (auto it = v.as_object().iterate()) return it;
  }
  if (auto it = walk(budget, v, false)) return it;
  fail("'{}' object is not iterable", type_name(v));
}

std::shared_ptr<Iterator> iterate_reversed(Budget& budget, const Value& v) {
  if (v.is_string()) {
    auto chars = to_vector(budget, v);
    std::reverse(chars.begin(), chars.end());
    return iterate_vector(budget, std::move(chars));
  }
  return walk(budget, v, true);
}

std::shared_ptr<Iterator> iterate_vector(Budget& budget, std::vector<Value> items) {
  const Value list = Value::list(budget, std::move(items));
  return index_iterator(list.depth(), list.items().size(), false,
                        [list](Budget&, std::size_t i) { return list.items()[i]; });
}

std::vector<Value> to_vector(Budget& budget, const Value& v) {
  if (v.is_sequence()) {
    budget.allocate(v.items().size() * sizeof(Value));
    return v.items();
  }
  std::vector<Value> out;
  const auto it = iterate(budget, v);
  for (Value item; it->next(budget, item);) {
    budget.allocate(sizeof(Value));
    out.push_back(std::move(item));
  }
  return out;
}

namespace {

std::optional<std::int64_t> slice_bound(const Value& v) {
  if (v.is_none()) return std::nullopt;
  if (v.is_undefined()) fail("{}", v.why_undefined());
  if (!v.is_integral()) fail("slice indices must be integers or none, not {}", type_name(v));
  return v.as_int();
}

struct SliceRange {
  std::int64_t start, stop, step, count;
};

// The elements that [start:stop:step] takes from `size` elements, by Python's rules.
SliceRange resolve(const Value& start, const Value& stop, const Value& step, std::int64_t size) {
  const std::int64_t stride = slice_bound(step).value_or(1);
  if (stride == 0) fail("slice step cannot be zero");
  const std::int64_t low = stride < 0 ? -1 : 0;
  const std::int64_t high = stride < 0 ? size - 1 : size;
  const auto clamp = [&](const Value& bound, std::int64_t otherwise) {
    auto at = slice_bound(bound);
    if (!at) return otherwise;
    if (*at < 0) return *at < -size ? low : std::max(*at + size, low);
    return std::min(*at, high);
  };
  const std::int64_t from = clamp(start, stride < 0 ? high : low);
  const std::int64_t to = clamp(stop, stride < 0 ? low : high);
  return {from, to, stride, Range(from, to, stride).count};
}

Value slice_string(Budget& budget, const Value& v, const Value& start, const Value& stop, const Value& step) {
  const std::string& text = v.as_string();
  budget.step(text.size() / 32);
  const SliceRange r = resolve(start, stop, step, length(v));
  if (r.count == 0) return Value::string(Text(), v.is_markup());
  if (r.step == 1) {
    const std::size_t from = utf8::offset(text, static_cast<std::size_t>(r.start));
    const std::string_view rest = std::string_view(text).substr(from);
    const std::size_t size = utf8::offset(rest, static_cast<std::size_t>(r.count));
    return Value::string(budget, v.as_text().piece(rest.substr(0, size)), v.is_markup());
  }
  std::vector<std::string_view> chars;
  budget.allocate(text.size() * sizeof(std::string_view));
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = utf8::decode(text, at).size;
    chars.push_back(std::string_view(text).substr(at, size));
    at += size;
  }
  StringBuilder out(budget);
  for (std::int64_t i = 0; i < r.count; ++i)
    out.add(v.as_text(), chars[static_cast<std::size_t>(r.start + i * r.step)]);
  return Value::string(budget, out.take(), v.is_markup());
}

}  // namespace

Value slice(Budget& budget, const Value& v, const Value& start, const Value& stop, const Value& step) {
  if (v.is_string()) return slice_string(budget, v, start, stop, step);
  if (v.is_sequence()) {
    const auto& items = v.items();
    const SliceRange r = resolve(start, stop, step, static_cast<std::int64_t>(items.size()));
    budget.step(static_cast<std::uint64_t>(r.count));
    std::vector<Value> out;
    out.reserve(static_cast<std::size_t>(r.count));
    for (std::int64_t i = 0; i < r.count; ++i) out.push_back(items[static_cast<std::size_t>(r.start + i * r.step)]);
    return v.is(Kind::kList) ? Value::list(budget, std::move(out)) : Value::tuple(budget, std::move(out));
  }
  if (v.is(Kind::kRange)) {
    const Range& range = v.as_range();
    const SliceRange r = resolve(start, stop, step, range.count);
    const __int128 from = static_cast<__int128>(range.start) + static_cast<__int128>(r.start) * range.step;
    const __int128 stride = static_cast<__int128>(range.step) * r.step;
    const __int128 to = static_cast<__int128>(range.start) + static_cast<__int128>(r.stop) * range.step;
    for (const __int128 x : {from, stride, to}) {
      if (x < INT64_MIN || x > INT64_MAX) fail("the slice of this range does not fit 64 bits");
    }
    return Value::range(std::make_shared<Range>(static_cast<std::int64_t>(from), static_cast<std::int64_t>(to),
                                                static_cast<std::int64_t>(stride)));
  }
  if (v.is_undefined()) fail("{}", v.why_undefined());
  fail("'{}' object cannot be sliced", type_name(v));
}

}  // namespace quire::jinja
