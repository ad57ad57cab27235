// How often tests that draw at random draw again: with the seeds 1 ... N of the flag --seeds=N.
#pragma once

namespace quire::test {

inline int seed_count = 0;  // as the command line has it; 0: not said

// A test's own number, where the command line says nothing.
inline int seeds_or(int usual) {
  return seed_count > 0 ? seed_count : usual;
}

}  // namespace quire::test
