#include "convert/orders.h"

namespace quire::convert {

std::vector<int64_t> interleaved_rows(int64_t heads, int64_t head_dim) {
  std::vector<int64_t> order;
  for (int64_t row = 0; row < heads * head_dim; ++row) {
    const int64_t head = row / head_dim, r = row % head_dim;
    order.push_back(head * head_dim + r % 2 * (head_dim / 2) + r / 2);
  }
  return order;
}

std::vector<int64_t> tiled_heads(const HfConfig& c) {
  std::vector<int64_t> order;
  const int64_t each = c.value_heads / c.key_heads;
  for (int64_t i = 0; i < c.value_heads; ++i) order.push_back(i % c.key_heads * each + i / c.key_heads);
  return order;
}

std::vector<int64_t> tiled_rows(const HfConfig& c, int64_t size, int64_t before) {
  std::vector<int64_t> order;
  if (c.row->grouped_value_heads || c.key_heads == c.value_heads) return order;
  for (int64_t i = 0; i < before; ++i) order.push_back(i);
  for (const int64_t head : tiled_heads(c))
    for (int64_t r = 0; r < size; ++r) order.push_back(before + head * size + r);
  return order;
}

std::vector<int64_t> every_other(int64_t first, int64_t count) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < count; ++i) order.push_back(first + 2 * i);
  return order;
}

std::vector<int64_t> unpacked_rows(const HfConfig& c, size_t first, size_t last) {
  const int64_t values = c.value_heads / c.key_heads * c.value_dim;
  const int64_t rows[] = {c.key_dim, c.key_dim, values, values};
  std::vector<int64_t> order;
  int64_t before = 0;
  for (size_t kind = 0; kind <= last; before += rows[kind++])
    for (int64_t head = 0; head < c.key_heads && kind >= first; ++head)
      for (int64_t r = 0; r < rows[kind]; ++r) order.push_back(head * (2 * c.key_dim + 2 * values) + before + r);
  return order;
}

}  // namespace quire::convert
