#include "server/random_id.h"

#include <fmt/format.h>

#include <random>

namespace quire::server {
namespace {

// Seeded by the system, once a thread.
std::mt19937_64& generator() {
  thread_local std::mt19937_64 g = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return g;
}

}  // namespace

std::string random_hex() {
  return fmt::format("{:016x}{:08x}", generator()(), static_cast<uint32_t>(generator()()));
}
uint64_t random_seed() {
  return generator()();
}

}  // namespace quire::server
