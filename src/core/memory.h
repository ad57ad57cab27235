// How much memory there is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace quire {

// Bytes that this process may still take without swapping, as Linux estimates it: free memory and page cache, and no
// more than its control groups (core/cgroup.h) and its limits of addresses and data (setrlimit) leave. INT64_MAX if the
// system does not say.
int64_t available_memory();

// How many bytes of a range of whole pages are backed by memory now. 0 if the system does not say.
int64_t resident_memory(std::span<std::byte> pages);

// Of the whole pages within, takes out of memory what a file has anyway and nobody else has mapped, page cache
// included; anonymous memory goes to swap space where there is any. Advice: what is read again is read from the file.
// Linux refuses it for a file that the process neither owns nor may write.
void give_back_pages(std::span<const std::byte> range);

}  // namespace quire
