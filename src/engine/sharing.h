// Two requests with the same beginning compute it once: the later one waits for what the earlier one is computing, and
// goes on from there. Internal to the engine.
#pragma once

#include "engine/sequence.h"

namespace quire {

// What a prompt needs beside blocks to go on where another one was: a saved state, or what windows look back on there.
struct ResumeNeeds {
  bool states = false, windows = false;
};

// Whether a waiting sequence should wait for what a running one, or one that is admitted before it, will have made
// findable: more than the cache has now. The earlier one is asked to save its state where the two part, or to keep what
// windows look back on there.
// Who waits holds nothing, and waits for work that does not depend on it, so this ends: when the earlier one has passed
// the place, or is swapped out or finished.
bool must_wait(const Sequence& waiting, Sequence& earlier, const ResumeNeeds& needs);

}  // namespace quire
