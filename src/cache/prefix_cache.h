// Prefixes of prompts that were computed, to be found by later ones: KV blocks, and recurrent states where a model has
// them. What lies in them is the same bits that computing again would give.
//
// A tree with a node for each 64 tokens: their four blocks and, if somebody saved it, the recurrent state after them. A
// prompt that goes on from a prefix needs all blocks below it and the state at exactly its end. Nodes whose blocks a
// sequence uses stay; others are the pool's cached blocks, and make room from the least recently used leaf on.
//
// Prompts of different salts never meet: neither what is found nor why no more was found depends on what is there under
// another salt. What they share is room: what one salt's prompts take, another one's may have to leave.
//
// Layers that attend to a window may have blocks of their own, in a pool for each length of window, and then a prompt
// goes on from a node only if what they look back on there is left: the window blocks of the last positions before its
// end. Sequences give them back while they run, so a node has its window blocks or not, each by itself, for as long as
// their pool has not handed them out again: those that are kept (keep_windows) as cached blocks, the others as free
// ones. They never go to the host.
//
// With a host tier what makes room goes there first, if it is worth it, and is forgotten when the tier has no room for
// it either. A node's blocks are on the device, on the host, or on both; likewise its state. What has come back keeps
// its copy on the host while there is room, and leaves the device again for nothing.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "cache/block_pool.h"
#include "cache/block_table.h"
#include "cache/host_tier.h"
#include "cache/kv_event.h"
#include "cache/prefix_hash.h"
#include "cache/shape.h"

namespace quire {

// Why a prompt found less than it could have. Only prompts of the same salt count.
enum class PrefixMiss {
  kNone,          // all of it that may come from a cache
  kBelowBlock,    // shorter than a chunk and a token: nothing can be found
  kNew,           // nobody computed the rest, and nobody went another way there
  kDiverged,      // others went another way from here on
  kEvicted,       // it was there and made room
  kNoCheckpoint,  // blocks are there, the recurrent state, or what windows look back on, is not
};
inline constexpr int kPrefixMisses = 6;
std::string_view prefix_miss_name(PrefixMiss m);  // "none", "below_block", "new", "diverged", ...

class PrefixCache {
 public:
  // A pool of blocks of windows.
  struct Windows {
    BlockPool* blocks = nullptr;
    int64_t tokens = 0;  // CachePoolSpec::window
  };
  // Over the pools of a model's caches, in the order of CachePools: `blocks`, `windows`, `slots`. `states`: how many
  // slots it may hold; -1 if the model has no recurrent layers. `host`: null if there is none.
  PrefixCache(BlockPool& blocks, StatePool& slots, int32_t states, HostTier* host = nullptr,
              std::vector<Windows> windows = {});

  // A prompt and its hashes.
  struct Prompt {
    std::span<const TokenId> tokens;
    const PrefixHashes& hashes;
  };
  struct Match {
    int64_t usable = 0;  // tokens after which a sequence can go on
    int64_t blocks = 0;  // tokens whose blocks are there: as many or more
    int32_t unused = 0;  // of the usable blocks, those that no sequence uses: taking them leaves fewer to others
    int32_t moves = 0;   // from the host, that taking it needs
    int32_t node = -1, last = -1;  // where the two end
    uint32_t generation = 0;       // of `last` when it was found: as long as that stands, so does what is above
  };
  // The longest prefix that can be used. `match` is what the same prompt found before, or empty.
  void find(const Prompt& p, Match& match);
  // Why that is not all, and the first token of the prompt that no cached prefix of its salt has (-1: none).
  struct Miss {
    PrefixMiss reason = PrefixMiss::kNone;
    int64_t diverged_at = -1;
  };
  Miss explain(const Prompt& p, const Match& match) const;
  // Gives a sequence's tables, one of each pool of blocks and all empty, the blocks of a match that was found since
  // anything but take() was called, as far as none is on the host alone; those of windows get what these look back on,
  // which is kept from now on. Returns the slot that holds its state, to be copied with the step that is built now;
  // invalid if none does. A match with moves needs load() before the step ends; nothing on its way makes room until
  // then.
  StateSlot take(const Match& match, std::span<BlockTable> tables);
  // Then gives the first table the rest, which comes from the host with the step that is built now: the pool has free
  // blocks for that. Returns the slot that will hold the state, to be copied likewise; or, if the cache had none to
  // spare, brings it to `own` and returns an invalid one.
  StateSlot load(const Match& match, BlockTable& table, StateSlot own);
  // Blocks that load() will take from the pool.
  int32_t blocks_to_load(const Match& match) const;

