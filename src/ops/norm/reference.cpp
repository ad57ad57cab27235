// The oracle of the norms: plain loops, float64 sums.
#include <cmath>

#include "ops/norm/check.h"

namespace quire::norm {

void add_rms_norm_reference(const OpContext&, const AddRmsNormArgs& a) {
  const AddRmsNormSizes n = check(a);
  const float* weight = a.weight.as<float>();
  for (int64_t t = 0; t < n.T; ++t) {
    float* x = a.x.row<float>(t);
    double sum = 0.0;
    for (int64_t i = 0; i < n.D; ++i) {
      if (!a.add.empty()) x[i] += load_float(a.add, t * a.add.stride[0] + i);
      sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    const double scale = 1.0 / std::sqrt(sum / static_cast<double>(n.D) + static_cast<double>(a.eps));
    for (int64_t i = 0; i < n.D; ++i)
      store_float(a.h, t * a.h.stride[0] + i,
                  static_cast<float>(static_cast<double>(x[i]) * scale * static_cast<double>(weight[i])));
  }
}

void gated_rms_norm_reference(const OpContext&, const GatedRmsNormArgs& a) {
  const GatedRmsNormSizes n = check(a);
  const float* weight = a.weight.as<float>();
  for (int64_t t = 0; t < n.T; ++t) {
    for (int64_t h = 0; h < n.Hv; ++h) {
      const int64_t o = t * a.o.stride[0] + h * n.Dv, z = t * a.z.stride[0] + h * n.Dv,
                    y = t * a.y.stride[0] + h * n.Dv;
      double sum = 0.0;
      for (int64_t i = 0; i < n.Dv; ++i) {
        const double v = static_cast<double>(load_float(a.o, o + i));
        sum += v * v;
      }
      const double scale = 1.0 / std::sqrt(sum / static_cast<double>(n.Dv) + static_cast<double>(a.eps));
      for (int64_t i = 0; i < n.Dv; ++i) {
        const double gate = static_cast<double>(load_float(a.z, z + i));
        store_float(a.y, y + i,
                    static_cast<float>(static_cast<double>(load_float(a.o, o + i)) * scale *
                                       static_cast<double>(weight[i]) * gate / (1.0 + std::exp(-gate))));
      }
    }
  }
}

}  // namespace quire::norm
