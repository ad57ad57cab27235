// How a model is sampled where nobody says: as its makers recommend.
#pragma once

#include <array>
#include <iterator>
#include <optional>
#include <string>

#include "gguf/reader.h"
#include "ops/sampling/params.h"

namespace quire {

// What is recommended, and nothing of the rest.
struct SamplingDefaults {
  std::array<std::optional<double>, std::size(kSamplingFields)> values;  // of each row, or nothing

  bool any() const { return !text().empty(); }

  // Calls visit(row, value, reference to it in `to`) for what is recommended.
  template <class Visit>
  void each(SamplingParams& to, Visit visit) const {
    auto value = values.begin();
    each_sampling_field(to, [&](const SamplingField& field, auto& member) {
      if (const auto& v = *value++) visit(field, static_cast<std::remove_reference_t<decltype(member)>>(*v), member);
    });
  }
  void apply(SamplingParams& to) const;
  std::string text() const;  // "temperature 0.6, top_k 20"; empty: nothing is recommended
};

// general.sampling.* of a file. Errors: kModelFile, a value of another type.
Result<SamplingDefaults> recommended_sampling(const gguf::File& file);
// What the makers of a family publish for its models, by general.architecture, where they answer at once and where they
// think first. Of one whose makers publish nothing, or greedy sampling, nothing.
SamplingDefaults family_sampling(std::string_view architecture, bool thinks);
// A generation_config.json, or a folder that has one. With "do_sample": false it recommends nothing. Errors name the
// path: it cannot be read, is no JSON object, or has a value of another type.
Result<SamplingDefaults> read_generation_config(const std::string& path);

}  // namespace quire