  // Makes the prompt's whole chunks up to `end` findable, as far as the first table holds them, and what the tables of
  // windows hold of them. They have been computed.
  void publish(const Prompt& p, int64_t end, std::span<const BlockTable> tables);
  // Keeps what windows look back on after `end` tokens of a prompt, as far as it is there: it makes room only where no
  // block is free.
  void keep_windows(const Prompt& p, int64_t end);

  // Whether the state after `end` tokens of a prompt is there.
  bool has_state(const Prompt& p, int64_t end) const;
  // A slot to save a state to: a free one, or that of the least recently used prefix; invalid if there is none.
  StateSlot allocate_state();
  // The slot holds the state after `end` tokens of the prompt. It goes back if that cannot be found.
  void publish_state(const Prompt& p, int64_t end, StateSlot slot);
  void drop_state(StateSlot slot);

  // A step has been built: what it takes may make room again.
  void end_step();
  // Turns cached blocks into free ones until `wanted` are; all of them if need be. It may have to go past all nodes
  // twice: who asks for more than is needed just now, a share of the pool, pays for that a bounded time for each block
  // that becomes free, however large the pool is.
  void make_room(int32_t wanted);

  // From now on `sink` is told what prompts can go on from, beginning with what is there. `open`: null, or the salts of
  // the prompts whose tokens may be told; then what has other salts, or follows a picture, is told nobody.
  void tell(std::shared_ptr<KvEventSink> sink, std::optional<std::vector<Hash128>> open);
  // Gives it what has changed since; after every step.
  void send_events();

  // Which units of a chunk there are, kChunkBlocks bits for each pool in the order of CachePools, from the lowest on:
  // of a pool of blocks the chunk's blocks, of one of states the state after it.
  using Parts = uint32_t;
  static_assert(kMostPools * kChunkBlocks <= 32);
  static constexpr Parts kBlocksPart = (Parts{1} << kChunkBlocks) - 1;
  static constexpr Parts part(int pool, int unit = 0) { return Parts{1} << (pool * kChunkBlocks + unit); }
  static constexpr Parts of_pool(Parts parts, int pool) { return parts >> (pool * kChunkBlocks) & kBlocksPart; }

  // For a file that keeps prefixes (prefix_file.h): 64 tokens, what they hang from, and where they lie.
  struct Chunk {
    struct Units {
      std::vector<int32_t> units;  // on the device; -1: that one is not there. Empty: none is, but perhaps
      std::vector<int32_t> pages;  // of the host have them
      bool empty() const { return units.empty() && pages.empty(); }
    };
    int32_t parent = kNoParent;  // a node
    Hash128 salt;                // what stands for the salt of the prompts that begin so
    Hash128 pictures;            // and for the pictures among these tokens
    std::span<const TokenId> tokens;
    Parts parts = 0;           // that are kept
    std::vector<Units> pools;  // where they are, by pool
    bool state_below = false;  // a state after something that hangs below
    bool resumes = false;      // a prompt can go on from here
    bool has_state = false;    // among its parts
  };
  static constexpr int32_t kNoParent = 0;
  // All nodes, the most recently used first: what a node hangs from comes before it.
  std::vector<int32_t> by_use() const;
  Chunk chunk(int32_t node) const;
  // Makes a chunk findable that is used less recently than all others, with such parts of those that it can do without
  // as there are free units of the device, or free pages of the host, for; `hash` names the keys. Returns the node, or
  // -1 if there is no room for its blocks (or it is there). What it stands for has to be written there before anybody
  // looks for it.
  int32_t restore(const KeyedHash& hash, int32_t parent, const Hash128& salt, const Hash128& pictures,
                  std::span<const TokenId> tokens, Parts parts);
  // Forgets everything. No sequence uses any of it.
  void clear();

