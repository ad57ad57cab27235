// Telling systemd how the service is: the protocol of sd_notify(3), for units of Type=notify.
#pragma once

#include <string>
#include <string_view>

#include "core/result.h"

namespace quire::server {

// Sends "READY=1" or the like to a datagram socket: a path, or a name in the abstract namespace after '@'. Nothing is
// sent if `socket` is empty.
Status notify(const std::string& socket, std::string_view state);

}  // namespace quire::server
