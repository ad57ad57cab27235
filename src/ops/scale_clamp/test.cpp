// Conformance of scale_clamp: every kernel bit for bit against the operations one by one.
#include <cmath>

#include "ops/conformance/gpu.h"
#include "ops/scale_clamp/scale_clamp.h"

namespace quire::conformance {
namespace {

constexpr OnGpu<ScaleClampArgs> kOnGpu{[](Operands& o, ScaleClampArgs& a) {
                                         for (Tensor* t : {&a.x, &a.y, &a.shift, &a.scale}) o.tensor(*t);
                                       },
                                       scale_clamp};

struct Case {
  int64_t rows = 1, width = 1;
  bool scaled = false;
  float low = -1.5f, high = 2.0f;
  DType x = DType::kBF16, y = DType::kBF16;
  bool in_place = false;
  int64_t gap = 3;  // between rows

  std::string name() const {
    return fmt::format("T={} D={} x={} y={} in [{}, {}]{}{}{}", rows, width, dtype_name(x), dtype_name(y), low, high,
                       scaled ? " scaled" : "", in_place ? " in place" : "",
                       gap == 3 ? std::string() : fmt::format(" gap={}", gap));
  }
};

// Within the bounds, beyond them, far out, and zeros of both signs.
float element(Rng& rng) {
  switch (rng.integer(0, 9)) {
    case 0:
      return rng.normal(1e4f);
    case 1:
      return rng.integer(0, 1) == 0 ? 0.0f : -0.0f;
    case 2:
      return rng.integer(0, 1) == 0 ? INFINITY : -INFINITY;
    default:
      return rng.normal(2.0f);
  }
}

// By hand, in y's type.
Buffer expected(const Case& c, const Buffer& x, const Buffer& shift, const Buffer& scale) {
  Buffer y(c.y, {c.rows, c.width});
  for (int64_t t = 0; t < c.rows; ++t)
    for (int64_t i = 0; i < c.width; ++i) {
      float v = load_float(x, t * (c.width + c.gap) + i);
      if (c.scaled) {
        const float moved = v - load_float(shift, i);
        v = moved * load_float(scale, i);
      }
      store_float(y, t * c.width + i, std::fmin(std::fmax(v, c.low), c.high));
    }
  return y;
}

void run_case(Suite& s, const Case& c) {
  const std::string name = c.name();
  if (!s.wants_case(name)) return;
  Rng rng = s.rng_for_case(name);
  Buffer x(c.x, {c.rows, c.width + c.gap}), shift(DType::kF32, {c.width}), scale(DType::kF32, {c.width});
  x.fill([&] { return element(rng); });
  shift.fill([&] { return rng.normal(1.0f); });
  scale.fill([&] { return rng.uniform(0.25f, 2.0f); });
  const std::vector<float> want = values(expected(c, x, shift, scale));
  for (const auto& k : s.kernels(kScaleClampOp.kernels, kOnGpu)) {
    const auto run = [&](Buffer& in, Buffer& out) {
      ScaleClampArgs a{.x = in.tensor().cols(0, c.width), .y = (c.in_place ? in : out).tensor().cols(0, c.width)};
      if (c.scaled) a.shift = shift, a.scale = scale;
      a.low = c.low;
      a.high = c.high;
      k.launch(s.context(Device::kCpu), a);
      if (c.in_place) out = in;
    };
    Buffer in = x, y(c.y, {c.rows, c.width + c.gap});
    if (!s.wants(k.name, name) || !k.fits(s.machine(), {.x = in, .y = y})) continue;
    run(in, y);
    s.expect(k.name, name, values(y.tensor().cols(0, c.width)) == want, "the operations one by one");
    s.expect_guards(k.name, name, {&in, &y, &shift, &scale});
    s.expect_row_invariant(k.name, name, c.rows, [&](std::span<const int32_t> rows) {
      Buffer part = x.gather(rows), out(c.y, {static_cast<int64_t>(rows.size()), c.width + c.gap});
      run(part, out);
      return out;
    });
  }
}

// A NaN stays one, and its neighbours are what they are.
void nan_case(Suite& s) {
  const std::string name = "NaN";
  for (const auto& k : s.kernels(kScaleClampOp.kernels, kOnGpu)) {
    if (!s.wants(k.name, name)) continue;
    Buffer x(DType::kF32, {1, 19}), y(DType::kF32, {1, 19});
    x.fill([] { return 7.0f; });
    for (const int64_t i : {0, 9, 18}) store_float(x, i, NAN);
    k.launch(s.context(Device::kCpu), {.x = x, .y = y, .low = -1.0f, .high = 1.0f});
    bool right = true;
    for (int64_t i = 0; i < 19; ++i) right &= i % 9 == 0 ? std::isnan(load_float(y, i)) : load_float(y, i) == 1.0f;
    s.expect(k.name, name, right, "NaN where it was, and nowhere else");
  }
}

}  // namespace

void scale_clamp_conformance(Suite& s) {
  for (const bool scaled : {false, true}) {
    for (const int64_t width : {1, 7, 8, 16, 31, 65, 208, 3072})
      for (const int64_t rows : {0, 1, 5, 33}) run_case(s, {.rows = rows, .width = width, .scaled = scaled});
    for (const DType x : {DType::kF32, DType::kBF16})
      for (const DType y : {DType::kF32, DType::kBF16})
        for (const int64_t gap : {3, 8, 11})  // 328 + 8: rows of whole vectors, also of a GPU's
          run_case(s, {.rows = 7, .width = 336 - gap, .scaled = scaled, .x = x, .y = y, .gap = gap});
    run_case(s, {.rows = 20, .width = 112, .scaled = scaled, .in_place = true});
    run_case(s, {.rows = 20, .width = 113, .scaled = scaled, .x = DType::kF32, .y = DType::kF32, .in_place = true});
  }
  constexpr float kFar = std::numeric_limits<float>::infinity();
  for (const auto& [low, high] : {std::pair{-kFar, kFar}, std::pair{-kFar, 0.5f}, std::pair{0.5f, kFar},
                                  std::pair{0.5f, 0.5f}, std::pair{-3.0f, -1.0f}})
    run_case(s, {.rows = 9, .width = 72, .scaled = true, .low = low, .high = high, .x = DType::kF32});
  nan_case(s);
}

}  // namespace quire::conformance