  struct Stats {
    int64_t nodes = 0, states = 0;  // now
    int64_t evictions = 0;          // of nodes so far
    int64_t state_evictions = 0;
    int64_t looked_at = 0;  // nodes that make_room() went past so far: its time
    // With the host: chunks and states that went there, and came back.
    int64_t chunks_stored = 0, states_stored = 0, chunks_loaded = 0, states_loaded = 0;
    int64_t host_states = 0;  // there now
  };
  Stats stats() const {
    Stats s = stats_;
    s.states = states_held_;
    return s;
  }
  int32_t states_held() const { return states_held_; }
  bool recurrent() const { return max_states_ >= 0; }
  bool has_windows() const { return !windows_.empty(); }
  // The number of its pools, and of that of states among them.
  int pools() const { return state_pool() + recurrent(); }
  int state_pool() const { return 1 + static_cast<int>(windows_.size()); }
  // Whether a prompt needs more than the blocks of a node to go on from it.
  bool needs_more_than_blocks() const { return recurrent() || has_windows(); }
  int32_t max_states() const { return max_states_; }
  const HostTier* host() const { return host_; }

  // Every node reachable, its blocks as they were, lists and counts in order. An error describes the first
  // contradiction.
  Status check() const;

 private:
  struct Node {
    Hash128 hash, salt, pictures;
    std::array<TokenId, kChunkTokens> tokens{};
    std::array<BlockId, kChunkBlocks> blocks{};  // invalid: on the host only
    std::array<uint32_t, kChunkBlocks> generations{};
    int32_t parent = -1, first_child = -1, next_sibling = -1, prev_sibling = -1;
    int32_t depth = 0;            // in chunks; the root has 0
    int32_t next_in_bucket = -1;  // also: next of the free nodes
    uint32_t generation = 1;      // of the node's number: another one when a prefix is forgotten
    StateSlot state;
    int32_t host_blocks = -1, host_state = -1;  // chains of the host's pages
    int64_t touched = 0;                        // when it was used last: rises from older to newer
    uint64_t taken = 0;                         // the step that reads its state
    uint64_t pinned = 0;                        // the step that takes it, or what lies below it
    bool used = false;
    bool on_device() const { return blocks[0].valid(); }
    bool has_state() const { return state.valid() || host_state >= 0; }
  };
  // A node's place among those that may make room. Apart from the nodes, which are 40 times as large: who makes room
  // goes through very many.
  struct Use {
    int32_t older = -1, newer = -1;  // in the order of use: an ancestor is newer than what hangs below it
    int32_t states_below = 0;        // in the node itself and below, wherever they are
  };
  // A node's blocks of one pool of windows, apart from the nodes: few models have any. What another one took since is
  // no more.
  struct WindowBlocks {
    std::array<BlockId, kChunkBlocks> blocks{};
    std::array<uint32_t, kChunkBlocks> generations{};
  };
  struct WindowPool {
    BlockPool* blocks;
    int64_t tokens;
    std::vector<WindowBlocks> of;  // each node
    bool has(int32_t node, int b) const {
      const WindowBlocks& w = of[static_cast<size_t>(node)];
      return blocks->holds(w.blocks[b], w.generations[b]);
    }
  };
  static constexpr int32_t kRoot = kNoParent;
  // Of a cache that tells what it has. A node is told of while it has a reason: that a prompt can go on from it, and
  // each of its children that has one.
  struct Telling {
    std::shared_ptr<KvEventSink> sink;
    std::optional<std::vector<Hash128>> open;
    std::vector<int32_t> reasons;     // of each node
    std::vector<uint8_t> resumes;     // of each node: whether a prompt can go on from it
    std::vector<uint8_t> closed;      // of each node that is told of: whether nobody hears of it
    std::vector<int32_t> watched;     // nodes that need blocks of windows, which go without a word
    std::vector<int64_t> handed_out;  // cached blocks of each pool of windows, when these were looked at
    std::vector<int32_t> path;
    std::vector<KvEvent> events;  // not yet taken
    bool lost = false;            // some were not, so all is told anew
  };

