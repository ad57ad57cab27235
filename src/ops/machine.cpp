#include "ops/machine.h"

#include <fmt/format.h>

#include <charconv>

namespace quire {

bool reaches(const Machine& m, const Needs& needs) {
  if (!is_for(m.device, needs)) return false;
  if (needs.device != Device::kCuda) return reaches(m.cpu, needs.cpu);
  if (m.gpu.major < cuda::kOldestMajor) return false;
  switch (needs.gpu) {
    case GpuLevel::kMma:
      return true;
    case GpuLevel::kWgmma:
      return m.gpu.wgmma;
    case GpuLevel::kNoWgmma:
      return !m.gpu.wgmma;
    case GpuLevel::kFp4:
      return m.fp4;
  }
  return false;
}

Result<Machine> parse_card(std::string_view text) {
  const auto wrong = [&] {
    return request_error(
        "card '{}': write it as sm_90:132, compute capability and multiprocessors; known are sm_80, sm_86, "
        "sm_87, sm_89, sm_90, sm_100, sm_103, sm_110, sm_120 and sm_121",
        text);
  };
  const auto number = [](std::string_view digits, int& to) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), to);
    return error == std::errc() && end == digits.data() + digits.size() && to > 0;
  };
  const size_t colon = text.find(':');
  int capability = 0, processors = 0;
  if (!text.starts_with("sm_") || colon == text.npos || !number(text.substr(3, colon - 3), capability) ||
      !number(text.substr(colon + 1), processors) || processors > 4096)
    return wrong();
  Machine m{.device = Device::kCuda};
  m.gpu = {.multiprocessors = processors, .major = capability / 10, .minor = capability % 10};
  // Of a block, as CUDA's programming guide has them for each compute capability.
  switch (capability) {
    case 80:
    case 87:
      m.gpu.shared_bytes = 163 << 10;
      break;
    case 86:
    case 89:
    case 120:
    case 121:
      m.gpu.shared_bytes = 99 << 10;
      break;
    case 90:
    case 100:
    case 103:
    case 110:
      m.gpu.shared_bytes = 227 << 10;
      break;
    default:
      return wrong();
  }
  m.gpu.dependent_launch = capability >= 90;
  m.gpu.wgmma = capability == 90;
  m.fp4 = capability == 120 || capability == 121;
  return m;
}

std::string describe(const Needs& needs) {
  if (needs.device != Device::kCuda) return fmt::format("a CPU with {}", cpu_level_name(needs.cpu));
  switch (needs.gpu) {
    case GpuLevel::kMma:
      return "a GPU of compute capability 8.0 or newer";
    case GpuLevel::kWgmma:
      return "a GPU of compute capability 9.0, and code for it";
    case GpuLevel::kNoWgmma:
      return "a GPU of compute capability 8.0 or newer, and code that is not for 9.0";
    case GpuLevel::kFp4:
      return "a GPU of compute capability 12.x, and code for its products of FP4";
  }
  return {};
}

std::string describe(const Machine& m) {
  if (m.device != Device::kCuda) return fmt::format("a CPU with {}", describe(m.cpu));
  return fmt::format("a GPU of compute capability {}.{} with {} multiprocessors", m.gpu.major, m.gpu.minor,
                     m.gpu.multiprocessors);
}

}  // namespace quire
