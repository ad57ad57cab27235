// Files that are read whole: what an option names, and what a model's folder has beside its weights.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/result.h"

namespace quire {

// The bytes of a regular file of at most `most` bytes. Pipes, devices, sockets and folders are refused, and nothing is
// waited for. `within`, if not empty: a folder that the file must lie in, or below, wherever links lead; what was
// opened is looked at, so that nothing changes in between. Errors are Fault::kRequest and begin with the path.
Result<std::string> read_input_file(const std::string& path, uint64_t most, const std::string& within = "");

// A file of keys or certificates that OpenSSL reads to its end: an error where it is a folder, a device or a socket, or
// has more than 16 MiB. Pipes are taken, and so it is not opened.
Status check_pem_file(std::string_view option, const std::string& path);

}  // namespace quire
