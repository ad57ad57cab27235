// How often tests that draw at random draw again: with the seeds 1 ... N of the flag --seeds=N, or A ... B of
// --seeds=A-B.
#pragma once

namespace quire::test {

struct Seeds {
  int first = 1, last = 0;
  int count() const { return last - first + 1; }
};
inline Seeds seeds_of_flag;  // none: not said

// A test's own number, where the command line says nothing.
inline Seeds seeds_or(int usual) {
  return seeds_of_flag.count() > 0 ? seeds_of_flag : Seeds{1, usual};
}

}  // namespace quire::test
