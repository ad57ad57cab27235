// The operators and their kernels by name, for options that choose one.
#pragma once

#include <string_view>

#include "core/result.h"

namespace quire {

// An error that lists what there is when the operator or the kernel is unknown.
Status check_kernel_name(std::string_view op, std::string_view kernel);

}  // namespace quire
