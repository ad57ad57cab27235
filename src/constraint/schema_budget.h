// How much work a schema may make the gate do. Internal to the gate.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace quire::schema {

using Json = nlohmann::ordered_json;

// What is thrown within the gate, and caught at its end: why a schema is refused.
struct Refused {
  std::string why;
};

// A unit is a value that is copied or compared, some 50 ns. Counted, so that a schema is refused on every machine or on
// none; of large ones that people write some 100,000 are spent.
class Budget {
 public:
  static constexpr int64_t kUnits = 2'000'000;

  // `stop`, if not empty, is asked now and then; where it says so, the schema is refused.
  explicit Budget(std::function<bool()> stop) : stop_(std::move(stop)) {}

  void spend(int64_t units) {
    left_ -= units;
    if (left_ < 0) throw Refused{"it is too large where its keywords are combined"};
    until_asked_ -= units;
    if (until_asked_ > 0) return;
    until_asked_ = kUnitsBetween;
    if (stop_ && stop_()) throw Refused{"nobody waits for it any more"};
  }
  // Of a copy of `value`: the values in it.
  void spend_copy(const Json& value) { spend(values_in(value)); }
  // Of a search through an array, or through the keys of an object.
  void spend_search(const Json& in) { spend(1 + static_cast<int64_t>(in.size()) / 8); }

 private:
  static constexpr int64_t kUnitsBetween = 10'000;
  static int64_t values_in(const Json& value);

  const std::function<bool()> stop_;
  int64_t left_ = kUnits, until_asked_ = kUnitsBetween;
};

}  // namespace quire::schema
