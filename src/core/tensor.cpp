#include "core/tensor.h"

namespace quire::detail {

void expect_dim(std::string_view tensor, int index, int64_t got, Dim& want) {
  if (want.value < 0) want.value = got;
  QUIRE_CHECK(got == want.value, "{}: dim {} is {}, but {} = {}", tensor, index, got, want.name, want.value);
}

}  // namespace quire::detail
