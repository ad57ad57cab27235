#include "ops/op.h"

namespace quire {

std::string_view reason(PassedOver::Why why) {
  switch (why) {
    case PassedOver::Why::kLacks:
      return "not for this machine";
    case PassedOver::Why::kDoesNotFit:
      return "does not fit";
    case PassedOver::Why::kNotPreferred:
      return "expected to be slower";
    case PassedOver::Why::kNotForced:
      return "another is forced";
  }
  return "";
}

std::string describe(const Tensor& t) {
  if (t.rank == 0) return "none";
  return fmt::format("{} [{}]", dtype_name(t.dtype), fmt::join(t.shape.data(), t.shape.data() + t.rank, ", "));
}

std::string describe(const Weight& w) {
  if (w.empty()) return "none";
  const std::string shape = fmt::format("[{}, {}]", w.rows, w.cols);
  return w.experts == 1 ? fmt::format("{} {}", dtype_name(w.dtype), shape)
                        : fmt::format("{} {} x {}", dtype_name(w.dtype), w.experts, shape);
}

Error no_kernel(std::string_view op, const std::string& arguments, const Machine& m,
                std::span<const std::pair<std::string_view, std::string_view>> kernels) {
  std::vector<std::string> all;
  for (const auto& [name, takes] : kernels)
    all.push_back(takes.empty() ? std::string(name) : fmt::format("{} ({})", name, takes));
  if (all.empty())
    return request_error("{}: no kernel takes {} on {}: there is none for it; use --device cpu", op, arguments,
                         describe(m));
  return request_error("{}: no kernel takes {} on {}; there are: {}; use --device cpu, or a model that they take", op,
                       arguments, describe(m), fmt::join(all, ", "));
}

void refuse(const OpContext& ctx, Error error) {
  if (ctx.launches != nullptr) ctx.launches->refused(error);
  QUIRE_CHECK(ctx.launches != nullptr || ctx.gpu != nullptr, "{}", error.message);
  if (ctx.gpu != nullptr) ctx.gpu->keep(std::move(error));
}

}  // namespace quire
