// What comes between the two products of a feed-forward: gate and up in one value, which `down` multiplies.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

namespace quire {

enum class GateActivation : uint8_t {
  kSilu,       // g / (1 + e^-g) * u ("GLU Variants Improve Transformer", arXiv:2002.05202, SwiGLU)
  kGeluTanh,   // g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) / 2 * u ("GELU", arXiv:1606.08415, section 2)
  kSwigluOai,  // of gpt-oss: g' / (1 + e^(-1.702 g')) * (u' + 1), g' at most 7, u' between -7 and 7
};

// For descriptions of calls, where it is not the usual one.
constexpr std::string_view activation_note(GateActivation activation) {
  constexpr std::string_view kNotes[] = {"", ", GELU", ", SwiGLU of gpt-oss"};
  return kNotes[static_cast<int>(activation)];
}

namespace glu {
inline constexpr double kGeluRoot = 0.79788456080286535588;  // sqrt(2 / pi)
inline constexpr double kGeluCube = 0.044715;
inline constexpr double kOaiAlpha = 1.702;
inline constexpr double kOaiLimit = 7;
}  // namespace glu

// The value of one gate g and one up u, in the arithmetic of T. A NaN stays one.
template <class T>
T gated(GateActivation activation, T g, T u) {
  constexpr T kOne = T{1};
  switch (activation) {
    case GateActivation::kSilu:
      return g / (kOne + std::exp(-g)) * u;
    case GateActivation::kGeluTanh: {  // (1 + tanh(x)) / 2 = 1 / (1 + e^-2x)
      const T x = T(glu::kGeluRoot) * (g + T(glu::kGeluCube) * g * g * g);
      return g / (kOne + std::exp(-2 * x)) * u;
    }
    case GateActivation::kSwigluOai: {
      const T limit = T(glu::kOaiLimit);
      if (g > limit) g = limit;
      if (u > limit) u = limit;
      if (u < -limit) u = -limit;
      return g / (kOne + std::exp(T(-glu::kOaiAlpha) * g)) * (u + kOne);
    }
  }
  return g;
}

}  // namespace quire
