// The commands of quire and of quire-lab.
#pragma once

#include <memory>
#include <vector>

#include "cli/commands.h"
#include "lab/commands.h"

namespace quire::test {

inline std::vector<cli::Command> all_commands() {
  std::vector<cli::Command> all(cli::kQuire.commands.begin(), cli::kQuire.commands.end());
  all.insert(all.end(), cli::kLab.commands.begin(), cli::kLab.commands.end());
  return all;
}

inline std::vector<std::unique_ptr<const cli::Flags>> all_described() {
  auto all = cli::described_commands(cli::kQuire);
  for (auto& flags : cli::described_commands(cli::kLab)) all.push_back(std::move(flags));
  return all;
}

}  // namespace quire::test
