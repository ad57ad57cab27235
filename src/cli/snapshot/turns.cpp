#include "cli/snapshot/turns.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/snapshot/child.h"
#include "cli/snapshot/stages.h"
#include "core/count.h"
#include "core/escape.h"
#include "core/output.h"
#include "core/progress.h"

namespace quire::cli::snapshot {
namespace {

using Json = nlohmann::json;

nlohmann::ordered_json hello(const SpeedTests& tests) {
  nlohmann::ordered_json tasks = nlohmann::ordered_json::array();
  for (const SpeedTests::Task& t : tests.tasks()) {
    nlohmann::ordered_json figures = nlohmann::ordered_json::array();
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

// A program that measures when it is told to.
class Runner {
 public:
  explicit Runner(const std::vector<std::string>& command) : name_(escaped(command.front(), 200)), command_(command) {}

  struct Slot {
    size_t task = 0, at = 0;  // which value of which task
    std::string unit;
    bool more_is_better = true;
  };

  Status start() {
    QUIRE_TRY(child_, Child::start(command_));
    QUIRE_TRY(const Json j, answer());
    try {
      if (j.at("schema").get<std::string>() != kTurnsSchema) return odd("its --turns is of another version");
      program_ = j.at("program").get<std::string>();
      fingerprint_ = j.at("fingerprint").get<std::string>();
      round_seconds_ = j.at("round_seconds").get<double>();
      figures_.clear();
      order_.clear();
      sizes_.clear();
      for (const Json& task : j.at("tasks")) {
        const size_t t = sizes_.size();
        sizes_.push_back(task.at("figures").size());
        for (size_t i = 0; i < sizes_.back(); ++i) {
          const Json& f = task.at("figures")[i];
          const auto figure = f.at("name").get<std::string>();
          if (figures_.size() < 1000 &&
              figures_.emplace(figure, Slot{t, i, f.at("unit").get<std::string>(), f.at("more_is_better").get<bool>()})
                  .second)
            order_.push_back(figure);
        }
      }
    } catch (const Json::exception&) {
      return odd("its first line is not what --turns prints");
    }
    return {};
  }

  Result<std::vector<double>> measure(size_t task) {
    if (!child_->write_line(std::to_string(task))) return ended();
    QUIRE_TRY(const Json j, answer());
    if (!j.is_array() || j.size() != sizes_[task]) return odd("it answers a turn with something else than its figures");
    std::vector<double> values;
    for (const Json& v : j) {
      if (!v.is_number() || !(v.get<double>() > 0) || !std::isfinite(v.get<double>()))
        return odd("it answers a turn with what is no number above 0");
      values.push_back(v);
    }
    return values;
  }

  void stop() { child_.reset(); }
  const std::string& program() const { return program_; }
  const std::string& fingerprint() const { return fingerprint_; }
  double round_seconds() const { return round_seconds_; }
  size_t tasks() const { return sizes_.size(); }
  const std::map<std::string, Slot>& figures() const { return figures_; }
  const std::vector<std::string>& order() const { return order_; }

 private:
  Error odd(const char* what) const { return request_error("{}: {}", name_, what); }
  Error ended() {
    const int code = child_->wait();
    return request_error("{} ended with code {} instead of answering; run it by hand: {}", name_, code,
                         escaped(fmt::format("{}", fmt::join(command_, " ")), 500));
  }
  Result<Json> answer() {
    const std::optional<std::string> line = child_->read_line();
    if (!line) return ended();
    Json j = Json::parse(*line, nullptr, false);
    if (j.is_discarded()) return odd("it prints what is no JSON; is it a quire that has --turns?");
    return j;
  }

  std::string name_;
  const std::vector<std::string>& command_;
  std::unique_ptr<Child> child_;
  std::string program_, fingerprint_;
  double round_seconds_ = 0;
  std::map<std::string, Slot> figures_;
  std::vector<std::string> order_;
  std::vector<size_t> sizes_;
};

using Values = std::map<std::string, std::vector<double>>;  // by figure

// The two take turns at each task, and who goes first changes. What both have is added: the median of the rounds.
Status one_launch(const AgainstOptions& o, int launch, Runner& mine, Runner& other, Values& mine_all, Values& other_all,
                  Progress& progress) {
  Values here, there;
  const size_t tasks = std::min(mine.tasks(), other.tasks());
  for (int round = 0; round < o.rounds; ++round) {
    for (size_t t = 0; t < tasks; ++t) {
      const bool mine_first = (static_cast<size_t>(launch + round) + t) % 2 == 0;
      std::vector<double> a, b;
      for (const bool turn_is_mine : {mine_first, !mine_first}) {
        QUIRE_TRY((turn_is_mine ? a : b), (turn_is_mine ? mine : other).measure(t));
      }
      for (const auto& [name, slot] : mine.figures())
        if (slot.task == t) here[name].push_back(a[slot.at]);
      for (const auto& [name, slot] : other.figures())
        if (slot.task == t) there[name].push_back(b[slot.at]);
    }
    progress.add(1);
  }
  for (const auto& [name, values] : here)
    if (there.contains(name)) {
      mine_all[name].push_back(median(values));
      other_all[name].push_back(median(there[name]));
    }
  return {};
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

Result<Against> run_against(const AgainstOptions& o) {
  Runner mine(o.mine), other(o.other);
  Values mine_all, other_all;
  Against result;
  Progress progress("in turns", int64_t{1} * o.launches * o.rounds);
  const auto began = std::chrono::steady_clock::now();
  // Launched again and again: where a program's memory happens to lie makes it a few percent faster or slower for as
  // long as it runs, so launches are what is counted, and not turns.
  for (int launch = 0; launch < o.launches; ++launch) {
    QUIRE_CHECKED((launch % 2 == 0 ? mine : other).start());
    QUIRE_CHECKED((launch % 2 == 0 ? other : mine).start());
    QUIRE_CHECKED(one_launch(o, launch, mine, other, mine_all, other_all, progress));
    mine.stop();
    other.stop();
    const double taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    if (launch == 0)
      tell_line(fmt::format("{} launches of each program; about {} left", o.launches,
                            said_seconds(taken * (o.launches - 1))));
  }
  result.program = mine.program();
  result.fingerprint = mine.fingerprint();
  result.other_program = other.program();
  result.other_fingerprint = other.fingerprint();
  size_t figures = 0;
  for (const auto& [name, values] : mine_all) figures += values.size() == static_cast<size_t>(o.launches) ? 1 : 0;
  for (const std::string& name : mine.order()) {
    const auto at = mine_all.find(name);
    if (at == mine_all.end() || at->second.size() != static_cast<size_t>(o.launches)) {
      result.left_out.push_back(name);
      continue;
    }
    const Runner::Slot& slot = mine.figures().at(name);
    result.changes.push_back(compare_turns(name, slot.unit, slot.more_is_better, other_all[name], at->second, figures));
  }
  for (const std::string& name : other.order())
    if (!mine_all.contains(name)) result.left_out.push_back(name);
  return result;
}

}  // namespace quire::cli::snapshot
