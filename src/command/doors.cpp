#include "command/doors.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "core/escape.h"

namespace quire::cli {

const Neighbour* neighbour_with(std::span<const Neighbour> all, std::string_view command) {
  const auto has_it = [&](const Neighbour& n) {
    return std::ranges::any_of(n.doors, [&](const Door& d) { return d.name == command; });
  };
  const auto at = std::ranges::find_if(all, has_it);
  return at == all.end() ? nullptr : &*at;
}

Error hand_over(const Neighbour& to, std::string_view command, std::vector<std::string> arguments) {
  std::error_code failed;
  std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (failed) return request_error("/proc/self/exe: {}; {} is looked for beside it", failed.message(), to.program);
  std::string program = path.replace_filename(to.program).string();
  std::vector<char*> all = {program.data()};
  for (std::string& a : arguments) all.push_back(a.data());
  all.push_back(nullptr);
  execv(program.c_str(), all.data());
  if (errno == ENOENT)
    return request_error("{} is a command of {}, and there is no {}; {}", command, to.program, escaped(program),
                         to.missing);
  return request_error("{}: cannot be run: {}", escaped(program), std::strerror(errno));
}

}  // namespace quire::cli
