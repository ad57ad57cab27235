// Filters that take a whole sequence at once.
#include <algorithm>

#include "jinja/attribute_path.h"
#include "jinja/utf8.h"
#include "jinja/value_ops.h"

namespace quire::jinja {

AttributePath::AttributePath(Interpreter& in, const Value& attribute, bool ignore_case, bool several)
    : in_(in), ignore_case_(ignore_case), several_(several && attribute.is_string()) {
  if (attribute.is_none()) {
    paths_.emplace_back();
    return;
  }
  if (attribute.is_integral()) {
    paths_.push_back({attribute});
    return;
  }
  if (!attribute.is_string()) fail("attribute must be a string or an integer, not {}", type_name(attribute));
  std::vector<Value> path;
  std::string part;
  const auto end_part = [&] {
    const bool digits = !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == std::string::npos;
    path.push_back(digits ? Value::integer(std::stoll(part)) : Value::string(Text(part)));
    part.clear();
  };
  for (const char c : attribute.as_string()) {
    if (c == '.') {
      end_part();
    } else if (c == ',' && several_) {
      end_part();
      paths_.push_back(std::exchange(path, {}));
    } else {
      part += c;
    }
  }
  end_part();
  paths_.push_back(std::move(path));
}

Value AttributePath::walk(const Value& item, const std::vector<Value>& path,
                          const std::optional<Value>& otherwise) const {
  Value v = item;
  for (const Value& key : path) {
    v = in_.get_item(v, key);
    if (v.is_undefined() && otherwise) v = *otherwise;
  }
  if (ignore_case_ && v.is_string()) return Value::string(in_.budget(), change_letters(v.as_text(), utf8::lower));
  return v;
}

Value AttributePath::of(const Value& item, const std::optional<Value>& otherwise) const {
  if (!several_) return walk(item, paths_[0], otherwise);
  std::vector<Value> keys;
  for (const auto& path : paths_) keys.push_back(walk(item, path, otherwise));
  return Value::list(in_.budget(), std::move(keys));
}

namespace {

using Keyed = std::pair<Value, Value>;  // key, item

std::vector<Keyed> with_keys(Interpreter& in, const Value& v, const AttributePath& key,
                             const std::optional<Value>& otherwise = std::nullopt) {
  std::vector<Keyed> out;
  for (Value& item : to_vector(in.budget(), v)) {
    Value k = key.of(item, otherwise);
    out.emplace_back(std::move(k), std::move(item));
  }
  return out;
}

// std::stable_sort must not be left by an exception half way through moves of inconsistent orders: NaN and
// errors make `less` partial, so sort by a merge of our own that only ever asks "does the right one come
// first?".
void sort_by_key(Budget& budget, std::vector<Keyed>& items, bool reverse) {
  std::vector<Keyed> other(items.size());
  for (std::size_t width = 1; width < items.size(); width *= 2) {
    for (std::size_t begin = 0; begin < items.size(); begin += 2 * width) {
      const std::size_t middle = std::min(begin + width, items.size()), end = std::min(begin + 2 * width, items.size());
      std::size_t left = begin, right = middle;
      for (std::size_t i = begin; i < end; ++i) {
        bool take_right = left == middle;
        if (left < middle && right < end) {
          take_right = reverse ? less(budget, items[left].first, items[right].first)
                               : less(budget, items[right].first, items[left].first);
        }
        other[i] = std::move(items[take_right ? right++ : left++]);
      }
    }
    items.swap(other);
  }
}

Value filter_sort(Interpreter& in, const Value& v, Parameters& p) {
  const bool reverse = p.flag("reverse", false), case_sensitive = p.flag("case_sensitive", false);
  const AttributePath key(in, p.optional("attribute", Value::none()), !case_sensitive, true);
  p.done();
  auto items = with_keys(in, v, key);
  sort_by_key(in.budget(), items, reverse);
  std::vector<Value> out;
  for (Keyed& item : items) out.push_back(std::move(item.second));
  return Value::list(in.budget(), std::move(out));
}

Value filter_dictsort(Interpreter& in, const Value& v, Parameters& p) {
  const bool case_sensitive = p.flag("case_sensitive", false);
  const std::string by = p.text("by").value_or(Text("key")).bytes;
  const bool reverse = p.flag("reverse", false);
  p.done();
  if (by != "key" && by != "value") fail("dictsort: by must be 'key' or 'value'");
  if (!v.is_dict()) fail("dictsort needs a mapping, not {}", type_name(v));
  const AttributePath key(in, Value::integer(by == "key" ? 0 : 1), !case_sensitive);
  std::vector<Value> pairs;
  for (const auto& [name, value] : v.as_dict().entries) pairs.push_back(Value::tuple(in.budget(), {name, value}));
  auto items = with_keys(in, Value::list(in.budget(), std::move(pairs)), key);
  sort_by_key(in.budget(), items, reverse);
  std::vector<Value> out;
  for (Keyed& item : items) out.push_back(std::move(item.second));
  return Value::list(in.budget(), std::move(out));
}

Value filter_unique(Interpreter& in, const Value& v, Parameters& p) {
  const bool case_sensitive = p.flag("case_sensitive", false);
  const AttributePath key(in, p.optional("attribute", Value::none()), !case_sensitive);
  p.done();
  Dict seen;
  std::vector<Value> out;
  for (Keyed& item : with_keys(in, v, key)) {
    if (seen.find(in.budget(), item.first)) continue;
    seen.set(in.budget(), item.first, Value::none());
    out.push_back(std::move(item.second));
  }
  return Value::iterator(in.budget(), iterate_vector(in.budget(), std::move(out)));
}

template <bool kMax>
Value filter_extreme(Interpreter& in, const Value& v, Parameters& p) {
  const bool case_sensitive = p.flag("case_sensitive", false);
  const AttributePath key(in, p.optional("attribute", Value::none()), !case_sensitive);
  p.done();
  const auto items = with_keys(in, v, key);
  if (items.empty()) return Value::undefined("no aggregated item, the sequence was empty");
  const Keyed* best = &items[0];
  for (std::size_t i = 1; i < items.size(); ++i) {
    if (kMax ? less(in.budget(), best->first, items[i].first) : less(in.budget(), items[i].first, best->first))
      best = &items[i];
  }
  return best->second;
}

Value filter_sum(Interpreter& in, const Value& v, Parameters& p) {
  const AttributePath key(in, p.optional("attribute", Value::none()), false);
  Value total = p.optional("start", Value::integer(0));
  p.done();
  if (total.is_string()) fail("sum cannot add strings; use join");
  for (const Value& item : to_vector(in.budget(), v)) total = add(in.budget(), total, key.of(item));
  return total;
}

Value filter_groupby(Interpreter& in, const Value& v, Parameters& p) {
  const Value attribute = p.required("attribute");
  const Value otherwise = p.optional("default", Value::none());
  const bool case_sensitive = p.flag("case_sensitive", false);
  p.done();
  const auto fallback = otherwise.is_none() ? std::nullopt : std::optional<Value>(otherwise);
  const AttributePath key(in, attribute, !case_sensitive), exact(in, attribute, false);
  auto items = with_keys(in, v, key, fallback);
  sort_by_key(in.budget(), items, false);
  std::vector<Value> groups;
  for (std::size_t begin = 0, end = 0; begin < items.size(); begin = end) {
    std::vector<Value> members;
    for (end = begin; end < items.size() && equal(in.budget(), items[end].first, items[begin].first); ++end) {
      members.push_back(items[end].second);
    }
    if (end == begin) members.push_back(items[end++].second);  // NaN equals nothing, itself included
    Value grouper = exact.of(members[0], fallback);
    groups.push_back(Value::group(in.budget(), std::move(grouper), Value::list(in.budget(), std::move(members))));
  }
  return Value::list(in.budget(), std::move(groups));
}

Value filter_batch(Interpreter& in, const Value& v, Parameters& p) {
  const std::int64_t count = p.integer("linecount", 1);
  const Value fill = p.optional("fill_with", Value::none());
  p.done();
  std::vector<Value> out, row;
  const auto end_row = [&] { out.push_back(Value::list(in.budget(), std::exchange(row, {}))); };
  for (Value& item : to_vector(in.budget(), v)) {
    if (static_cast<std::int64_t>(row.size()) == count) end_row();
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    while (!fill.is_none() && static_cast<std::int64_t>(row.size()) < count) {
      in.budget().allocate(sizeof(Value));
      row.push_back(fill);
    }
    end_row();
  }
  return Value::iterator(in.budget(), iterate_vector(in.budget(), std::move(out)));
}

Value filter_slice(Interpreter& in, const Value& v, Parameters& p) {
  const std::int64_t slices = p.integer("slices", 0);
  const Value fill = p.optional("fill_with", Value::none());
  p.done();
  if (slices == 0) fail("slice: the number of slices must not be zero");
  const auto items = to_vector(in.budget(), v);
  const auto size = static_cast<std::int64_t>(items.size());
  std::vector<Value> out;
  const std::int64_t per_slice = slices > 0 ? size / slices : 0, longer = slices > 0 ? size % slices : 0;
  for (std::int64_t i = 0, at = 0; i < slices; ++i) {
    in.budget().allocate(sizeof(Value));
    const std::int64_t count = per_slice + (i < longer ? 1 : 0);
    std::vector<Value> row(items.begin() + at, items.begin() + at + count);
    at += count;
    if (!fill.is_none() && i >= longer) row.push_back(fill);
    out.push_back(Value::list(in.budget(), std::move(row)));
  }
  return Value::iterator(in.budget(), iterate_vector(in.budget(), std::move(out)));
}

Value filter_join(Interpreter& in, const Value& v, Parameters& p) {
  const Value separator = p.optional("d", Value::string(Text()));
  const AttributePath path(in, p.optional("attribute", Value::none()), false);
  p.done();
  const Text between = to_text(in.budget(), separator);
  StringBuilder out(in.budget());
  const auto it = iterate(in.budget(), v);
  bool first = true;
  for (Value item; it->next(in.budget(), item);) {
    if (!first) out.add(between);
    first = false;
    add_text(out, in.budget(), path.of(item));
  }
  return Value::string(in.budget(), out.take());
}

Value filter_first(Interpreter& in, const Value& v, Parameters& p) {
  p.done();
  Value item;
  if (iterate(in.budget(), v)->next(in.budget(), item)) return item;
  return Value::undefined("no first item, the sequence was empty");
}

Value filter_last(Interpreter& in, const Value& v, Parameters& p) {
  p.done();
  const auto it = iterate_reversed(in.budget(), v);
  if (!it) fail("'{}' object is not reversible", type_name(v));
  Value item;
  if (it->next(in.budget(), item)) return item;
  return Value::undefined("no last item, the sequence was empty");
}

Value filter_list(Interpreter& in, const Value& v, Parameters& p) {
  p.done();
  return Value::list(in.budget(), to_vector(in.budget(), v));
}

Value filter_reverse(Interpreter& in, const Value& v, Parameters& p) {
  p.done();
  if (v.is_string()) return slice(in.budget(), v, Value::none(), Value::none(), Value::integer(-1));
  if (auto it = iterate_reversed(in.budget(), v)) return Value::iterator(in.budget(), std::move(it));
  auto items = to_vector(in.budget(), v);
  std::reverse(items.begin(), items.end());
  return Value::list(in.budget(), std::move(items));
}

Value filter_items(Interpreter& in, const Value& v, Parameters& p) {
  p.done();
  std::vector<Value> pairs;
  if (!v.is_undefined() && !v.is_dict()) fail("items needs a mapping, not {}", type_name(v));
  if (v.is_dict()) {
    for (const auto& [key, value] : v.as_dict().entries) pairs.push_back(Value::tuple(in.budget(), {key, value}));
  }
  return Value::iterator(in.budget(), iterate_vector(in.budget(), std::move(pairs)));
}

constexpr Named<FilterFn> kSequenceFilters[] = {
    {"batch", filter_batch},        {"dictsort", filter_dictsort}, {"first", filter_first},
    {"groupby", filter_groupby},    {"items", filter_items},       {"join", filter_join},
    {"last", filter_last},          {"list", filter_list},         {"max", filter_extreme<true>},
    {"min", filter_extreme<false>}, {"reverse", filter_reverse},   {"slice", filter_slice},
    {"sort", filter_sort},          {"sum", filter_sum},           {"unique", filter_unique},
};

}  // namespace

std::span<const Named<FilterFn>> sequence_filters() {
  return kSequenceFilters;
}

}  // namespace quire::jinja
