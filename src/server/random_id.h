// Ids and seeds: they need to differ, not to be secret.
#pragma once

#include <cstdint>
#include <string>

namespace quire::server {

// 24 hexadecimal digits that no other request has.
std::string random_hex();
uint64_t random_seed();

}  // namespace quire::server
