// What tests of conversions share: a tiny model by name, a config read, a folder converted.
#pragma once

#include "convert/convert.h"
#include "convert/hf_config.h"
#include "gguf/reader.h"
#include "support/hf_folder.h"

namespace quire::test {

inline TinyModel model(const std::string& name) {
  for (const TinyModel& m : tiny_models())
    if (m.name == name) return m;
  fatal(__FILE__, __LINE__, name);
}

inline convert::HfConfig config_of(const nlohmann::json& document) {
  Result<convert::HfConfig> c = convert::read_hf_config(document);
  QUIRE_CHECK(c.ok(), "{}", c.error().message);
  return std::move(c).value();
}

// What is said of a config that is refused, or "accepted".
inline std::string refusal(const nlohmann::json& document) {
  const Result<convert::HfConfig> c = convert::read_hf_config(document);
  return c.ok() ? "accepted" : c.error().message;
}

inline gguf::File converted(const HfFolder& folder, convert::ConvertSummary* summary = nullptr) {
  Result<convert::ConvertSummary> s = convert::convert({.folder = folder.path(), .output = folder.path("m.gguf")});
  QUIRE_CHECK(s.ok(), "{}", s.error().message);
  if (summary != nullptr) *summary = *s;
  return std::move(gguf::File::open(folder.path("m.gguf"))).value();
}

}  // namespace quire::test
