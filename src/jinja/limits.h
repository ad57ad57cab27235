// What one template may cost. A chat template comes from a model file and its variables from the network, so
// both are hostile until proven otherwise: every loop, allocation and recursion of the interpreter is paid
// for here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::jinja {

struct Limits {
  std::size_t max_source_bytes = 1u << 20;
  int max_parse_depth = 200;                        // nested statements, brackets and operators in the source
  std::uint64_t max_steps = 20'000'000;             // evaluated nodes, plus work done inside filters and methods
  int max_call_depth = 600;                         // nested evaluation; one macro call takes about six
  int max_value_depth = 100;                        // lists in lists, in the variables or built by the template
  std::size_t max_string_bytes = 64u << 20;         // one string
  std::size_t max_output_bytes = 64u << 20;         // the rendered text
  std::uint64_t max_allocated_bytes = 2048u << 20;  // everything the template ever builds, added up
  std::int64_t max_range = 100'000;                 // elements of one range(), as Jinja's sandbox has it
};

}  // namespace quire::jinja
