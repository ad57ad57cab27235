#include "command/card_costs.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "command/options.h"
#include "core/escape.h"
#include "core/input_file.h"
#include "engine/cuda_device.h"

namespace quire::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostBytes = 1 << 20;

std::string capability(const cuda::DeviceLimits& d) {
  return fmt::format("{}.{}", d.major, d.minor);
}
std::string described(const cuda::DeviceLimits& d) {
  return fmt::format("compute capability {}, {} multiprocessors", capability(d), d.multiprocessors);
}

Error bad(std::string_view path, std::string_view what) {
  return request_error("{}: {}", escaped(path), what);
}

// A member of the object, which has no others.
Status only_keys(const Json& j, std::string_view where, std::string_view path,
                 std::initializer_list<std::string_view> keys) {
  if (!j.is_object()) return bad(path, fmt::format("{} must be an object", where));
  for (const auto& [key, value] : j.items())
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      return bad(path, fmt::format("{} has an unknown key '{}'", where, escaped(key)));
  for (const std::string_view key : keys)
    if (!j.contains(key)) return bad(path, fmt::format("{} lacks '{}'", where, key));
  return {};
}

Status parse_card(const Json& j, std::string_view path, CostsFile& to) {
  QUIRE_CHECKED(only_keys(j, "'card'", path, {"name", "compute_capability", "multiprocessors"}));
  const Json &name = j["name"], &compute = j["compute_capability"], &processors = j["multiprocessors"];
  if (!name.is_string() || !compute.is_string() || !processors.is_number_integer())
    return bad(path, "'card' must name the card, its compute capability as text and its multiprocessors as a number");
  const auto text = compute.get<std::string>();
  int major = 0, minor = 0, end = 0;
  if (text.size() > 5 || std::sscanf(text.c_str(), "%2d.%2d%n", &major, &minor, &end) != 2 ||
      static_cast<size_t>(end) != text.size() || major < 0 || minor < 0)
    return bad(path, fmt::format("compute_capability '{}': must be as 9.0", escaped(text)));
  const auto count = processors.get<int64_t>();
  if (count < 1 || count > 4096) return bad(path, fmt::format("multiprocessors {}: must be 1 to 4096", count));
  to.card = name.get<std::string>();
  to.limits.major = major;
  to.limits.minor = minor;
  to.limits.multiprocessors = static_cast<int>(count);
  return {};
}

Status parse_cost(const std::string& key, const Json& j, std::string_view path, cuda::ProductCosts& to) {
  const std::vector<cuda::NamedCost> known = named_costs(to);
  const auto cost = std::find_if(known.begin(), known.end(), [&](const cuda::NamedCost& c) { return c.name == key; });
  if (cost == known.end())
    return bad(path, fmt::format("there is no cost '{}'; `quire explain --costs` lists them", escaped(key)));
  QUIRE_CHECKED(only_keys(j, fmt::format("'{}'", key), path, {"value", "unit"}));
  if (!j["unit"].is_string() || j["unit"].get<std::string>() != cost->unit)
    return bad(path, fmt::format("'{}' has the unit {}, but it is counted in \"{}\"", key,
                                 j["unit"].dump(-1, ' ', false, Json::error_handler_t::replace), cost->unit));
  if (!j["value"].is_number() || !set_cost(to, key, j["value"].get<double>()))
    return bad(path, fmt::format("'{}' is {}: must be {} from {} to {}", key,
                                 j["value"].dump(-1, ' ', false, Json::error_handler_t::replace),
                                 cost->whole ? "an integer" : "a number", cost->least, cost->most));
  return {};
}

}  // namespace

std::string costs_json(const CostsFile& file) {
  Json costs = Json::object();
  for (const cuda::NamedCost& c : named_costs(file.costs)) {
    Json& one = costs[std::string(c.name)];
    if (c.whole)
      one["value"] = static_cast<int64_t>(c.value);
    else
      one["value"] = c.value;
    one["unit"] = c.unit;
  }
  const Json j = {{"card",
                   {{"name", file.card},
                    {"compute_capability", capability(file.limits)},
                    {"multiprocessors", file.limits.multiprocessors}}},
                  {"costs", std::move(costs)}};
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<CostsFile> parse_costs(std::string_view json, std::string_view path) {
  // A key that stands twice would hide one of its values.
  std::vector<std::vector<std::string>> objects;
  bool twice = false, deep = false;
  const Json j = Json::parse(
      json,
      [&](int depth, Json::parse_event_t event, Json& value) {
        deep |= depth > 4;
        if (event == Json::parse_event_t::object_start) objects.emplace_back();
        if (event == Json::parse_event_t::object_end) objects.pop_back();
        if (event == Json::parse_event_t::key) {
          auto& keys = objects.back();
          const auto key = value.get<std::string>();
          twice |= std::find(keys.begin(), keys.end(), key) != keys.end();
          keys.push_back(key);
        }
        return !deep;
      },
      false);
  if (j.is_discarded() || deep || twice)
    return bad(path, twice ? "a key stands twice in an object" : "is no JSON as `quire tune --out` writes it");
  QUIRE_CHECKED(only_keys(j, "the file", path, {"card", "costs"}));
  CostsFile file;
  QUIRE_CHECKED(parse_card(j["card"], path, file));
  if (!j["costs"].is_object()) return bad(path, "'costs' must be an object");
  for (const auto& [key, value] : j["costs"].items()) QUIRE_CHECKED(parse_cost(key, value, path, file.costs));
  return file;
}

void CardCostsOption::add(Flags& flags) {
  flags.add("--card-costs FILE", &file,
            "With --device cuda: choose kernels by what `quire tune --out` measured on this card. The output is "
            "the same");
}

Status CardCostsOption::apply(const Machine& machine) const {
  if (file.empty()) return {};
  QUIRE_TRY(const std::string text, read_input_file(file, kMostBytes).context("--card-costs"));
  QUIRE_TRY(const CostsFile costs, parse_costs(text, file));
  const cuda::DeviceLimits &theirs = costs.limits, &ours = machine.gpu;
  if (theirs.major != ours.major || theirs.minor != ours.minor || theirs.multiprocessors != ours.multiprocessors)
    return request_error("--card-costs {}: measured on {} ({}), but this card has {}; run `quire tune` on it",
                         escaped(file), escaped(costs.card), described(theirs), described(ours));
  cuda::use_card_costs(costs.costs);
  return {};
}

Status CardCostsOption::apply(Device device, int gpu) const {
  if (file.empty()) return {};
  if (device != Device::kCuda)
    return request_error("--card-costs {}: only the kernels of a GPU are chosen by it; add --device cuda",
                         escaped(file));
  QUIRE_TRY(const Machine machine, open_gpu(gpu));
  return apply(machine);
}

}  // namespace quire::cli