  Node& at(int32_t i) { return nodes_[static_cast<size_t>(i)]; }
  const Node& at(int32_t i) const { return nodes_[static_cast<size_t>(i)]; }
  Use& use(int32_t i) { return uses_[static_cast<size_t>(i)]; }
  const Use& use(int32_t i) const { return uses_[static_cast<size_t>(i)]; }
  size_t bucket(const Hash128& h) const { return h.low & (buckets_.size() - 1); }
  size_t ghost(const Hash128& h) const { return h.high & (ghosts_.size() - 1); }
  int32_t find_hash(const Hash128& h) const;
  // The list of the nodes that a prompt with this salt may go on with below `parent`. Below the root there is a list
  // for each hash of a salt, so that a prompt meets those of its own salt (and, rarely, passes others).
  int32_t& first_child(int32_t parent, const Hash128& salt) {
    return parent == kRoot ? beginnings_[beginning(salt)] : at(parent).first_child;
  }
  size_t beginning(const Hash128& salt) const { return salt.low & (beginnings_.size() - 1); }
  // The node of chunk `chunk` of the prompt below `parent`, or -1: the hash, every token and what stands for pictures
  // are compared.
  int32_t child(const Prompt& p, int32_t parent, int64_t chunk) const;
  // The node after all `end` tokens, or -1.
  int32_t walk(const Prompt& p, int64_t end) const;
  // `table`: that has its blocks; null: they get pages of the host, which are free.
  int32_t add(const Prompt& p, int32_t parent, int64_t chunk, const BlockTable* table);
  void append_path(int32_t node, BlockTable& table, bool load);
  void load_blocks(int32_t i, BlockTable& table);
  void touch_path(int32_t node);
  void unlink_use(int32_t i);
  void append_use(int32_t i);
  void remove(int32_t i);  // with everything below it
  void remove_leaf(int32_t i);
  void set_state(int32_t i, StateSlot slot, int32_t chain);
  int32_t unused_blocks(const Node& n) const;
  int32_t resumable(int32_t node) const;
  // The first block of a pool of windows that a prompt needs after the node, by its number in a table.
  int64_t first_window(const WindowPool& w, int32_t i) const {
    const int64_t end = int64_t{at(i).depth} * kChunkTokens;
    return std::max<int64_t>(0, end - w.tokens + 1) / kBlockTokens;
  }
  // fn(block) for each of those that is there, the last one first.
  template <class Fn>
  void each_window(const WindowPool& w, int32_t node, Fn&& fn) const;
  // The node nearest to `node` that lacks a block which a prompt needs after `node`; -1: none does.
  int32_t broken_window(const WindowPool& w, int32_t node) const;
  void own_windows(WindowPool& w, int32_t i, const BlockTable& table, int64_t chunk);
  void disown_windows(int32_t i);
  void take_windows(WindowPool& w, int32_t node, BlockTable& table);
  void restore_windows(WindowPool& w, int32_t i, Parts which);
  void restore_state(int32_t i);
  bool own_blocks(int32_t i, const BlockTable& table, int64_t chunk);
  void disown_blocks(Node& n);
  bool keep_blocks_on_host(int32_t i);
  bool keep_state_on_host(int32_t i);
  bool make_host_room(int32_t pages, int32_t newer);
  void forget_on_host(int32_t i, int32_t wanted);
  bool may_resume(int32_t i) const;
  void note(int32_t i);  // something that the node needs to be gone on from came or went
  void set_resumes(int32_t i, bool resumes);
  void tell_stored(int32_t i);
  void tell_all();
  void look_at_windows();
  Status check_node(int32_t i) const;
  Status check_events() const;
  Status check_host() const;
  Status check_windows(const WindowPool& w) const;

  BlockPool& blocks_;
  StatePool& slots_;
  int32_t max_states_;
  HostTier* host_;
  std::vector<WindowPool> windows_;
  int32_t states_held_ = 0;          // slots
  std::vector<Node> nodes_;          // the root first
  std::vector<Use> uses_;            // of each node
  std::vector<int32_t> buckets_;     // of hashes
  std::vector<int32_t> owner_;       // of each block: its node, or -1
  std::vector<int32_t> holder_;      // of each state slot, likewise
  std::vector<int32_t> beginnings_;  // first children of the root, by salt
  std::vector<Hash128> ghosts_;      // what was removed lately, wherever its hash falls
  std::vector<int32_t> path_;
  int32_t free_node_ = -1, oldest_ = -1, newest_ = -1;
  uint64_t step_ = 1;
  int64_t touches_ = 0;
  Stats stats_;
  std::unique_ptr<Telling> telling_;  // null: nobody is told
};

}  // namespace quire
