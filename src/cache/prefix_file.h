// A file that keeps a prefix cache while the engine is away: 64-token chunks with their KV blocks and saved recurrent
// states, the most recently used first, so that what a smaller cache or file has no room for is what was used last.
//
// Little-endian. A head of 128 bytes: magic, version, sizes, counts, the key under which salts are hashed, the number
// of the engine's pools and the length of its fingerprint. For each pool 32 bytes: its kind, the size of its units, and
// how many records have some. The fingerprint; a checksum of all this; then the records: number, parent, which parts of
// the chunk there are (PrefixCache::Parts), the hashes of the salt and of the chunk's pictures, 64 tokens; of each pool
// that the parts name the units of a chunk: four blocks, of which those that are not there are zero, or a state; a
// checksum. The file is exactly as long as its head says.
//
// It holds prompts (as tokens and as what was computed of them), so only its owner can read it. Neither salts nor API
// keys are in it, but who has the file can find out whether a guess of one is right. Checksums tell damage, not
// forgery: the bytes of blocks and states are believed.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "cache/prefix_cache.h"

namespace quire {

// Whose blocks and states these are: a file is of use only to an engine for which all of this is the same.
struct PrefixFileOwner {
  std::string fingerprint;  // what the bits depend on, at most 4096 bytes
  CachePools pools;
  int64_t vocab = 0;
};

// The memory of the pools, and the host's pages that blocks and states may have left for. Contents are bytes in the
// layout of whoever has it.
class CacheMemory {
 public:
  virtual ~CacheMemory() = default;
  // Of a pool, or of the pages of on_host(pool) that one unit, or several blocks, lie in. `to` and `from`: their bytes
  // one after the other, of the last one perhaps less. Nothing is read or written of units that are negative.
  virtual Status read(int pool, std::span<const int32_t> units, std::span<std::byte> to) = 0;
  virtual Status write(int pool, std::span<const int32_t> units, std::span<const std::byte> from) = 0;
};

// What was written or read.
struct PrefixFileContent {
  int64_t chunks = 0, states = 0;
  int64_t bytes = 0;    // of the file
  int64_t skipped = 0;  // chunks that there was no room for
};

// Whether such a file may stand where `path` leads: nothing is there, or a file of this kind, whoever wrote it and be
// it damaged. What it says of anything else is an error: that is not replaced.
Status check_prefix_place(const std::string& path);

// Writes what the cache holds, as far as the file has no more than `max_bytes`; it appears when it is complete. With
// recurrent layers, or windows, only what leads to a place where a prompt can go on is worth keeping. `salts` hashed
// the salts. One record is in memory at a time. Where there is nothing to keep, nothing is written. An error, before
// and after the work, where check_prefix_place() has one.
Result<PrefixFileContent> write_prefix_file(const std::string& path, const PrefixFileOwner& owner,
                                            const KeyedHash& salts, const PrefixCache& cache, CacheMemory& memory,
                                            int64_t max_bytes);

// Reads such a file into an empty cache, as far as there are free blocks and slots, and then pages of the host. `salts`
// becomes the key of the file; `chunks` names what is read. Whatever is wrong with the file leaves the cache empty and
// `salts` as it was. Errors: Fault::kRequest if there is no such file, Fault::kModelFile if it is damaged or another
// engine's.
Result<PrefixFileContent> read_prefix_file(const std::string& path, const PrefixFileOwner& owner, KeyedHash& salts,
                                           const KeyedHash& chunks, PrefixCache& cache, CacheMemory& memory);

}  // namespace quire
