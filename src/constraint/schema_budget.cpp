#include "constraint/schema_budget.h"

#include <vector>

namespace quire::schema {

int64_t Budget::values_in(const Json& value) {
  if (!value.is_structured()) return 1;
  int64_t count = 0;
  std::vector<const Json*> left = {&value};
  while (!left.empty()) {
    const Json& at = *left.back();
    left.pop_back();
    ++count;
    for (const Json& item : at) {
      if (item.is_structured())
        left.push_back(&item);
      else
        ++count;
    }
  }
  return count;
}

}  // namespace quire::schema
