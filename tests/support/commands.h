// What a test program does besides testing: programs that start themselves as processes of another kind (quire
// compile-grammars) are started as that, too, where a test program stands for them.
#pragma once

#include <map>
#include <string_view>

namespace quire::test {

// By the first argument; returns the exit code. Tests add to it where their variables are initialised.
inline std::map<std::string_view, int (*)()>& commands() {
  static std::map<std::string_view, int (*)()> all;
  return all;
}

}  // namespace quire::test
