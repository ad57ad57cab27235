#include "lab/snapshot/turns.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "core/count.h"
#include "core/escape.h"
#include "core/output.h"

namespace quire::cli::snapshot {
namespace {

using Json = nlohmann::ordered_json;

Json hello(const SpeedTests& tests) {
  Json tasks = Json::array();
  for (const SpeedTests::Task& t : tests.tasks()) {
    Json figures = Json::array();
    for (const Figure& f : t.figures)
      figures.push_back({{"name", f.name}, {"unit", f.unit}, {"more_is_better", f.more_is_better}});
    tasks.push_back({{"name", t.name}, {"figures", std::move(figures)}});
  }
  return {{"schema", kTurnsSchema},
          {"program", "quire " QUIRE_VERSION},
          {"fingerprint", tests.fingerprint()},
          {"round_seconds", tests.seconds()},
          {"tasks", std::move(tasks)}};
}

}  // namespace

Status take_turns(SpeedTests& tests) {
  print_out("{}\n", hello(tests).dump(-1, ' ', false, Json::error_handler_t::replace));
  QUIRE_CHECKED(flush_output());
  for (std::string line; std::getline(std::cin, line);) {
    int64_t task = 0;
    if (parse_count(line, task) != CountError::kNone || task < 0 || task >= std::ssize(tests.tasks()))
      return request_error("--turns: '{}' is the number of no task", escaped(line, 60));
    QUIRE_TRY(const std::vector<Reading> readings, tests.read(static_cast<size_t>(task)));
    Json values = Json::array();
    for (const Reading& r : readings) values.push_back(r.value);
    print_out("{}\n", values.dump());
    QUIRE_CHECKED(flush_output());
  }
  return {};
}

}  // namespace quire::cli::snapshot
