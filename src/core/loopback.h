// Which hosts are this machine itself.
#pragma once

#include <string>

namespace quire {

// "localhost", an address of 127.0.0.0/8 in its four parts, or ::1 (without brackets). No other name is, however it
// begins: it may lead anywhere. Lower case.
bool is_this_machine(const std::string& host);

}  // namespace quire
