// quire tune: measures what decides between a GPU's kernels (ops/cuda/card_costs.h) on the card at hand.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "command/card_costs.h"
#include "core/atomic_file.h"
#include "core/escape.h"
#include "core/output.h"
#include "lab/commands.h"
#include "ops/gemm/cuda/measure.h"

namespace quire::cli {
namespace {

struct TuneOptions {
  std::string device = "cuda", out;
  int gpu = 0;
  bool json = false;
};

nlohmann::ordered_json prediction_json(const gemm::Prediction& p) {
  return {{"median", p.median}, {"worst", p.worst}, {"timings", p.timings}};
}
nlohmann::ordered_json regret_json(const gemm::Regret& r) {
  return {{"mean", r.mean},
          {"worst", r.worst},
          {"worst_case", r.worst_case},
          {"cases", r.cases},
          {"unmeasured", r.unmeasured}};
}

// Every time that was measured, for fits of another kind.
nlohmann::ordered_json timings_json(std::span<const gemm::TunedCase> cases) {
  constexpr std::string_view kPaths[] = {"auto", "stream", "sweep", "tiles", "sliced", "dealt"};
  auto all = nlohmann::ordered_json::array();
  for (const gemm::TunedCase& c : cases)
    for (const gemm::Timing& t : c.timings)
      all.push_back({{"product", c.name},
                     {"kernel", kPaths[static_cast<size_t>(t.path)]},
                     {"tile_rows", t.tile_rows},
                     {"us", t.us}});
  return all;
}

void print_json(const CostsFile& file, std::span<const gemm::TunedCase> cases, const cuda::ProductCosts& today,
                const gemm::FittedCosts& fit) {
  nlohmann::ordered_json costs;
  const auto before = named_costs(today), after = named_costs(fit.costs);
  const auto fitted = gemm::fitted_names();
  for (size_t i = 0; i < after.size(); ++i)
    costs[std::string(after[i].name)] = {{"unit", after[i].unit},
                                         {"today", before[i].value},
                                         {"fitted", after[i].value},
                                         {"measured", std::ranges::find(fitted, after[i].name) != fitted.end()}};
  const nlohmann::ordered_json j = {
      {"version", QUIRE_VERSION},
      {"card", file.card},
      {"costs", costs},
      {"launch_us", fit.launch_us},
      {"prediction", {{"today", prediction_json(fit.today_predicts)}, {"fitted", prediction_json(fit.predicts)}}},
      {"regret", {{"today", regret_json(fit.today_regret)}, {"fitted", regret_json(fit.regret)}}},
      {"timings", timings_json(cases)}};
  print_out("{}\n", j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void print_table(const CostsFile& file, const cuda::ProductCosts& today, const gemm::FittedCosts& fit) {
  print_out("{}, compute capability {}.{}, {} multiprocessors\n\n{:<26}{:>12}{:>12}  unit\n", escaped(file.card),
            file.limits.major, file.limits.minor, file.limits.multiprocessors, "cost", "today", "fitted");
  const auto before = named_costs(today), after = named_costs(fit.costs);
  const auto fitted = gemm::fitted_names();
  for (size_t i = 0; i < after.size(); ++i)
    print_out("{:<26}{:>12}{:>12}  {}\n", after[i].name, before[i].value,
              std::ranges::find(fitted, after[i].name) == fitted.end() ? "kept" : fmt::format("{}", after[i].value),
              after[i].unit);
  const auto line = [](std::string_view what, const gemm::Prediction& p, const gemm::Regret& r) {
    print_out(
        "{:<8} tiles' times are predicted within {:.1f}% (median) and {:.0f}% (worst of {}); choices are {:.2f}% "
        "slower than the fastest (mean of {}), {:.0f}% at worst ({}){}\n",
        what, 100 * p.median, 100 * p.worst, p.timings, 100 * r.mean, r.cases, 100 * r.worst, r.worst_case,
        r.unmeasured > 0 ? fmt::format("; {} choices were not measured", r.unmeasured) : "");
  };
  print_out("\n");
  line("today:", fit.today_predicts, fit.today_regret);
  line("fitted:", fit.predicts, fit.regret);
}

Status tune(const TuneOptions& o) {
  if (o.device != "cuda")
    return request_error("--device {}: only the kernels of a GPU are chosen by measured costs; leave it at cuda",
                         o.device);
  if (o.gpu < 0) return request_error("--gpu {}: GPUs are counted from 0", o.gpu);
  gemm::MeasuredCard card;
  QUIRE_TRY(const std::vector<gemm::TunedCase> cases,
            gemm::measure_products(o.gpu, card, [&](const gemm::TunedCase& c) {
              tell_line(fmt::format("{}: {} kernels timed", c.name, c.timings.size()));
            }));
  const cuda::ProductCosts today = cuda::card_costs(card.limits).product;
  const gemm::FittedCosts fit = gemm::fit_costs(cases, today);
  const CostsFile file{.card = card.name, .limits = card.limits, .costs = fit.costs};
  if (o.json)
    print_json(file, cases, today, fit);
  else
    print_table(file, today, fit);
  if (!o.out.empty()) QUIRE_CHECKED(write_file(o.out, costs_json(file)));
  return {};
}

}  // namespace

Action add_tune(Flags& flags) {
  auto o = std::make_shared<TuneOptions>();
  flags.add("--device", &o->device, "cuda, an NVIDIA GPU: nothing else is chosen by measured costs");
  flags.add("--gpu", &o->gpu, "Which GPU, as `quire devices` counts them");
  flags.add("-o,--out FILE", &o->out, "Write the costs, for --card-costs of serve, run, bench and others");
  flags.add("--json", &o->json, "Print one JSON object, with every time that was measured");
  flags.footer("Takes about two minutes and 2 GB of the GPU's memory; nothing else should compute on it meanwhile.");
  return [o] { return tune(*o); };
}

}  // namespace quire::cli
